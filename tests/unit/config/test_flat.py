"""Flat configurations: keys along the model, values as strings, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config.flat import flatten, nest, setting_type, value_type
from tailrace.config.model import PipelineSettings
from tailrace.config.problems import section_of
from tailrace.config.section import Section

FLAT = {
    "pipeline": "orders",
    "source.postgres": "postgresql://tailrace:${env:DB_PASSWORD}@db/shop",
    "source.table": "public.outbox",
    "source.order_by": "created_at,id",
    "source.failover": "true",
    "source.link_timeout": "2.5",
    "topics.partitions": "12",
    "kafka.bootstrap": "a:9092,b:9092",
    "kafka.settings.compression.type": "zstd",
    "rules.checks.Order*": "shop_rules:positive,other",
    "schemas": "{}",
}
TREE = {
    "pipeline": "orders",
    "source": {
        "postgres": "postgresql://tailrace:${env:DB_PASSWORD}@db/shop",
        "table": "public.outbox",
        "order_by": ["created_at", "id"],
        "failover": True,
        "link_timeout": 2.5,
    },
    "topics": {"partitions": 12},
    "kafka": {"bootstrap": "a:9092,b:9092", "settings": {"compression.type": "zstd"}},
    "rules": {"checks": {"Order*": ["shop_rules:positive", "other"]}},
    "schemas": {},
}


def test_keys_follow_the_model() -> None:
    assert nest(FLAT) == (TREE, [])
    assert flatten(TREE) == FLAT


@pytest.mark.parametrize("text", ["created_at,id", " created_at , id ", '["created_at", "id"]', "[created_at, id]"])
def test_a_list_is_written_with_commas_or_as_json(text: str) -> None:
    assert nest({"source.order_by": text}) == ({"source": {"order_by": ["created_at", "id"]}}, [])


@pytest.mark.parametrize("text", ['{"linger.ms": "5"}', "{linger.ms: '5'}"])
def test_a_map_may_be_one_json_object(text: str) -> None:
    assert nest({"kafka.settings": text, "kafka.settings.acks": "all"})[0] == {
        "kafka": {"settings": {"linger.ms": "5", "acks": "all"}}
    }


def test_null_stands_for_the_default() -> None:
    assert nest({"source.table": None, "schemas": None}) == ({}, [])
    assert flatten({"source": {"table": None}, "schemas": None}) == {"schemas": "{}"}


def test_a_name_may_contain_dots_and_be_empty() -> None:
    assert nest({"kafka.settings.a.b.c": "1", "kafka.settings.": "2"})[0] == {
        "kafka": {"settings": {"a.b.c": "1", "": "2"}}
    }


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("kafka.bootstap", "did you mean `bootstrap`?"),
        ("kafka.bootstrap.servers", "remove it"),
        ("slot", "did you mean `source.slot`?"),
        ("", "remove it"),
        (".", "remove it"),
        ("source.postgres.", "remove it"),
    ],
)
def test_an_unknown_key_is_a_problem_with_a_remedy(key: str, remedy: str) -> None:
    tree, [problem] = nest({key: "x"})
    assert tree == {}
    assert ".".join(problem.place) == key
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("source", "postgres"),
        ("source", '{"postgres": "x"}'),
        ("source.order_by", "[1, 2]"),
        ("source.order_by", '["a"'),
        ("source.order_by", "[" * 100_000),
        ("kafka.settings", "[]"),
        ("kafka.settings", "linger.ms=5"),
        ("kafka.settings", "{" * 100_000),
    ],
)
def test_a_value_of_another_shape_is_a_problem(key: str, text: str) -> None:
    _, [problem] = nest({key: text})
    assert ".".join(problem.place) == key
    assert key in problem.remedy


@pytest.mark.parametrize(("text", "value"), [("x", "x"), ("1_000", "1_000"), ("1.5", "1.5"), ("٣", "٣"), (" 7 ", 7)])
def test_what_is_not_a_number_is_left_to_the_model(text: str, value: object) -> None:
    assert nest({"topics.partitions": text}) == ({"topics": {"partitions": value}}, [])


def test_a_predicate_in_yaml_becomes_json() -> None:
    tree = {"source": {"start_where": {"status": {"$ne": "published"}}}}
    assert flatten(tree) == {"source.start_where": '{"status": {"$ne": "published"}}'}


texts = st.text(max_size=20)
lists = st.lists(texts, max_size=3)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    list: lists,
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False),
}


def trees(model: type[Section]) -> st.SearchStrategy[dict[str, Any]]:
    """Settings of the right types, not necessarily valid."""
    fields = {}
    for name, field in model.model_fields.items():
        section = section_of(field)
        kind = setting_type(field.annotation)
        if section is not None:
            fields[name] = trees(section)
        elif kind is dict:
            fields[name] = st.dictionaries(texts, VALUES[value_type(field.annotation)], max_size=3)
        else:
            fields[name] = VALUES[kind]
    return st.fixed_dictionaries({}, optional=fields)


@given(trees(PipelineSettings))
def test_nested_settings_return_from_flat_ones(tree: dict[str, Any]) -> None:
    assert nest(flatten(tree)) == (tree, [])


keys = st.sampled_from([*FLAT, "kafka.settings", "source", "rules.checks", "dead_letters.reasons.x"]) | texts


@given(st.dictionaries(keys, st.none() | texts | st.sampled_from(["[]", "{}", "true", "1"]), max_size=5))
def test_any_flat_map_gives_settings_or_problems(flat: dict[str, str | None]) -> None:
    tree, problems = nest(flat)
    assert len(problems) <= len(flat)
    assert nest(flatten(tree)) == (tree, [])
