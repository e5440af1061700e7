"""The report: the verdicts of the oracle determine the exit code, the text and the JSON."""

from __future__ import annotations

import json

import pytest

from tailrace.testkit.demo.consumer import Latency
from tailrace.testkit.demo.process import Downtime
from tailrace.testkit.demo.report import ERRORS, MISAPPLIED, DemoReport, ProjectionResult, Result, seconds
from tailrace.testkit.oracle import (
    ConsumedRecord,
    Histories,
    OracleVerdict,
    WriteOutcome,
    WrittenEvent,
    check_delivery,
    check_projection,
)

WRITTEN = [
    WrittenEvent("a1", "a", 1, True, WriteOutcome.COMMITTED),
    WrittenEvent("a2", "a", 2, True, WriteOutcome.COMMITTED),
    WrittenEvent("b1", "b", 1, False, WriteOutcome.COMMITTED),
    WrittenEvent("b2", "b", 2, True, WriteOutcome.ROLLED_BACK),
]
DEAD_LETTERS = [ConsumedRecord("b1", "b", "dead-letters", 0, 0)]
APPLIED = {"a": ["a1", "a2"]}


def records(*events: str) -> list[ConsumedRecord]:
    return [ConsumedRecord(event, event[0], "orders", 0, offset) for offset, event in enumerate(events)]


def report_on(verdict: OracleVerdict, applied: Histories = APPLIED) -> DemoReport:
    """Returns a report with this verdict on the users, no errors in the orders, and `applied` in the projection."""
    latency = Latency(90, 10, 8.0, 21.04, 1400.0)
    downtimes = [Downtime(0, 1100), Downtime(5000, 5900)]
    fine = check_delivery(WRITTEN, records("a1", "a2"), DEAD_LETTERS)
    results = [
        Result("orders", "Postgres", fine, latency, downtimes),
        Result("users", "MongoDB", verdict, latency, downtimes),
    ]
    summary = ProjectionResult("order_summary", check_projection(APPLIED, applied), [Downtime(7000, 9600)])
    return DemoReport(results, [summary], 7, 15.0)


def test_a_report_without_errors() -> None:
    report = report_on(check_delivery(WRITTEN, records("a1", "a2"), DEAD_LETTERS))
    assert report.exit_code == 0
    assert report.meaning().startswith("Exactly once and in order, with each connector killed twice")
    reported = json.loads(json.dumps(report.as_json()))
    assert reported["ok"] is True
    assert (reported["committed"], reported["rolled_back"], reported["published"], reported["dead_lettered"]) == (
        6,
        2,
        4,
        2,
    )
    assert (reported["kills"], reported["seed"], set(reported["pipelines"])) == (4, 7, {"orders", "users"})
    users = reported["pipelines"]["users"]
    assert (users["committed"], users["rolled_back"], users["published"], users["dead_lettered"]) == (3, 1, 2, 1)
    assert (users["database"], users["ok"], users["kills"]) == ("MongoDB", True, 2)
    assert (users["restart_ms"], users["wrong"]) == ([1100, 900], {})
    assert users["latency"]["p99_ms"] == 21.0
    summary = {"ok": True, "events": 2, "applied": 2, "missing": 0, "twice": 0, "phantom": 0, "out_of_order": 0}
    assert reported["projections"] == {"order_summary": {**summary, "wrong": {}, "kills": 1, "restart_ms": [2600]}}
    assert report.meaning().endswith("The projection order_summary, killed once, applied each event exactly once.")


def test_each_pipeline_has_a_column_and_there_is_a_total() -> None:
    report = report_on(check_delivery(WRITTEN, records("a1"), DEAD_LETTERS))
    rows = {row.label: row for _, part in report.sections() for row in part}
    assert report.columns == ["Postgres", "MongoDB", "total"]
    assert rows["on Kafka"].values == ["2", "1", "3"]
    assert rows["missing"].values == ["0", "1", "1"]
    assert rows["connector killed"].values == ["2", "2", "4"]
    assert rows["p99"].values == ["21 ms", "21 ms", ""]
    assert rows["order_summary"].values == ["2", "", ""]
    assert rows["order_summary"].remark == (
        "applied, of 2 on the topic: missing 0, twice 0, phantom 0, out of order 0; killed 1×"
    )
    alone = DemoReport(report.results[:1], report.projections, 7, 15.0)
    assert alone.columns == ["Postgres"]
    assert all(len(row.values) == 1 for _, part in alone.sections() for row in part)


def test_a_report_without_a_projection_does_not_mention_one() -> None:
    whole = report_on(check_delivery(WRITTEN, records("a1", "a2"), DEAD_LETTERS))
    report = DemoReport(whole.results, [], 7, 15.0)
    assert report.exit_code == 0
    assert report.as_json()["projections"] == {}
    assert [title for title, _ in report.sections()] == [title for title, _ in whole.sections()][:-1]
    assert "projection" not in report.meaning()


@pytest.mark.parametrize(
    ("error", "published", "dead_letters"),
    [
        ("missing", records("a1"), DEAD_LETTERS),
        ("duplicated", records("a1", "a2", "a2"), DEAD_LETTERS),
        ("phantom", records("a1", "a2", "b2"), DEAD_LETTERS),
        ("misplaced", records("a1", "a2", "b1"), []),
        ("out_of_order", records("a2", "a1"), DEAD_LETTERS),
    ],
)
def test_each_error_is_reported_with_exit_code_1(
    error: str, published: list[ConsumedRecord], dead_letters: list[ConsumedRecord]
) -> None:
    report = report_on(check_delivery(WRITTEN, published, dead_letters))
    assert report.exit_code == 1
    assert f"1 {ERRORS[error][0]} of the users" in report.meaning()
    assert "of the orders" not in report.meaning()
    assert "--seed 7" in report.meaning()
    assert report.as_json()["ok"] is False
    assert len(report.as_json()["pipelines"]["users"]["wrong"][error]) == 1
    assert report.as_json()["pipelines"]["orders"]["ok"] is True
    marks = {row.label: row.good for _, rows in report.sections() for row in rows if row.good is not None}
    assert marks == {label: name != error for name, (label, _) in ERRORS.items()} | {"order_summary": True}


@pytest.mark.parametrize(
    ("error", "applied"),
    [
        ("missing", {"a": ["a1"]}),
        ("twice", {"a": ["a1", "a2", "a2"]}),
        ("phantom", {"a": ["a1", "a2"], "b": ["b1"]}),
        ("out_of_order", {"a": ["a2", "a1"]}),
    ],
)
def test_each_error_of_the_projection_is_reported_with_exit_code_1(error: str, applied: Histories) -> None:
    report = report_on(check_delivery(WRITTEN, records("a1", "a2"), DEAD_LETTERS), applied)
    assert report.exit_code == 1
    assert f"1 {MISAPPLIED[error]} in the projection order_summary (such as " in report.meaning()
    reported = report.as_json()
    assert reported["ok"] is reported["projections"]["order_summary"]["ok"] is False
    assert all(pipeline["ok"] for pipeline in reported["pipelines"].values())
    assert len(reported["projections"]["order_summary"]["wrong"][error]) == 1
    (row,) = (row for _, rows in report.sections() for row in rows if row.label == "order_summary")
    assert row.good is False
    assert f"{MISAPPLIED[error]} 1" in row.remark


def test_a_backward_position_is_an_error() -> None:
    report = report_on(OracleVerdict(positions=["(2, 0, 0) after (3, 0, 0)"]))
    assert report.exit_code == 1


def test_every_kind_of_error_has_a_label() -> None:
    assert set(ERRORS) == {name for name, value in vars(OracleVerdict()).items() if isinstance(value, list)}


@pytest.mark.parametrize(("millis", "text"), [(0.4, "0 ms"), (999.0, "999 ms"), (1000.0, "1.0 s"), (1449.0, "1.4 s")])
def test_durations(millis: float, text: str) -> None:
    assert seconds(millis) == text
