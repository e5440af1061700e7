"""Specs as values: the order in which their rules are tried, and the lines they come from."""

from __future__ import annotations

from tailrace.routing.specs import Rule, SpecOrigin, TopicSpec, in_order


def test_rules_are_tried_by_priority_and_the_catch_all_rule_last() -> None:
    specs = [
        TopicSpec("rest", rule=Rule(last=True)),
        TopicSpec("described"),
        TopicSpec("low", rule=Rule(priority=-5)),
        TopicSpec("a", rule=Rule()),
        TopicSpec("b", rule=Rule()),
        TopicSpec("high", rule=Rule(priority=10)),
    ]
    assert [spec.topic for spec, _ in in_order(specs)] == ["high", "a", "b", "low", "rest"]


def test_a_missing_field_is_reported_at_the_line_of_its_parent() -> None:
    origin = SpecOrigin("t.yaml", {("match",): 3, ("match", "type"): 4})
    assert origin.at("match", "type") == "t.yaml:4"
    assert origin.at("match", "type", "0") == "t.yaml:4"
    assert origin.at("match", "stream") == "t.yaml:3"
    assert origin.at("topic") == "t.yaml:1"
