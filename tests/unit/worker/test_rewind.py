"""Tests of rewind.py: which records of a rewound pipeline are marked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent, Record, Route, Row
from tailrace.kafka.client import KafkaOptions
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.source import PostgresSource
from tailrace.state import rewind_marker
from tailrace.state.rewind_marker import HEADER, Rewind
from tailrace.wakeup import Wakeup
from tailrace.worker.rewind import on_current_timeline, with_rewind_header

LOG = LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3")
TOKEN = TokenPosition(StreamIdentity("rs", "shop", {}, "f"), {"_data": "82"}, ClusterTime(1, 1), 0)
REWIND = Rewind("r1", LsnPosition(LOG, 0x100, 0), LsnPosition(LOG, 0x200, 0), 0)
MARK = (HEADER, "r1")


def made(topic: str) -> Record:
    return Record(topic, b"", b"k", [("id", "e")], 0)


PROCESSOR = EventProcessor(
    layout=cast(Any, None),
    route=lambda _: Route("t"),
    validate=cast(Any, None),
    make_record=lambda *_: made("t"),
    make_dead_letter=lambda *_: made("letters"),
    halt_on=frozenset(),
    batch_records=1,
    batch_bytes=1,
)


def processor_from(
    lsn: int, rewind: Rewind | None = REWIND, *, parks: bool = False, log: LogIdentity = LOG
) -> EventProcessor:
    return with_rewind_header(PROCESSOR, LsnPosition(log, lsn, 0), rewind, parks=parks)


def marks(processor: EventProcessor, position: str) -> tuple[bool, bool]:
    """Returns whether a record and a dead letter with that position are marked."""
    event = OutboxEvent("e", "t", "a", b"k", b"", None, position, 0, [])
    rejected = Rejected(Reason.POISON_MESSAGE, "")
    written = (
        processor.make_record(event, Route("t"), (None, None)),
        processor.make_dead_letter(Row((), (), position, 0), event, "t", rejected),
    )
    return MARK in written[0].headers, MARK in written[1].headers


@pytest.mark.parametrize(("position", "marked"), [("0/150:1", True), ("0/1FF:3", True), ("0/200:1", False)])
def test_events_before_the_end_of_the_rewind_are_marked(position: str, marked: bool) -> None:
    assert marks(processor_from(0x120), position) == (marked, marked)


def test_a_processor_without_events_to_mark_is_unchanged() -> None:
    assert processor_from(0x200) is PROCESSOR
    assert processor_from(0x120, None) is PROCESSOR
    assert with_rewind_header(PROCESSOR, None, REWIND, parks=False) is PROCESSOR


def test_waiting_events_are_marked_when_they_are_published_later() -> None:
    assert marks(processor_from(0x300, parks=True), "0/150:1") == (True, True)


@pytest.mark.parametrize("stored", [LsnPosition(replace(LOG, system_id="8"), 0x120, 0), TOKEN])
def test_a_rewind_in_another_log_is_ignored(stored: LsnPosition | TokenPosition) -> None:
    assert with_rewind_header(PROCESSOR, stored, REWIND, parks=True) is PROCESSOR


def test_after_a_failover_the_rewind_ends_on_the_new_timeline() -> None:
    log = replace(LOG, timeline=2)
    source = PostgresSource(PostgresOptions("", "outbox", "s", "p"), wakeup=Wakeup())
    source.until = replace(REWIND.until, log=log)
    assert marks(processor_from(0x120, on_current_timeline(REWIND, source), log=log), "0/150:1") == (True, True)
    source.until = REWIND.until
    assert processor_from(0x120, on_current_timeline(REWIND, source), log=log) is PROCESSOR, "it is in another log"
    assert on_current_timeline(None, source) is None


def test_a_stored_rewind_is_read_back_unchanged() -> None:
    options = KafkaOptions("localhost:9092", "orders")
    written = rewind_marker.record(options, REWIND)
    assert written.key == b"orders/rewind"
    assert rewind_marker.parse(options, written.value or b"") == REWIND
