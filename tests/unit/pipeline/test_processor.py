"""Tests of processor.py: the steps for each event, and events that cannot be published."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import Halted, Reason, Rejected
from tailrace.event import Column, OutboxEvent, Record, Route, Row, redriven_position
from tailrace.pipeline.batch import Batch
from tailrace.pipeline.processor import EventProcessor

INVALID = Reason.SCHEMA_VALIDATION_FAILED


class FakeLayout:
    def read(self, row: Row) -> OutboxEvent:
        name, key = (value or b"" for value in row.values)
        if name == b"unreadable":
            raise Rejected(Reason.POISON_MESSAGE, "unreadable")
        return OutboxEvent(name.decode(), "T", "order", key, name, None, row.position, 5, [])


class FakeParking:
    def __init__(self) -> None:
        self.keys: dict[tuple[str, bytes], object] = {}

    def wait(self, event: OutboxEvent) -> Record:
        return Record("waiting", event.payload, event.key, [], 5)

    def park(self, event: OutboxEvent, letter: Record) -> list[Record]:
        self.keys[event.aggregate, event.key or b""] = None
        return [letter, Record("parked", None, event.key, [], 5)]


def validate(event: OutboxEvent, topic: str) -> Any:
    if event.payload == b"invalid":
        raise Rejected(INVALID, f"invalid for {topic}")
    return None, None


def processor(**options: Any) -> EventProcessor:
    given: dict[str, Any] = {"halt_on": frozenset(), "batch_records": 10, "batch_bytes": 1000, **options}
    return EventProcessor(
        FakeLayout(),  # type: ignore[arg-type]
        lambda _: Route("orders"),
        validate,
        lambda event, to, _: Record(to.topic, event.payload, event.key, [], 5),
        lambda row, event, topic, rejected: Record("dead", rejected.reason.value.encode(), None, [("t", topic)], 5),
        **given,
    )


def rows(*names: str) -> list[Row]:
    columns = (Column("id", 25), Column("key", 25))
    return [Row(columns, (name.encode(), b"k"), f"0/1:{at}", 5) for at, name in enumerate(names, 1)]


def processed(of: EventProcessor, parking: FakeParking | None, *names: str) -> tuple[list[tuple[str, Any]], Batch]:
    batch = Batch(None)  # type: ignore[arg-type]
    of.process(rows(*names), batch, parking)  # type: ignore[arg-type]
    return [(record.topic, record.value) for record in batch.records], batch


def test_rows_become_records_in_their_order() -> None:
    records, batch = processed(processor(), None, "a", "b")
    assert records == [("orders", b"a"), ("orders", b"b")]
    assert (batch.topics, batch.dead_letters, batch.other_records) == ({"orders"}, 0, 0)


def test_a_rejected_event_becomes_a_dead_letter_and_the_rest_is_published() -> None:
    records, batch = processed(processor(), None, "unreadable", "invalid", "a")
    assert [topic for topic, _ in records] == ["dead", "dead", "orders"]
    assert [record.headers for record in batch.records[:2]] == [[("t", None)], [("t", "orders")]]
    assert (batch.dead_letters, batch.other_records) == (2, 0)


def test_a_reason_whose_policy_is_halt_stops_the_pipeline() -> None:
    with pytest.raises(Halted) as raised:
        processed(processor(halt_on=frozenset({INVALID})), None, "a", "invalid")
    assert "the event invalid at 0/1:2" in raised.value.what


def test_later_events_of_a_parked_key_wait() -> None:
    parking = FakeParking()
    records, batch = processed(processor(park_on=frozenset({INVALID})), parking, "a", "invalid", "b", "unreadable")
    assert [topic for topic, _ in records] == ["orders", "dead", "parked", "waiting", "dead"]
    assert (batch.dead_letters, batch.other_records) == (2, 2)


def test_an_event_that_its_topic_refuses_becomes_a_dead_letter_even_if_its_key_is_parked() -> None:
    parking = FakeParking()
    parking.keys["order", b"k"] = None
    of = processor(refused={"0/1:1": "too large"})
    records, _ = processed(of, parking, "a", "b")
    assert [topic for topic, _ in records] == ["dead", "waiting"]
    event = FakeLayout().read(rows("a")[0])
    with pytest.raises(Rejected):
        of.record_of_waiting(event)
    assert of.record_of_redriven(event).value == b"a"


def test_a_refused_redrive_counts_once() -> None:
    event = FakeLayout().read(rows("a")[0])
    of = processor(refused={redriven_position("0/1:1"): "too large"})
    with pytest.raises(Rejected):
        of.record_of_redriven(event)
    assert of.record_of_redriven(event).value == b"a"


def test_decorations_apply_to_records_and_dead_letters_one_after_the_other() -> None:
    def marked(mark: str) -> Any:
        return lambda made, source: made._replace(headers=[*made.headers, (mark, source.position)])

    of = processor(park_on=frozenset({INVALID})).decorated(marked("first"), marked("first"))
    of = of.decorated(marked("second"), marked("second"), parks=False)
    _, batch = processed(of, FakeParking(), "a", "invalid", "b")
    assert [record.headers[-2:] for record in batch.records] == [
        [("first", f"0/1:{at}"), ("second", f"0/1:{at}")] for at in (1, 2, 3)
    ]
    assert batch.other_records == 0


def test_validation_is_measured_for_the_first_row_of_a_batch() -> None:
    measured: list[float] = []
    timed = processor(validated=measured.append)
    batch = Batch(None)  # type: ignore[arg-type]
    timed.process([], batch)
    assert not measured
    timed.process(rows("a", "b", "c"), batch)
    timed.process(rows("invalid", "d"), batch)
    assert len(measured) == 1
    timed.process(rows("invalid"), Batch(None))  # type: ignore[arg-type]
    assert len(measured) == 2
    assert all(seconds >= 0 for seconds in measured)
    assert [record.value for record in batch.records if record.topic == "orders"] == [b"a", b"b", b"c", b"d"]
    assert batch.dead_letters == 1
