"""An id on Kafka counts as the event of a row only if it may have had this payload."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from tailrace.errors import Reason, RecoveryUncertain, Rejected
from tailrace.event import Column, OutboxEvent, Route, Row
from tailrace.positions.first_read import LEFT_OUT, UNCERTAIN
from tailrace.recovery.row_filter import RowFilter
from tailrace.recovery.rules import LONG_MS, SKEW_MS, DecisionRules, RowDecision
from tailrace.verify.fingerprints import UNCOMPARED, Fingerprint, of_payload

LOST = 1_000 * LONG_MS
LONG_AGO, SHORTLY, AFTER = LOST - LONG_MS - 1, LOST - 1, LOST + SKEW_MS + 1
NOW, ALL = DecisionRules(until_ms=LOST, at_end=True), DecisionRules(until_ms=LOST, at_end=True, from_beginning=True)
PAYLOAD = b'{"mine":1}'
MINE, OTHER = of_payload(PAYLOAD), of_payload(b'{"of another pipeline":1}')
ROW = Row((Column("id", 20), Column("payload", 114)), (b"42", PAYLOAD), "0/1:t1", LOST)


class Layout:
    def __init__(self, *, readable: bool) -> None:
        self._readable = readable

    def read(self, row: Row) -> OutboxEvent:
        if not self._readable:
            raise Rejected(Reason.POISON_MESSAGE, "it cannot be read")
        return OutboxEvent("42", "OrderPlaced", "order", b"k", PAYLOAD, None, row.position, row.committed_ms, [])


class DeadLetter:
    headers = (("tailrace.payload.sha256", "ab"),)


class Orders:
    """A stand-in for the processor."""

    def __init__(self, *, readable: bool = True) -> None:
        self.layout = Layout(readable=readable)

    def route(self, event: OutboxEvent) -> Route:
        return Route("orders")

    def make_dead_letter(self, *_: object) -> DeadLetter:
        return DeadLetter()


class Kafka:
    """What Kafka holds under id 42; `deeper` is found only by reading from the beginning."""

    def __init__(self, *found: Fingerprint, deeper: tuple[Fingerprint, ...] = (), kept_since: float = 0) -> None:
        self._found, self._deeper, self.kept_since = list(found), deeper, kept_since

    def find(self, name: str, event: OutboxEvent | None) -> list[Fingerprint]:
        assert name in ("42", "row ab")
        return self._found

    def differs(self, event: OutboxEvent, seen: list[Fingerprint]) -> bool:
        return all(each not in (UNCOMPARED, of_payload(event.payload)) for each in seen)

    def covers(self, created_ms: int | None) -> bool:
        return not self._deeper

    def read_from_beginning(self) -> None:
        self._found, self._deeper = [*self._found, *self._deeper], ()


def decision(
    kafka: Kafka, rules: DecisionRules = NOW, at_ms: int = SHORTLY, *, restored: bool = False, readable: bool = True
) -> RowDecision:
    processor: Any = Orders(readable=readable)
    seen: Any = kafka
    row_filter = RowFilter(processor, seen, rules, "letters", restored)
    kept = row_filter.accept(ROW, 1, at_ms)
    ((found, times),) = row_filter.tally.decisions.items()
    assert times == 1
    assert kept == (found is RowDecision.MISSED)
    return found


@pytest.mark.parametrize("restored", [False, True])
def test_a_payload_that_may_be_its_own_was_published(restored: bool) -> None:
    assert decision(Kafka(MINE), restored=restored) is RowDecision.PUBLISHED
    assert decision(Kafka(OTHER, MINE), restored=restored) is RowDecision.PUBLISHED
    assert decision(Kafka(OTHER, UNCOMPARED), restored=restored) is RowDecision.PUBLISHED
    assert decision(Kafka(), restored=restored) is RowDecision.MISSED


def test_only_other_events_with_its_id_are_on_kafka() -> None:
    """Published by another pipeline or collection, or before the row was changed: a person must decide."""
    assert decision(Kafka(OTHER)) is RowDecision.UNDECIDED
    assert decision(Kafka(OTHER), ALL, AFTER) is RowDecision.UNDECIDED
    assert decision(Kafka(OTHER), restored=True) is RowDecision.REUSED


def test_files_outside_of_the_time_are_not_read() -> None:
    assert decision(Kafka(OTHER), NOW, LONG_AGO) is RowDecision.EARLIER
    assert decision(Kafka(OTHER, kept_since=inf), ALL, LONG_AGO) is RowDecision.EARLIER
    for restored in (False, True):
        assert decision(Kafka(OTHER), DecisionRules(since_ms=LOST), SHORTLY, restored=restored) is RowDecision.OLDER
    assert decision(Kafka(OTHER), NOW, LONG_AGO, restored=True) is RowDecision.REUSED


def test_other_events_with_its_id_make_topics_be_read_whole() -> None:
    assert decision(Kafka(OTHER, deeper=(MINE,))) is RowDecision.PUBLISHED
    assert decision(Kafka(OTHER, deeper=(OTHER,))) is RowDecision.UNDECIDED
    assert decision(Kafka(deeper=(MINE,))) is RowDecision.PUBLISHED


def test_a_row_that_cannot_be_decoded_is_found_by_its_hash() -> None:
    assert decision(Kafka(OTHER), readable=False) is RowDecision.PUBLISHED
    assert decision(Kafka(), readable=False) is RowDecision.MISSED


def test_the_error_names_the_row() -> None:
    processor: Any = Orders()
    seen: Any = Kafka(OTHER)
    with pytest.raises(RecoveryUncertain, match=r"not known whether .*\(42\)") as refusal:
        RowFilter(processor, seen, NOW, "letters", strict=True).accept(ROW, 1, SHORTLY)
    assert "other payloads" in refusal.value.why
    with pytest.raises(RecoveryUncertain, match=r"other events were published \(42\)"):
        RowFilter(processor, seen, NOW, "letters", restored=True, strict=True).accept(ROW, 1, SHORTLY)


@pytest.mark.parametrize(
    ("transaction", "kafka", "rules", "expected"),
    [
        (LEFT_OUT, Kafka(), replace(ALL, is_selected=True), RowDecision.LEFT_OUT),
        (UNCERTAIN, Kafka(), replace(ALL, is_selected=True), RowDecision.UNDECIDED),
        (UNCERTAIN, Kafka(), replace(ALL, is_selected=True, passed=5000), RowDecision.UNDECIDED),
        (UNCERTAIN, Kafka(deeper=(MINE,)), replace(ALL, is_selected=True), RowDecision.PUBLISHED),
        (UNCERTAIN, Kafka(), replace(ALL, is_selected=True, since_ms=AFTER), RowDecision.OLDER),
        (UNCERTAIN, Kafka(), replace(ALL, is_selected=True, since_ms=LONG_AGO), RowDecision.MISSED),
        (LEFT_OUT, Kafka(), ALL, RowDecision.MISSED),
        (7, Kafka(), replace(ALL, is_selected=True), RowDecision.MISSED),
    ],
)
def test_rows_that_the_first_read_left_out_are_not_published(
    transaction: int, kafka: Kafka, rules: DecisionRules, expected: RowDecision
) -> None:
    processor: Any = Orders()
    seen: Any = kafka
    row_filter = RowFilter(processor, seen, rules, "letters")
    assert row_filter.accept(ROW, transaction, SHORTLY) == (expected is RowDecision.MISSED)
    assert list(row_filter.tally.decisions) == [expected]
