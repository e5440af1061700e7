"""Runs beside Debezium: publishes the same events to shadow topics, and compares them with Debezium's records.

Nothing of Debezium is touched: the log is read through a temporary copy of its slot (MongoDB: a change stream), which
ends with the session, and everything in Kafka has a prefix of its own: events, dead letters and positions. It is
deleted at the end. What a killed run leaves behind are topics with that prefix; the next run deletes them first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from tailrace.debezium_import.compare import (
    NOT_PUBLISHABLE,
    ONLY_DEBEZIUM_TWICE,
    ONLY_SHADOW,
    ORDER,
    Comparison,
    SeenRecord,
    event_id_of,
    seen_record,
)
from tailrace.debezium_import.offset import DebeziumOffset
from tailrace.debezium_import.outbox_log import LogRow, OutboxLog, open_log
from tailrace.debezium_import.published_ids import SKEW_MS, record_time
from tailrace.errors import Halted, Rejected
from tailrace.event import Record
from tailrace.kafka.publisher import Publisher
from tailrace.kafka.reader import OffsetRange, RangeReader, Ranges
from tailrace.kafka.topic_manager import TopicManager
from tailrace.kafka.topics import delete_topics, partition_counts
from tailrace.pipeline.batch import Batch
from tailrace.routing.specs import TopicSpec
from tailrace.state import offsets
from tailrace.state.stored_state import StoredState
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import Wiring

PREFIX = "tailrace-shadow."
BATCH_RECORDS = 1000
MOST_EVENTS = 100_000
"""More are not compared: the records are kept in memory, and a sample this large decides."""
PAUSE_SECONDS = 0.5


@dataclass(slots=True)
class ShadowResult:
    """`cleaned` are topics that a killed run had left. `truncated`: there were more events than are compared."""

    comparison: Comparison = field(default_factory=Comparison)
    topics: list[str] = field(default_factory=list)
    cleaned: list[str] = field(default_factory=list)
    truncated: bool = False


class ShadowRun:
    """One run beside Debezium."""

    def __init__(self, wiring: Wiring, offset: DebeziumOffset, *, timestamp: str | None) -> None:
        """`timestamp` is the column from which Debezium's router takes the timestamp of a record."""
        self._wiring = wiring
        self._offset = offset
        self._timestamp = timestamp
        pipeline = wiring.settings.pipeline
        self._prefix = f"{PREFIX}{pipeline}."
        self._options = replace(
            wiring.kafka,
            pipeline=f"{PREFIX}{pipeline}",
            exactly_once=True,
            offsets_topic=f"{self._prefix}.offsets",
            dead_letter_topic=f"{self._prefix}.dead-letters",
        )
        self._processor = wiring.processor()
        self._earliest_ms: int | None = time.time_ns() // 1_000_000 - SKEW_MS
        self._names: dict[str, str] = {}
        self._result = ShadowResult()
        self._wakeup = Wakeup()

    def run(self, seconds: float, patience: float, on_progress: Callable[[str], None] = lambda _: None) -> ShadowResult:
        """Publishes for `seconds`, then waits up to `patience` until Debezium has published the same events."""
        admin = self._wiring.admin()
        self._result.cleaned = self._clean(admin)
        log = open_log(self._wiring, self._offset, self._wakeup)
        try:
            on_progress("publishing to shadow topics")
            expected = self._publish(log, admin, time.monotonic() + seconds)
            on_progress(f"comparing {len(expected):,} events")
            self._compare(expected, time.monotonic() + patience)
        finally:
            log.close()
            self._clean(admin)
        return self._result

    def _clean(self, admin: offsets.Admin) -> list[str]:
        """Deletes the topics of this shadow; returns their names."""
        left = sorted(topic for topic in partition_counts(admin) if topic.startswith(self._prefix))
        if left:
            delete_topics(admin, left)
        return left

    def _publish(self, log: OutboxLog, admin: offsets.Admin, until: float) -> dict[tuple[str, str], int]:
        """Publishes the events of the log; returns their topics and ids, with their number in the log."""
        offsets.ensure(self._options, admin)
        topics = _ShadowTopics(
            admin, {}, TopicSpec("", 1, -1), self._wiring.partitions, self._wiring.limits, create=True
        )
        topics.originals = self._names
        publisher = Publisher(self._options, topics, StoredState(self._options), wakeup=self._wakeup)
        expected: dict[tuple[str, str], int] = {}
        try:
            publisher.open()
            batch = Batch(log.start)
            for each in self._rows(log, until):
                records = self._records(each)
                if records is not None:
                    event_id, topic, made = records
                    expected.setdefault((topic, event_id), len(expected))
                    batch.add(made)
                    batch.position = each.position
                if len(batch.records) >= BATCH_RECORDS:
                    batch = _submit(publisher, batch)
                if len(expected) >= MOST_EVENTS:
                    self._result.truncated = True
                    break
            _submit(publisher, batch)
        finally:
            publisher.close()
        self._result.topics = sorted(self._names.values())
        return expected

    def _rows(self, log: OutboxLog, until: float) -> Iterator[LogRow]:
        while True:
            yield from log.rows()
            if time.monotonic() >= until:
                return
            time.sleep(PAUSE_SECONDS)
            log.extend()

    def _records(self, each: LogRow) -> tuple[str, str, Record] | None:
        """Returns id, topic and shadow record of a row; None if it cannot be published, which is noted."""
        batch = Batch(each.position)
        try:
            event = self._processor.layout.read(each.row)
            topic = self._wiring.route(event).topic
        except Rejected:
            self._result.comparison.note(NOT_PUBLISHABLE, each.row.position)
            return None
        at_ms = record_time(event, self._timestamp)
        self._earliest_ms = None if at_ms is None or self._earliest_ms is None else min(self._earliest_ms, at_ms)
        try:
            self._processor.process([each.row], batch)
        except Halted:
            pass
        made = batch.records[0] if batch.records else None
        if made is None or made.topic != topic:
            self._result.comparison.note(NOT_PUBLISHABLE, event.id)
            return None
        shadow = self._prefix + topic
        self._names[shadow] = topic
        return event.id, topic, made._replace(topic=shadow)

    def _compare(self, expected: dict[tuple[str, str], int], deadline: float) -> None:
        comparison = self._result.comparison
        comparison.events = len(expected)
        ours: dict[tuple[str, str], SeenRecord] = {}
        with RangeReader(self._options, "shadow") as reader:
            for shadow, topic in self._names.items():
                with closing(reader.records(shadow, reader.ranges(shadow, include_open=True))) as messages:
                    for message in messages:
                        ours[topic, event_id_of(message) or ""] = seen_record(message)
            self._compare_live(reader, expected, ours, deadline)
        for _, event_id in ours:
            comparison.note(ONLY_SHADOW, event_id)

    def _compare_live(
        self,
        reader: RangeReader,
        expected: dict[tuple[str, str], int],
        ours: dict[tuple[str, str], SeenRecord],
        deadline: float,
    ) -> None:
        """Reads Debezium's topics until every event was found; takes found ones out of `ours`."""
        comparison = self._result.comparison
        last: dict[tuple[str, bytes | None], int] = {}
        read: dict[str, dict[int, int]] = {}
        while True:
            for topic in self._result.topics:
                ranges = self._new(reader, topic, read.setdefault(topic, {}))
                with closing(reader.records(topic, ranges)) as messages:
                    for message in messages:
                        place = topic, event_id_of(message) or ""
                        number = expected.get(place)
                        if number is None:
                            continue
                        copy = ours.pop(place, None)
                        if copy is None:
                            comparison.note(ONLY_DEBEZIUM_TWICE, place[1])
                            continue
                        theirs = seen_record(message)
                        comparison.compare(place[1], copy, theirs)
                        key = topic, theirs.key
                        if theirs.key is not None and number < last.get(key, -1):
                            comparison.note(ORDER, place[1])
                        last[key] = max(number, last.get(key, -1))
            if not ours or time.monotonic() >= deadline:
                return
            time.sleep(PAUSE_SECONDS)

    def _new(self, reader: RangeReader, topic: str, read: dict[int, int]) -> Ranges:
        """Returns what was not read yet of a topic, and notes it as read."""
        bounds = reader.bounds(topic, since_ms=None if read else self._earliest_ms)
        ranges = {n: OffsetRange(max(each.start, read.get(n, 0)), each.end) for n, each in bounds.items()}
        read.update({number: each.end for number, each in bounds.items()})
        return ranges


class _ShadowTopics(TopicManager):
    """Creates each shadow topic with as many partitions as its original, so that keys go to the same ones."""

    originals: dict[str, str]

    def require(self, topics: list[str], alive: Callable[[], None] = lambda: None) -> None:
        new = [topic for topic in topics if topic not in self.known and topic in self.originals]
        if new:
            counts = partition_counts(self._admin)
            for topic in new:
                self._specs[topic] = TopicSpec(topic, counts.get(self.originals[topic], 1), -1)
        super().require(topics, alive)


def _submit(publisher: Publisher, batch: Batch) -> Batch:
    publisher.submit(batch)
    while not publisher.wait(1.0):
        pass
    return Batch(batch.position)
