"""Compares declared with existing topics: every kind of difference."""

from __future__ import annotations

import pytest

from tailrace.kafka.topic_plan import Change, Kind, TopicState, differences, plan, same_value
from tailrace.routing.specs import SpecOrigin, TopicSpec

SPEC = TopicSpec(
    "t", 3, 1, {"retention.ms": "1000"}, origin=SpecOrigin("t.yaml", {("partitions",): 2, ("retention",): 4})
)


def kinds(spec: TopicSpec, state: TopicState | None) -> list[tuple[Kind, str, str, str]]:
    return [(change.kind, change.setting, change.before, change.after) for change in differences(spec, state)]


def test_a_missing_topic_is_to_be_created() -> None:
    assert kinds(SPEC, None) == [(Kind.CREATE, "", "", "partitions 3, replication 1, retention.ms=1000")]
    assert "as the brokers are set" in kinds(TopicSpec("t"), None)[0][3]


def test_a_topic_as_declared_needs_no_change() -> None:
    assert differences(SPEC, TopicState(3, 1, {"retention.ms": "1000", "cleanup.policy": "compact"})) == []


def test_settings_that_are_not_declared_are_not_compared() -> None:
    assert differences(TopicSpec("t"), TopicState(7, 2, {"retention.ms": "5"})) == []


def test_more_partitions_are_a_growth_with_a_warning() -> None:
    (change,) = differences(SPEC, TopicState(2, 1, {"retention.ms": "1000"}))
    assert (change.kind, change.before, change.after, change.where) == (Kind.GROW, "2", "3", "t.yaml:2")
    assert "order across the change is not kept" in change.note


def test_fewer_partitions_and_another_replication_are_changed_by_hand() -> None:
    found = differences(SPEC, TopicState(4, 2, {"retention.ms": "1000"}))
    assert [(change.kind, change.setting) for change in found] == [
        (Kind.BY_HAND, "partitions"),
        (Kind.BY_HAND, "replication"),
    ]
    assert "partitions: 4" in found[0].note
    assert "replication: 2" in found[1].note


@pytest.mark.parametrize("live", [{"retention.ms": "2000"}, {}])
def test_a_setting_that_differs_is_to_be_set(live: dict[str, str]) -> None:
    (change,) = differences(SPEC, TopicState(3, 1, live))
    assert change == Change(Kind.SET, SPEC, "retention.ms", live.get("retention.ms", ""), "1000")
    assert change.where == "t.yaml:4", "the line of the short form"


@pytest.mark.parametrize(
    ("declared", "live", "same"),
    [
        ("1000", "1000", True),
        ("1000", "1001", False),
        ("9223372036854775807", "9223372036854775806", False),
        ("TRUE", "true", True),
        ("0.50", "0.5", True),
        ("1", "1.0", True),
        ("1", "true", False),
        ("Zstd", "zstd", False),
        ("compact, delete", "compact,delete", True),
        ("compact", "compact,delete", False),
        ("-1", "-1", True),
        ("", "", True),
        ("", "x", False),
    ],
)
def test_values_are_compared_as_kafka_spells_them(declared: str, live: str, same: bool) -> None:
    assert same_value(declared, live) is same


def test_a_plan_is_sorted_by_topic_and_ignores_other_topics() -> None:
    live = {"b": TopicState(1, 1), "unknown": TopicState(9, 9)}
    assert [change.topic for change in plan([TopicSpec("c"), TopicSpec("b"), TopicSpec("a")], live)] == ["a", "c"]
