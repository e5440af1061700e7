"""Tests of rule.py: which rules apply to an event type, and what they may return."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tailrace.errors import Reason, Rejected
from tailrace.rules import RuleEvent, RuleSet
from tailrace.rules.rule import KNOWN_TYPES, TEXT_CHARS, RulePatterns


def event(type_name: str = "OrderPlaced", payload: Any = None) -> RuleEvent:
    return RuleEvent("e-1", type_name, "order", "o-1", payload if payload is not None else {"amount": 1})


def positive(event: RuleEvent) -> str | None:
    return None if event.payload["amount"] > 0 else f"amount is {event.payload['amount']}"


def quits(_: RuleEvent) -> str | None:
    raise SystemExit(3)


def rejection(rules: RuleSet, of: RuleEvent, **options: Any) -> Rejected:
    with pytest.raises(Rejected) as raised:
        rules.require(of, **options)
    return raised.value


def test_rules_are_found_by_pattern_each_once_and_in_order() -> None:
    patterns = RulePatterns({"Order*": ["a:x", "b:y"], "OrderPlaced": ["c:z", "a:x"], "[!O]*": ["d:w"]})
    assert patterns.of_type("OrderPlaced") == ("a:x", "b:y", "c:z")
    assert patterns.of_type("OrderChanged") == ("a:x", "b:y")
    assert patterns.of_type("orderplaced") == ("d:w",)
    assert patterns.of_type("O") == ()


def test_the_cache_of_types_is_bounded() -> None:
    patterns = RulePatterns({"Order*": ["a:x"]})
    for number in range(2 * KNOWN_TYPES):
        patterns.of_type(f"Order{number}")
    assert len(patterns._known) <= KNOWN_TYPES


def test_a_rule_that_returns_none_lets_the_event_pass() -> None:
    RuleSet.of({"Order*": [positive]}).require(event(), 60)
    RuleSet.of({"User*": [positive]}).require(event(payload={}))


def test_a_rule_rejects_with_its_own_text() -> None:
    rejected = rejection(RuleSet.of({"*": [positive]}), event(payload={"amount": -2}))
    assert rejected.reason is Reason.PERMANENT_FAILURE
    assert rejected.explanation == f"the rule {__name__}:positive rejects the event: amount is -2"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (positive, "raised an error: KeyError: 'amount'"),
        (quits, "raised an error: SystemExit: 3"),
        (lambda _: True, "raised an error: it returned bool"),
        (lambda _: "", "raised an error: it returned str"),
    ],
)
def test_a_rule_that_fails_itself_is_named(rule: Any, expected: str) -> None:
    rejected = rejection(RuleSet.of({"*": [rule]}), event(payload={}))
    assert rejected.reason is Reason.POISON_MESSAGE
    assert expected in rejected.explanation


def test_a_long_text_is_cut() -> None:
    assert len(rejection(RuleSet.of({"*": [lambda _: "x" * 10_000]}), event()).explanation) < TEXT_CHARS + 200


def test_a_rule_that_is_too_slow_for_the_connector_is_noticed_in_the_service() -> None:
    def slow(_: RuleEvent) -> str | None:
        ends = time.monotonic() + 0.02
        while time.monotonic() < ends:
            pass
        return None

    rejected = rejection(RuleSet.of({"*": [slow]}), event(), limit=0.001)
    assert rejected.reason is Reason.PROCESSING_TIMEOUT
