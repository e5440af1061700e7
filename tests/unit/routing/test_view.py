"""Routes of rows from tables with renamed columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.errors import LayoutMismatch
from tailrace.event import Column, Row
from tailrace.outbox.layouts import DEBEZIUM, Layout
from tailrace.records.plain import plain_record
from tailrace.routing.parsing import parse_spec
from tailrace.routing.router import Router
from tailrace.routing.specs import Rule, RuleCondition, SpecOrigin
from tailrace.routing.view import SUBJECT, View
from tailrace.worker.options import routing_view

MAP = replace(DEBEZIUM, subject="subj", stream="dest")
TEXT = 25
NAMES = ("id", "type", "aggregatetype", "aggregateid", "payload", "subj", "dest", "tenant")


def row(*values: bytes | None, names: tuple[str, ...] = NAMES) -> Row:
    return Row(tuple(Column(name, TEXT) for name in names), values, "0/1:1", 1)


def test_subject_and_stream_are_read_matched_and_sent_as_headers() -> None:
    match = {"subject": "rwa.>", "stream": "stock", "column": {"tenant": "eu-*"}}
    spec = parse_spec({"topic": "t", "match": match, "key": "tenant"}, SpecOrigin())
    router = Router([spec], None, view=routing_view("orders", MAP))
    event = Layout(MAP).read(row(b"e", b"Moved", b"item", b"k", b"{}", b"rwa.stock.moved", b"stock", b"eu-1"))
    record = plain_record(event, router.route(event))
    assert (record.topic, record.key) == ("t", b"eu-1")
    assert {("subj", b"rwa.stock.moved"), ("dest", b"stock"), ("tenant", b"eu-1")} <= set(record.headers)


@pytest.mark.parametrize("part", ["subject", "stream"])
def test_a_table_without_the_mapped_column_is_refused(part: str) -> None:
    column = getattr(MAP, part)
    names = tuple(name for name in NAMES if name != column)
    with pytest.raises(LayoutMismatch, match=f"no column '{column}'") as caught:
        Layout(MAP).read(row(*[b"x"] * len(names), names=names))
    assert f"outbox.columns.{part}" in caught.value.remedy


def test_what_a_condition_tests_depends_on_the_pipeline() -> None:
    subject, stream = RuleCondition("subject", ()), RuleCondition("stream", ())
    plain, mapped = View(), routing_view("orders", replace(MAP, subject="type"))
    assert (plain.variable(subject), plain.variable(stream)) == (SUBJECT, "stream")
    assert (mapped.variable(subject), mapped.variable(stream)) == ("type", "column dest")
    assert mapped.variable(RuleCondition("column", (), "aggregatetype")) == "aggregate"
    assert mapped.parts["aggregateid"] == "key"


def test_the_stream_of_an_event() -> None:
    event = Layout(MAP).read(row(b"e", b"Moved", b"item", b"k", b"{}", b"s", b"stock", None))
    assert routing_view("orders", MAP).stream_of(event) == "stock"
    assert View().stream_of(event) == ""
    nameless = event._replace(extra=[])
    assert routing_view("orders", MAP).stream_of(nameless) == ""
    assert routing_view("orders", MAP).require_stream("{stream}") == "dest"
    assert routing_view("orders", replace(MAP, stream="type")).stream_of(event) == "Moved"
    assert routing_view("orders", replace(MAP, stream="type")).require_stream("{stream}") is None


def test_a_rule_for_other_pipelines_is_ignored() -> None:
    assert View("orders").sees(Rule())
    assert View("orders").sees(Rule(pipelines=("billing", "orders")))
    assert not View("orders").sees(Rule(pipelines=("billing",)))
    assert not View().sees(Rule(pipelines=("billing",)))
