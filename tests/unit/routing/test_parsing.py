"""Parsing of topic specs; errors name the line and the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.routing.parsing import parse_spec
from tailrace.routing.patterns import glob, subject
from tailrace.routing.specs import BROKER_DEFAULT, Rule, RuleCondition, SpecOrigin, TopicSpec

HERE = SpecOrigin(
    "topics/t.yaml", {("topic",): 2, ("match",): 3, ("match", "type"): 4, ("config",): 7, ("config", "a"): 8}
)


def test_a_full_spec() -> None:
    spec = parse_spec(
        {
            "stream": "inventory",
            "topic": "rwa.inventory",
            "match": {
                "subject": ["rwa.inventory.*", "agent.run.>"],
                "type": ["Order*"],
                "aggregate": "order",
                "stream": "payments",
                "column": {"tenant": "eu-*"},
                "pipeline": ["orders", "billing"],
            },
            "key": "tenant_id",
            "priority": 10,
            "partitions": 3,
            "replication": 1,
            "retention": "7d",
            "config": {
                "cleanup.policy": ["compact", "delete"],
                "min.cleanable.dirty.ratio": 0.5,
                "preallocate": False,
            },
        },
        HERE,
    )
    config = {
        "retention.ms": "604800000",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.5",
        "preallocate": "false",
    }
    conditions = (
        RuleCondition("subject", (subject("rwa.inventory.*"), subject("agent.run.>"))),
        RuleCondition("type", (glob("Order*"),)),
        RuleCondition("aggregate", (glob("order"),)),
        RuleCondition("stream", (glob("payments"),)),
        RuleCondition("column", (glob("eu-*"),), "tenant"),
    )
    rule = Rule(conditions, ("orders", "billing"), 10, "tenant_id")
    assert spec == TopicSpec("rwa.inventory", 3, 1, config, rule, "inventory")
    assert spec.origin is HERE


def test_omitted_fields_use_the_broker_defaults() -> None:
    spec = parse_spec({"topic": "t"}, HERE)
    assert spec == TopicSpec("t", BROKER_DEFAULT, BROKER_DEFAULT, {}, None, "")
    assert spec.name == "t"


def test_a_star_is_tried_after_all_other_rules() -> None:
    assert parse_spec({"topic": "t", "match": "*", "key": "k"}, HERE).rule == Rule(key="k", last=True)


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        ("1ms", "1"), ("2s", "2000"), ("3m", "180000"), ("4h", "14400000"), ("1d", "86400000"),
        ("2w", "1209600000"), ("forever", "-1"),
    ],
)  # fmt: skip
def test_retention_accepts_units(given: str, milliseconds: str) -> None:
    assert parse_spec({"topic": "t", "retention": given}, HERE).config == {"retention.ms": milliseconds}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (None, "1: the file must be a mapping"),
        ([], "1: the file must be a mapping of fields, not a list"),
        ({}, "2: topic is missing"),
        ({"stream": "s"}, "2: topic is missing, so the stream s has no topic"),
        ({"topic": 5}, "2: topic must be a text, not a number"),
        ({"topic": "a b"}, "2: topic 'a b' is not a valid topic name"),
        ({"topic": "x" * 250}, "250 characters"),
        ({"topic": "."}, "topic '.'"),
        ({"topic": "__consumer_offsets"}, "internal"),
        ({"topic": "t", "stream": "a b"}, "stream 'a b' is not a valid stream name"),
        ({"topic": "t", "stream": None}, "stream must be a text, not nothing"),
        ({"topic": "t", "partition": 1}, "partition is not a field"),
        ({"topic": "t", 5: 1}, "the file has a name that is a number: 5"),
        ({"topic": "t", "partitions": 0}, "partitions must be between"),
        ({"topic": "t", "partitions": True}, "partitions must be a whole number"),
        ({"topic": "t", "partitions": "3"}, "partitions must be a whole number, not a text"),
        ({"topic": "t", "replication": None}, "replication must be a whole number, not nothing"),
        ({"topic": "t", "key": "k"}, "key has no effect"),
        ({"topic": "t", "priority": 1}, "priority has no effect"),
        ({"topic": "t", "match": "*", "priority": 1}, "priority has no effect"),
        ({"topic": "t", "match": {"type": "A"}, "priority": "high"}, "priority must be a whole number"),
        ({"topic": "t", "match": {"type": "A"}, "key": ["a"]}, "key must be a text, not a list"),
        ({"topic": "t", "match": {}}, "3: match is empty"),
        ({"topic": "t", "match": "Order*"}, "3: match must be a mapping"),
        ({"topic": "t", "match": {"types": "a"}}, "3: match.types is not a field"),
        ({"topic": "t", "match": {"type": []}}, "4: match.type is an empty list"),
        ({"topic": "t", "match": {"type": [1]}}, "4: match.type must be a pattern"),
        ({"topic": "t", "match": {"type": "[z-a]"}}, "4: match.type '[z-a]' has the empty range z-a"),
        ({"topic": "t", "match": {"aggregate": ""}}, "match.aggregate must be a pattern"),
        ({"topic": "t", "match": {"aggregate": None}}, "match.aggregate must be a pattern"),
        ({"topic": "t", "match": {"subject": "a*"}}, "match.subject 'a*' has the token 'a*'"),
        ({"topic": "t", "match": {"column": "tenant"}}, "match.column must be a mapping"),
        ({"topic": "t", "match": {"column": {}}}, "match.column names no column"),
        ({"topic": "t", "match": {"column": {"tenant": 1}}}, "match.column.tenant must be a pattern"),
        ({"topic": "t", "match": {"pipeline": "or*"}}, "match.pipeline 'or*' is not a valid pipeline name"),
        ({"topic": "t", "retention": 7}, "retention must be a duration, not a number"),
        ({"topic": "t", "retention": "7"}, "retention must be a duration, not '7'"),
        ({"topic": "t", "retention": "0d"}, "retention must be a duration"),
        ({"topic": "t", "retention": "9999999999999999999w"}, "retention must be a duration"),
        ({"topic": "t", "retention": "7d", "config": {"retention.ms": 1}}, "retention repeats"),
        ({"topic": "t", "config": []}, "7: config must be a mapping"),
        ({"topic": "t", "config": {"a": None}}, "8: config.a must be a text"),
        ({"topic": "t", "config": {"a": {}}}, "8: config.a must be a text"),
        ({"topic": "t", "config": {"a": []}}, "8: config.a must be a text"),
        ({"topic": "t", "config": {"a": float("nan")}}, "8: config.a must be a text"),
        ({"topic": "t", "config": {1: "a"}}, "7: config has a name that is a number: 1"),
    ],
)
def test_errors_name_the_file_the_line_and_the_field(document: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_spec(document, HERE)
    assert caught.value.what.startswith("topics/t.yaml:")
    assert says in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    "match",
    [
        {"type": "*"},
        {"type": "**"},
        {"type": "?*"},
        {"aggregate": "*"},
        {"stream": "*"},
        {"subject": ">"},
        {"subject": ["a", ">"]},
        {"type": "*", "aggregate": "*"},
    ],
)
def test_a_rule_that_matches_everything_is_refused(match: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="matches every event") as caught:
        parse_spec({"topic": "t", "match": match}, HERE)
    assert 'match: "*"' in caught.value.remedy


@pytest.mark.parametrize(
    "match",
    [
        {"aggregate": "?*"},
        {"subject": "*.*"},
        {"column": {"tenant": "*"}},
        {"pipeline": "orders"},
        {"type": "*", "aggregate": "order"},
    ],
)
def test_a_rule_that_excludes_something_is_accepted(match: dict[str, Any]) -> None:
    assert parse_spec({"topic": "t", "match": match}, HERE).rule is not None


def test_every_event_of_some_pipelines_needs_no_pattern() -> None:
    with pytest.raises(ConfigError, match="matches every event") as caught:
        parse_spec({"topic": "t", "match": {"type": "*", "pipeline": "orders"}}, HERE)
    assert "Remove match.type" in caught.value.remedy


def test_a_misspelt_field_gets_a_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_spec({"topic": "t", "partition": 1}, HERE)
    assert caught.value.remedy == "Did you mean `partitions`?"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MATCH = st.fixed_dictionaries({}, optional={"type": JUNK, "subject": JUNK, "column": JUNK, "pipeline": JUNK})
FIELDS = {"match": JUNK | MATCH, "partitions": JUNK, "config": JUNK, "retention": JUNK, "priority": JUNK}


@given(JUNK | st.fixed_dictionaries({"topic": JUNK | st.just("t")}, optional=FIELDS))
def test_any_document_is_a_spec_or_a_config_error(document: Any) -> None:
    try:
        assert isinstance(parse_spec(document, HERE), TopicSpec)
    except ConfigError:
        pass
