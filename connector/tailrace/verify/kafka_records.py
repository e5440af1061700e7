"""Collects facts about everything that Kafka holds of a pipeline: records, dead letters and waiting events.

Only committed records are read, up to the end of the topic at that time, including open transactions. A topic can be
read on from where reading ended. Nothing here commits offsets, joins a group or creates a topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange, RangeReader, Ranges
from tailrace.kafka.tail import ClusterObserver
from tailrace.kafka.topics import topic_config, topic_retention
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.state.offsets import Admin
from tailrace.verify.backend import Window
from tailrace.verify.dead_letters import DeadLetterFacts
from tailrace.verify.findings import (
    AGAIN,
    ORDER,
    PUBLISHED,
)
from tailrace.verify.fingerprints import RecordFingerprinter
from tailrace.verify.placement import Order
from tailrace.verify.retention import RetainedRange, Retention
from tailrace.verify.spill import FactSink
from tailrace.verify.topic_scan import PartitionScan, Scan, ScanResult

MARGIN_MS = 3_600_000
"""How far outside of the window records are searched: clocks differ, and a commit takes time."""


class RecordOrigin(NamedTuple):
    """The pipeline that published a record. `pipeline` is None on records of earlier versions."""

    pipeline: str | bytes | None
    topic: str
    key: bytes | None
    type: str | bytes | None
    position: bytes | None
    timestamp: str | bytes | None = None


class TopicReading(Protocol):
    """Reads partitions of topics. The facts are complete only after `finish`."""

    def start(self, parts: Sequence[PartitionScan]) -> None: ...
    def finish(self) -> ScanResult: ...


class KafkaRecords:
    def __init__(
        self,
        kafka: KafkaOptions,
        fingerprinter: RecordFingerprinter,
        order_of: Callable[[str], Order | None],
        window: Window,
        spill: FactSink,
        reading: TopicReading | None = None,
    ) -> None:
        """Without `reading`, records are read in this process and added to `spill`."""
        self.topics: list[str] = []
        """Topics by the number they have in facts. Places, which are partitions of topics, are numbered as well."""
        self.places: list[tuple[str, int]] = []
        self.foreign = 0
        """Number of records without an event id, which no pipeline wrote."""
        self.kept: dict[str, RetainedRange] = {}
        """What each topic that was read has deleted."""
        self.kept_since: dict[str, float] = {}
        """The time since which each topic certainly keeps everything."""
        self.compacted: set[str] = set()
        self.letters = DeadLetterFacts(kafka, fingerprinter, window, spill, self._place)
        self._kafka = kafka
        self._window = window
        self._reading = reading or _ReadHere(kafka, fingerprinter, order_of, window, spill)
        self._started: list[PartitionScan] = []
        self._numbers: dict[str, int] = {}
        self._places: dict[tuple[str, int], int] = {}
        self._ends: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._reached: dict[str, dict[int, int]] = {}

    @property
    def is_bounded(self) -> bool:
        """Whether records before the window are left out."""
        return self._window.since_ms is not None

    def number(self, topic: str) -> int:
        found = self._numbers.get(topic)
        if found is None:
            found = self._numbers[topic] = len(self.topics)
            self.topics.append(topic)
        return found

    def existing(self, wanted: Callable[[str], bool]) -> dict[str, int]:
        """Returns the existing topics that `wanted` accepts, with their number of partitions."""
        return {name: count for name, count in ClusterObserver(self._kafka).look().topics.items() if wanted(name)}

    def begin_at(self, topic: str, starts: Mapping[int, int]) -> None:
        """Skips everything before these offsets: it is neither read nor missed if it was deleted."""
        self.expect(topic, starts)
        for number, start in starts.items():
            place = self._place(topic, number)
            self._begins[place] = self._ends[place] = start

    def expect(self, topic: str, ends: Mapping[int, int]) -> None:
        """Notes that the topic once reached these offsets. If it ends before them, it was deleted and created again."""
        known = self._reached.setdefault(topic, {})
        for number, end in ends.items():
            known[number] = max(end, known.get(number, 0))

    def read_all(self, topics: Callable[[], dict[str, int]], *, to_the_end: bool) -> None:
        """Reads waiting events, dead letters and the records of `topics` that were not read before.

        In this order: an event that is released or dead-lettered meanwhile is found at its new place. With
        `to_the_end`, records behind the window are read as well.
        """
        self.letters.read_waiting()
        self.letters.read_dead_letters()
        self.start(topics(), to_the_end=to_the_end)
        self.finish()

    def start(self, topics: dict[str, int], *, to_the_end: bool) -> None:
        """Starts reading up to the current ends of the topics; `finish` waits for the result."""
        admin = ClusterObserver(self._kafka).admin
        parts: list[PartitionScan] = []
        for topic, partitions in topics.items():
            with RangeReader(self._kafka, "dlq") as reader:
                there = reader.ranges(topic, include_open=True)
                held = self._in_window(reader, topic, there, to_the_end=to_the_end)
            if topic not in self.kept:
                self._look(admin, topic, partitions, there, held)
            kept = self.kept[topic]
            parts += [
                PartitionScan(topic, number, span, self._place(topic, number), kept.is_unread(number), partitions)
                for number, span in self._unread(topic, held).items()
            ]
        self._started = parts
        self._reading.start(parts)

    def read_earlier(self, topics: dict[str, int]) -> None:
        """Reads what lies before the window, since a row may have a later time than its commit."""
        parts: list[PartitionScan] = []
        for topic, partitions in topics.items():
            with RangeReader(self._kafka, "dlq") as reader:
                there = reader.ranges(topic, include_open=True)
            for number, span in there.items():
                place = self._place(topic, number)
                start, end = max(span.start, self._begins.get(place, 0)), self._starts.get(place, span.end)
                if start < end:
                    parts.append(PartitionScan(topic, number, OffsetRange(start, end), place, partitions=partitions))
                    self._starts[place], self._ends[place] = start, max(end, self._ends.get(place, 0))
        self._started = parts
        self._reading.start(parts)
        self.finish()

    def finish(self) -> None:
        result = self._reading.finish()
        self.foreign += result.foreign
        for topic, number, _, place, is_first, _ in self._started:
            # Without a first record, nothing shows up to which time records were deleted.
            if is_first and place in result.firsts:
                self.kept[topic].note(number, result.firsts[place], result.keys[place])
                self.kept_since[topic] = self.kept[topic].since
        self._started = []

    def _look(self, admin: Admin, topic: str, partitions: int, there: Ranges, held: Ranges) -> None:
        """Determines once what the topic has deleted of the records that would have been read."""
        starts, compacted = topic_retention(admin, topic, partitions)
        if compacted:
            self.compacted.add(topic)
        ends = {number: there[number].end if number in there else start for number, start in starts.items()}
        another = any(ends.get(number, 0) < end for number, end in self._reached.get(topic, {}).items())
        if another:
            for number in self._reached[topic]:
                place = self._place(topic, number)
                self._begins[place] = self._ends[place] = 0
        gone = {number: at for number, at in starts.items() if at > self._begins.get(self._place(topic, number), 0)}
        # Records outside of the window are not missed. An empty partition may have held some of the window.
        firsts = {n: inf for n, at in gone.items() if n not in there or (n in held and held[n].start <= at)}
        rule = Retention.of(topic_config(admin, topic) if firsts else {})
        now_ms = time.time_ns() // 1_000_000
        rules = {number: rule.keeps_since(now_ms, emptied=number not in there) for number in firsts}
        keeps_all = not (another or compacted)
        self.kept[topic] = RetainedRange(partitions, firsts, rules, by_age=rule.bytes < 0, keeps_all=keeps_all)
        self.kept_since[topic] = self.kept[topic].since

    def _in_window(self, reader: RangeReader, topic: str, spans: Ranges, *, to_the_end: bool) -> Ranges:
        """Returns all of the topic, or its part in the window."""
        since, until = self._window
        if since is not None:
            first = reader.ranges(topic, since_ms=since - MARGIN_MS)
            spans = {
                number: OffsetRange(first[number].start, span.end) for number, span in spans.items() if number in first
            }
        if until is not None and not to_the_end:
            behind = reader.ranges(topic, since_ms=until + MARGIN_MS)
            spans = {
                number: OffsetRange(span.start, behind[number].start) if number in behind else span
                for number, span in spans.items()
            }
        return spans

    def _unread(self, topic: str, spans: Ranges) -> Ranges:
        """Returns the spans that were not read before."""
        unread: Ranges = {}
        for number, span in spans.items():
            place = self._place(topic, number)
            start = max(span.start, self._ends.get(place, 0))
            if start < span.end:
                unread[number] = OffsetRange(start, span.end)
                self._starts.setdefault(place, start)
                self._ends[place] = span.end
        return unread

    def _place(self, topic: str, partition: int) -> int:
        found = self._places.get((topic, partition))
        if found is None:
            found = self._places[topic, partition] = len(self.places)
            self.places.append((topic, partition))
        return found


class _ReadHere:
    """Reads records in this process and adds them to the facts one by one."""

    def __init__(
        self,
        kafka: KafkaOptions,
        fingerprinter: RecordFingerprinter,
        order_of: Callable[[str], Order | None],
        window: Window,
        facts: FactSink,
    ) -> None:
        self._kafka = kafka
        self._fingerprinter = fingerprinter
        self._order_of = order_of
        self._window = window
        self._facts = facts
        self._parts: Sequence[PartitionScan] = ()

    def start(self, parts: Sequence[PartitionScan]) -> None:
        self._parts = parts

    def finish(self) -> ScanResult:
        scan = Scan(self._kafka, self._window, self._parts)
        add = self._facts.add
        topics = {part.place: part.topic for part in self._parts}
        for records in scan.batches():
            for name, value, headers, flags, place, offset, key, position, _ in records:
                event, said = name.decode(), dict(headers)
                origin = RecordOrigin(
                    said.get(PIPELINE_HEADER), topics[place], key, said.get("type"), position, said.get("timestamp")
                )
                add(
                    PUBLISHED,
                    event,
                    (event, *self._fingerprinter.of_record(value, headers), flags, place, offset, origin),
                )
                if key is not None and position is not None and not flags & AGAIN:
                    order = self._order_of(position.decode(errors="replace"))
                    if order is not None:
                        add(ORDER, key, (place, key, *order, event, offset))
        return scan.result
