"""Routing: rules in order, then the template, then nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import OutboxEvent
from tailrace.routing import router
from tailrace.routing.router import Router
from tailrace.routing.specs import TopicSpec

TEMPLATE = "outbox.event.{aggregate}"


def event(type_name: str = "OrderPlaced", aggregate: str = "order") -> OutboxEvent:
    return OutboxEvent("e", type_name, aggregate, None, None, None, "p", 1, [])


def rule(topic: str, types: tuple[str, ...] = (), aggregates: tuple[str, ...] = ()) -> TopicSpec:
    return TopicSpec(topic, types=types, aggregates=aggregates)


def test_the_first_rule_that_matches_wins() -> None:
    route = Router([rule("a", ("OrderP*",)), rule("b", ("Order*",)), rule("c", ("*",))], None)
    assert [route.route(event(name)).topic for name in ("OrderPlaced", "OrderShipped", "Refund")] == ["a", "b", "c"]


def test_no_event_goes_to_a_topic_of_our_own() -> None:
    """By template or by rule: a record on the offsets topic would be taken for a position."""
    route = Router([rule("offsets", ("Forged",))], "{aggregate}", reserved=frozenset({"offsets", "letters"}))
    for wrong in (event("Forged"), event("OrderPlaced", "offsets"), event("OrderPlaced", "letters")):
        with pytest.raises(Rejected) as refused:
            route.route(wrong)
        assert refused.value.reason is Reason.PERMANENT_FAILURE
    assert route.route(event("OrderPlaced", "order")).topic == "order"


def test_both_must_match_if_both_are_given() -> None:
    route = Router([rule("a", ("Order*",), ("order", "cart"))], TEMPLATE)
    assert route.route(event("OrderPlaced", "cart")).topic == "a"
    assert route.route(event("OrderPlaced", "user")).topic == "outbox.event.user"
    assert route.route(event("Refund", "order")).topic == "outbox.event.order"


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("Order*", "order1", False),
        ("Order*", "Order", True),
        ("Order*", "MyOrder", False),
        ("Order", "OrderX", False),
        ("O?der", "Order", True),
        ("[OP]rder", "Prder", True),
        ("a.b", "axb", False),
        ("a*", "a\nb", True),
        ("a", "a\n", False),
    ],
)
def test_patterns_are_the_shells_and_mind_their_case(pattern: str, name: str, matches: bool) -> None:
    assert (Router([rule("hit", (pattern,))], "miss").route(event(name)).topic == "hit") is matches


@pytest.mark.timeout(20)
def test_a_pattern_of_many_stars_takes_no_exponential_time() -> None:
    assert Router([rule("hit", ("*a" * 20 + "*b",))], "miss").route(event("a" * 5000)).topic == "miss"


def test_a_spec_without_patterns_attracts_nothing() -> None:
    assert Router([rule("described")], TEMPLATE).route(event()).topic == "outbox.event.order"


def test_no_rule_and_no_template() -> None:
    with pytest.raises(Rejected, match="no rule matches") as caught:
        Router([rule("a", ("X",))], None).route(event())
    assert caught.value.reason is Reason.PERMANENT_FAILURE
    assert "OrderPlaced" in caught.value.explanation


@pytest.mark.parametrize("aggregate", ["", "a b", "é", "x" * 240, "a/b", "a\n"])
def test_a_template_that_gives_no_legal_name_rejects_the_event(aggregate: str) -> None:
    with pytest.raises(Rejected) as caught:
        Router([], TEMPLATE).route(event(aggregate=aggregate))
    assert caught.value.reason is Reason.PERMANENT_FAILURE
    assert len(caught.value.explanation) < 500


@pytest.mark.parametrize("aggregate", [".", "..", "__consumer_offsets"])
def test_an_event_cannot_reach_kafkas_own_topics(aggregate: str) -> None:
    with pytest.raises(Rejected):
        Router([], "{aggregate}").route(event(aggregate=aggregate))


def test_a_template_may_use_both_fields_or_none() -> None:
    assert Router([], "{aggregate}.{type}").route(event()).topic == "order.OrderPlaced"
    assert Router([], "all").route(event(aggregate="")).topic == "all"


@pytest.mark.parametrize(
    "template",
    [
        "",
        "a b",
        "{x}",
        "{}",
        "{0}",
        "{aggregate.x}",
        "{aggregate[0]}",
        "{type!r}",
        "{type:>99}",
        "{",
        "}",
        "{{a}}",
        "__{type}",
        "x" * 249 + "{type}",
    ],
)
def test_templates_that_cannot_work_are_refused_at_once(template: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Router([], template)
    assert caught.value.remedy


def test_the_memory_of_answers_is_bounded_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "KNOWN_PAIRS", 10)
    route = Router([], "{type}")
    for number in range(100):
        assert route.route(event(f"T{number}")).topic == f"T{number}"
        assert len(route._known) <= 10
    assert route.route(event("T99")).topic is route.route(event("T99")).topic


@given(st.text(), st.text())
def test_any_event_gets_a_legal_name_or_is_rejected(type_name: str, aggregate: str) -> None:
    try:
        topic = Router([], "{aggregate}-{type}").route(event(type_name, aggregate)).topic
    except Rejected:
        return
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic)
    assert topic == f"{aggregate}-{type_name}"
