"""Routing: rules by priority, then `match: "*"`, then the template."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import OutboxEvent, Route
from tailrace.routing import router
from tailrace.routing.parsing import parse_spec
from tailrace.routing.router import Router, Tried
from tailrace.routing.specs import SpecOrigin, TopicSpec
from tailrace.routing.view import View

TEMPLATE = "outbox.event.{aggregate}"
MAPPED = View("orders", subject="subj", stream="dest", parts={"aggregateid": "key", "kind": "type"})


def event(type_name: str = "OrderPlaced", aggregate: str = "order", **columns: bytes) -> OutboxEvent:
    return OutboxEvent("e", type_name, aggregate, b"k", None, None, "p", 1, list(columns.items()))


def rule(topic: str, match: Any, **fields: Any) -> TopicSpec:
    return parse_spec({"topic": topic, "match": match, **fields}, SpecOrigin(f"{topic}.yaml", {("match",): 2}))


def topic_of(specs: list[TopicSpec], event: OutboxEvent, view: View = MAPPED) -> str:
    return Router(specs, "miss", view=view).route(event).topic


def test_the_highest_priority_wins_and_the_catch_all_rule_comes_last() -> None:
    specs = [
        rule("c", "*"),
        rule("b", {"type": "Order*"}),
        rule("a", {"type": "OrderP*"}, priority=1),
    ]
    route = Router(specs, TEMPLATE)
    assert [route.route(event(name)).topic for name in ("OrderPlaced", "OrderShipped", "Refund")] == ["a", "b", "c"]


def test_no_event_goes_to_an_internal_topic() -> None:
    """Neither by template nor by rule: a record on the offsets topic would be read as a position."""
    specs = [rule("offsets", {"type": "Forged"})]
    route = Router(specs, "{aggregate}", reserved=frozenset({"offsets", "letters"}))
    for wrong in (event("Forged"), event("OrderPlaced", "offsets"), event("OrderPlaced", "letters")):
        with pytest.raises(Rejected) as refused:
            route.route(wrong)
        assert refused.value.reason is Reason.PERMANENT_FAILURE
    assert route.route(event("OrderPlaced", "order")).topic == "order"


def test_all_conditions_must_hold() -> None:
    route = Router([rule("a", {"type": "Order*", "aggregate": ["order", "cart"]})], TEMPLATE)
    assert route.route(event("OrderPlaced", "cart")).topic == "a"
    assert route.route(event("OrderPlaced", "user")).topic == "outbox.event.user"
    assert route.route(event("Refund", "order")).topic == "outbox.event.order"


def test_a_subject_is_aggregate_and_type_unless_it_has_a_column() -> None:
    specs = [rule("hit", {"subject": "order.*"})]
    assert topic_of(specs, event("Placed", "order"), View("orders")) == "hit"
    assert topic_of(specs, event("Placed", "cart"), View("orders")) == "miss"
    assert topic_of(specs, event("order.Placed", ""), View("orders")) == "hit"
    assert topic_of(specs, event("Placed", "cart", subj=b"order.placed")) == "hit"
    assert topic_of(specs, event("Placed", "order", subj=b"cart.placed")) == "miss"
    assert topic_of(specs, event("Placed", "order")) == "miss", "NULL"
    assert topic_of(specs, event("order.Placed", ""), View("orders", subject="kind", parts={"kind": "type"})) == "hit"


def test_the_template_may_take_the_topic_from_the_row() -> None:
    """The cache key includes the stream: the two events differ in nothing else."""
    route = Router([rule("pay", {"type": "Payment*"})], "{stream}", view=MAPPED).route
    assert [route(event(dest=dest)).topic for dest in (b"a", b"b", b"a")] == ["a", "b", "a"]
    assert route(event("PaymentMade", dest=b"a")).topic == "pay"
    for dest in ({}, {"dest": b""}, {"dest": b"no topic"}, {"dest": b"\xff"}):
        with pytest.raises(Rejected) as refused:
            route(event(**dest))
        assert refused.value.reason is Reason.PERMANENT_FAILURE


def test_the_stream_may_be_the_events_own_type() -> None:
    view = View("orders", stream="kind", parts={"kind": "type"})
    assert Router([], "{stream}", view=view).route(event("OrderPlaced")).topic == "OrderPlaced"


def test_no_stream_of_a_row_leads_to_an_internal_topic() -> None:
    route = Router([], "{stream}", view=MAPPED, reserved=frozenset({"offsets"})).route
    with pytest.raises(Rejected, match="internal topic of Tailrace"):
        route(event(dest=b"offsets"))


def test_a_template_with_a_stream_needs_a_column_for_it() -> None:
    with pytest.raises(ConfigError) as caught:
        Router([], "{stream}", view=View("orders"))
    assert "outbox.columns.stream" in caught.value.remedy
    Router([], "{aggregate}", view=View("orders"))


def test_streams_and_columns_are_read_from_the_row() -> None:
    specs = [rule("pay", {"stream": "payments"}), rule("eu", {"column": {"tenant": "eu-*"}}, priority=1)]
    assert topic_of(specs, event(dest=b"payments")) == "pay"
    assert topic_of(specs, event(dest=b"payments", tenant=b"eu-1")) == "eu"
    assert topic_of(specs, event(dest=b"refunds", tenant=b"us-1")) == "miss"
    assert topic_of([rule("hit", {"column": {"kind": "OrderPlaced"}})], event()) == "hit"
    assert topic_of([rule("hit", {"column": {"raw": "*ff"}})], event(raw=b"\xff")) == "hit"


def test_one_folder_serves_several_pipelines() -> None:
    specs = [rule("all", {"pipeline": ["orders", "billing"]}), rule("mine", {"pipeline": "stock"})]
    assert [topic_of(specs, event(), View(name)) for name in ("orders", "billing", "stock", "x")] == [
        "all",
        "all",
        "mine",
        "miss",
    ]


def test_the_key_may_be_another_column() -> None:
    specs = [rule("a", {"type": "A"}, key="tenant"), rule("b", {"type": "B"}, key="aggregateid"), rule("c", "*")]
    route = Router(specs, None, view=MAPPED)
    assert route.route(event("A")) == Route("a", "tenant")
    assert route.route(event("B")) == Route("b", None), "the event's own key needs no looking up"
    assert route.route(event("C")) == Route("c", None)


def test_a_spec_without_a_rule_matches_nothing() -> None:
    assert Router([TopicSpec("described")], TEMPLATE).route(event()).topic == "outbox.event.order"


def test_no_rule_and_no_template() -> None:
    with pytest.raises(Rejected, match="no rule matches") as caught:
        Router([rule("a", {"type": "X"})], None).route(event())
    assert caught.value.reason is Reason.PERMANENT_FAILURE
    assert "OrderPlaced" in caught.value.explanation


def test_an_explanation_names_every_rule_in_the_order_tried() -> None:
    specs = [
        rule("rest", "*"),
        rule("eu", {"column": {"tenant": ["eu-*", "uk"]}}, priority=5),
        rule("billing", {"pipeline": ["billing", "stock"]}, priority=9),
        rule("orders", {"aggregate": "order"}, stream="shop"),
        rule("placed", {"type": "*Placed"}, priority=-1),
    ]
    tried_rules = Router(specs, TEMPLATE, view=MAPPED).explain(event(tenant=b"us-1"))
    assert tried_rules == [
        Tried("billing", "billing", "billing.yaml:2", 9, False, False, "it is only for pipeline billing and stock"),
        Tried("eu", "eu", "eu.yaml:2", 5, False, False, "column tenant 'us-1' does not match eu-* or uk"),
        Tried("shop", "orders", "orders.yaml:2", 0, True, True, ""),
        Tried("placed", "placed", "placed.yaml:2", -1, True, False, "shop is tried before"),
        Tried("rest", "rest", "rest.yaml:2", None, True, False, "shop is tried before"),
        Tried(
            None,
            TEMPLATE,
            "topics.template",
            None,
            True,
            False,
            "shop matches; the template is for events without a matching rule",
        ),
    ]
    tried_rules = Router(specs[1:2], TEMPLATE, view=MAPPED).explain(event())
    assert [(tried.wins, tried.why) for tried in tried_rules] == [
        (False, "column tenant is NULL or missing, expected eu-* or uk"),
        (True, ""),
    ]


@pytest.mark.parametrize("by", ["type", "column"])
def test_the_route_cache_is_used_and_limited(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setattr(router, "CACHED_ROUTES", 10)
    specs = [rule("hit", {"column": {"t": "*9"}})] if by == "column" else []
    route = Router(specs, "{type}")
    for number in range(100):
        one = event(f"T{number}") if by == "type" else event("miss", t=str(number).encode())
        expected = one.type if by == "type" or number % 10 != 9 else "hit"
        assert route.route(one).topic == expected
        assert len(route._cache) <= 10
    assert route.route(event("T99")) is route.route(event("T99"))


def test_a_large_value_is_not_cached() -> None:
    route = Router([rule("hit", {"column": {"t": "a*"}})], "miss")
    assert route.route(event(t=b"a" * 10_000)).topic == "hit"
    assert route._cache == {}
    assert route.route(event(t=b"abc")).topic == "hit"
    assert len(route._cache) == 1
    route = Router([], "miss")
    assert {route.route(event("t" * length, "a" * length)).topic for length in (257, 900)} == {"miss"}
    assert route._cache == {}


@given(st.text(), st.text())
def test_any_event_gets_a_legal_name_or_is_rejected(type_name: str, aggregate: str) -> None:
    try:
        topic = Router([], "{aggregate}-{type}").route(event(type_name, aggregate)).topic
    except Rejected:
        return
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic)
    assert topic == f"{aggregate}-{type_name}"
