"""The queue of delivery marks: what a committed batch leaves in it, its bound, and that the publisher never fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.dlq.parked_keys import waiting_record
from tailrace.dlq.record import dead_letter
from tailrace.errors import Reason, Rejected, SourceUnavailable, TailraceError
from tailrace.event import Column, OutboxEvent, Record, Row
from tailrace.kafka.client import KafkaOptions
from tailrace.pipeline.batch import Batch
from tailrace.positions.base import Position
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.worker.marks import marker as module
from tailrace.worker.marks.marker import DeliveryMarker
from tailrace.worker.marks.store import Changes, Probe

KAFKA = KafkaOptions("localhost:1", "orders", dead_letter_topic="orders.dead-letters")
POSITION = LsnPosition(LogIdentity("1", 1, "shop", "s", "public.outbox", ""), 16, 0)
EVENT = OutboxEvent("e-2", "OrderPlaced", "order", b"k", b"{}", None, "0/10:2", 1, [])


def marker(*, rows: bool = True) -> DeliveryMarker:
    return DeliveryMarker(
        None,  # type: ignore[arg-type] - no thread runs
        KAFKA,
        rows=rows,
        id_column="id",
        stored=lambda: POSITION,
        warn=lambda _: None,
    )


def record(event: str) -> Record:
    return Record("orders", b"{}", None, [("id", event), ("type", "OrderPlaced")], 0)


def batch(*records: Record) -> Batch:
    made = Batch(POSITION)
    for each in records:
        made.add(each)
    return made


def letter(event: OutboxEvent | None) -> Record:
    row = Row((Column("id", 25), Column("payload", 25)), (b"e-3", b"\xff"), "0/10:3", 1)
    return dead_letter(
        row,
        event,
        "orders",
        Rejected(Reason.POISON_MESSAGE, "it is bad"),
        letter_topic=KAFKA.dead_letter_topic,
        pipeline="orders",
        limit_bytes=1000,
    )


def test_events_dead_letters_and_waiting_events_are_told_apart() -> None:
    queue = marker()
    mixed = batch(record("e-1"), letter(EVENT), letter(None), waiting_record(KAFKA, EVENT))
    mixed.other_records = 1
    queue.committed(mixed)
    found = queue._queue
    assert found.published == found.released == ["e-1"]
    assert [(each.event_id, each.reason) for each in found.undelivered] == [
        ("e-2", "poison_message"), ("e-3", "poison_message"), ("e-2", "waiting"),
    ]  # fmt: skip
    assert "it is bad" in found.undelivered[0].error


def test_a_watermark_needs_no_ids_of_published_events() -> None:
    queue = marker(rows=False)
    queue.committed(batch(record("e-1")))
    assert queue._queue.size == 0
    assert queue._batches == 1


def test_the_queue_is_bounded_and_strange_records_do_not_fail_the_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUED", 2)
    queue = marker()
    queue.committed(batch(record("e-1"), record("e-2")))
    assert not queue._overflowed
    queue.committed(batch(record("e-3")))
    assert (queue._overflowed, queue._queue.size) == (True, 0)
    queue = marker()
    queue.committed(batch(Record("orders", b"", None, [], 0)))
    assert queue._overflowed


def test_an_error_is_reported_once_although_rounds_between_its_repetitions_succeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search for rows without marks that fails is repeated only after a new probe."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.0, 0.0))
    reported: list[TailraceError] = []
    queue = DeliveryMarker(
        Searching(),  # type: ignore[arg-type] - what a round needs
        KAFKA,
        rows=True,
        id_column="id",
        stored=lambda: POSITION,
        warn=reported.append,
    )
    rounds = iter(range(20))

    def tick() -> None:
        number = next(rounds, None)
        if number is None:
            queue._leaving.set()
        elif number % 2:
            raise SourceUnavailable("the table is locked")

    monkeypatch.setattr(queue, "_tick", tick)
    queue.start(POSITION)
    queue._thread.join(10)
    assert [error.what for error in reported] == ["the table is locked"]


class Searching:
    def close(self) -> None: ...


class Recording:
    """Remembers which events and positions it is asked to store."""

    has_watermark = False

    def __init__(self) -> None:
        self.written: list[tuple[list[str], Position | None]] = []

    def open(self, _began: Position) -> bool:
        return True

    def has_undelivered(self) -> bool:
        return False

    def retry_unseen(self) -> None: ...

    def write(self, changes: Changes, position: Position | None, _passed: Probe | None) -> None:
        self.written.append((changes.published, position))


def test_the_position_follows_marks_of_events_that_were_committed_after_it_was_read() -> None:
    """The first round reads the position, connects, and takes the queue: events are committed meanwhile."""
    later = replace(POSITION, lsn=32)
    store = Recording()

    def stored() -> LsnPosition:
        if not store.written:
            queue.committed(batch(record("e-1")))
            return POSITION
        return later

    queue = DeliveryMarker(
        store,  # type: ignore[arg-type] - what a round needs
        KAFKA,
        rows=True,
        id_column="id",
        stored=stored,
        warn=lambda _: None,
    )
    queue._began = POSITION
    for _ in range(4):
        queue._tick()
    assert store.written == [(["e-1"], POSITION), ([], later)]
