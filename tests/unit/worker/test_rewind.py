"""Which records of a pipeline that was set back are marked."""

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
from tailrace.worker.rewind import followed, rewound

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


def marks(processor: EventProcessor, place: str) -> tuple[bool, bool]:
    """Whether a record and a letter of that place are marked."""
    event = OutboxEvent("e", "t", "a", b"k", b"", None, place, 0, [])
    rejected = Rejected(Reason.POISON_MESSAGE, "")
    written = (
        processor.make_record(event, Route("t"), cast(Any, None)),
        processor.make_dead_letter(Row((), (), place, 0), event, "t", rejected),
    )
    return MARK in written[0].headers, MARK in written[1].headers


@pytest.mark.parametrize(("place", "marked"), [("0/150:1", True), ("0/1FF:3", True), ("0/200:1", False)])
def test_up_to_where_it_was(place: str, marked: bool) -> None:
    assert marks(rewound(PROCESSOR, LsnPosition(LOG, 0x120, 0), REWIND, parks=False), place) == (marked, marked)


def test_nothing_to_mark_costs_nothing() -> None:
    assert rewound(PROCESSOR, LsnPosition(LOG, 0x200, 0), REWIND, parks=False) is PROCESSOR
    assert rewound(PROCESSOR, LsnPosition(LOG, 0x120, 0), None, parks=False) is PROCESSOR
    assert rewound(PROCESSOR, None, REWIND, parks=False) is PROCESSOR


def test_what_waits_is_marked_when_it_comes_later() -> None:
    assert marks(rewound(PROCESSOR, LsnPosition(LOG, 0x300, 0), REWIND, parks=True), "0/150:1") == (True, True)


@pytest.mark.parametrize("stored", [LsnPosition(replace(LOG, system_id="8"), 0x120, 0), TOKEN])
def test_a_rewind_in_another_log_is_over(stored: LsnPosition | TokenPosition) -> None:
    assert rewound(PROCESSOR, stored, REWIND, parks=True) is PROCESSOR


def test_after_a_failover_it_ends_where_the_source_says() -> None:
    """On the server's timeline, on which the pipeline is by then."""
    stored = LsnPosition(replace(LOG, timeline=2), 0x120, 0)
    source = PostgresSource(PostgresOptions("", "outbox", "s", "p"), wake=Wakeup())
    source.until = replace(REWIND.until, log=stored.log)
    assert marks(rewound(PROCESSOR, stored, followed(REWIND, source), parks=False), "0/150:1") == (True, True)
    source.until = REWIND.until
    assert rewound(PROCESSOR, stored, followed(REWIND, source), parks=False) is PROCESSOR, "it is no place in this log"
    assert followed(None, source) is None


def test_a_rewind_comes_back_as_it_was() -> None:
    options = KafkaOptions("localhost:9092", "orders")
    written = rewind_marker.record(options, REWIND)
    assert written.key == b"orders/rewind"
    assert rewind_marker.parse(options, written.value or b"") == REWIND
