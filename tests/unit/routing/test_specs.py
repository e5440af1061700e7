"""Topic specs: what YAML may say, and the field named when it says something else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.routing.specs import BROKER_DEFAULT, TopicSpec, parse_spec


def test_a_full_spec() -> None:
    spec = parse_spec(
        {
            "topic": "shop.orders",
            "match": {"type": ["Order*"], "aggregate": "order"},
            "partitions": 3,
            "replication": 1,
            "config": {
                "retention.ms": 604800000,
                "cleanup.policy": ["compact", "delete"],
                "min.cleanable.dirty.ratio": 0.5,
                "preallocate": False,
            },
        },
        "orders.yaml",
    )
    config = {
        "retention.ms": "604800000",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.5",
        "preallocate": "false",
    }
    assert spec == TopicSpec("shop.orders", 3, 1, config, ("Order*",), ("order",))


def test_what_is_left_out_is_the_brokers_default() -> None:
    assert parse_spec({"topic": "t"}, "t.yaml") == TopicSpec("t", BROKER_DEFAULT, BROKER_DEFAULT, {}, (), ())


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (None, "the file must be a mapping"),
        ([], "the file must be a mapping of fields, not a list"),
        ({}, "topic is missing"),
        ({"topic": 5}, "topic must be a text, not a number"),
        ({"topic": "a b"}, "topic 'a b' is not a topic's name"),
        ({"topic": "x" * 250}, "250 characters"),
        ({"topic": "."}, "topic '.'"),
        ({"topic": ".."}, "topic '..'"),
        ({"topic": "__consumer_offsets"}, "internal"),
        ({"topic": "t", "partition": 1}, "partition is not a field"),
        ({"topic": "t", 5: 1}, "5 is not a field"),
        ({"topic": "t", "partitions": 0}, "partitions must be between"),
        ({"topic": "t", "partitions": True}, "partitions must be a whole number"),
        ({"topic": "t", "partitions": "3"}, "partitions must be a whole number, not a text"),
        ({"topic": "t", "replication": None}, "replication must be a whole number, not nothing"),
        ({"topic": "t", "match": {}}, "match is empty"),
        ({"topic": "t", "match": "Order*"}, "match must be a mapping"),
        ({"topic": "t", "match": {"types": "a"}}, "match.types is not a field"),
        ({"topic": "t", "match": {"type": []}}, "match.type is an empty list"),
        ({"topic": "t", "match": {"type": [1]}}, "match.type must be a pattern"),
        ({"topic": "t", "match": {"aggregate": ""}}, "match.aggregate must be a pattern"),
        ({"topic": "t", "match": {"aggregate": None}}, "match.aggregate must be a pattern"),
        ({"topic": "t", "config": []}, "config must be a mapping"),
        ({"topic": "t", "config": {"a": None}}, "config.a must be a text"),
        ({"topic": "t", "config": {"a": {}}}, "config.a must be a text"),
        ({"topic": "t", "config": {"a": []}}, "config.a must be a text"),
        ({"topic": "t", "config": {"a": float("nan")}}, "config.a must be a text"),
        ({"topic": "t", "config": {1: "a"}}, "config has a setting whose name is a number"),
    ],
)
def test_errors_name_the_file_and_the_field(document: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_spec(document, "topics/t.yaml")
    assert caught.value.what.startswith("topics/t.yaml: ")
    assert says in caught.value.what
    assert caught.value.remedy


def test_a_misspelt_field_gets_a_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_spec({"topic": "t", "partition": 1}, "t.yaml")
    assert caught.value.remedy == "Did you mean `partitions`?"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(JUNK | st.fixed_dictionaries({"topic": JUNK}, optional={"match": JUNK, "partitions": JUNK, "config": JUNK}))
def test_any_document_is_a_spec_or_a_config_error(document: Any) -> None:
    try:
        assert isinstance(parse_spec(document, "f"), TopicSpec)
    except ConfigError:
        pass
