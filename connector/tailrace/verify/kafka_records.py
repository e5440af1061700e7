"""What Kafka holds of a pipeline's events, put by fact for fact: records, dead letters, and what waits (parked keys).

Committed records only, up to the end that a topic has when it is looked at, open transactions included. A topic may be
read on from where it was left: what came meanwhile is added. Nothing here commits, joins a group or creates a topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple, Protocol

from tailrace.dlq import requests
from tailrace.dlq.dead_letter import FIRST, DeadLetter, DeadLetterId
from tailrace.dlq.parked_keys import entity_of, waiting_event, waiting_topic
from tailrace.dlq.reader import DeadLetterReader, Span, Spans
from tailrace.dlq.resolutions import PUBLISHED as PUBLISHED_ACTIONS
from tailrace.dlq.resolutions import Resolution, dead_letter_id_of, event_of, resolutions_topic
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver
from tailrace.kafka.topic_retention import topic_retention
from tailrace.kafka.topics import topic_config
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.state.offsets import Admin
from tailrace.verify.backend import Window
from tailrace.verify.compare import (
    AGAIN,
    DISCARDED,
    IS_ROW,
    LETTERS,
    ORDER,
    OUTSIDE,
    PUBLISHED,
    REDRIVEN,
    UNKNOWN,
    WAITING,
)
from tailrace.verify.position_order import Order
from tailrace.verify.retention import RetainedRange, Retention
from tailrace.verify.topic_scan import REPLAY, PartitionScan, Scan, ScanResult
from tailrace.verify.value_fingerprint import RecordFingerprints, of_payload

MARGIN_MS = 3_600_000
"""How much earlier and later than the window records are looked for: clocks differ, and a commit takes its time."""


def row_name(digest: str) -> str:
    """What stands for the id of a row that cannot be read: the hash that its letter has, too."""
    return f"row {digest}"


class RecordOrigin(NamedTuple):
    """What tells whose record it is; `pipeline` is None on records of earlier versions, which do not say it."""

    pipeline: str | bytes | None
    topic: str
    key: bytes | None
    type: str | bytes | None
    position: bytes | None
    timestamp: str | bytes | None = None


class FactSink(Protocol):
    """Where facts are put, by stream and name."""

    def add(self, stream: int, name: str | bytes, fact: tuple[Any, ...]) -> None: ...
    def clear(self, stream: int) -> None: ...


class TopicReading(Protocol):
    """Who reads parts of topics. Only `finish` promises that they have been read."""

    def start(self, parts: Sequence[PartitionScan]) -> None: ...
    def finish(self) -> ScanResult: ...


class KafkaRecords:
    def __init__(
        self,
        kafka: KafkaOptions,
        prints: RecordFingerprints,
        order_of: Callable[[str], Order | None],
        window: Window,
        spool: FactSink,
        reading: TopicReading | None = None,
    ) -> None:
        """Without a `reading`, records are read here, and put where all other facts go."""
        self.topics: list[str] = []
        """By the numbers they have in facts; so do the places, each a partition of a topic."""
        self.places: list[tuple[str, int]] = []
        self.foreign = 0
        """Records that no pipeline wrote: they have no event's id."""
        self.kept: dict[str, RetainedRange] = {}
        """What the topics that were read have deleted."""
        self.kept_since: dict[str, float] = {}
        """Since when each of them certainly keeps everything."""
        self.compacted: set[str] = set()
        self.lost_fronts: dict[str, str] = {}
        """Events that parked keys wait behind, and whose letters are gone: their ids (if known), by position."""
        self._kafka = kafka
        self._prints = prints
        self._window = window
        self._spool = spool
        self._reading = reading or _ReadHere(kafka, prints, order_of, window, spool)
        self._given_up: set[str] = set()
        """Events that were given up without their letters."""
        self._started: list[PartitionScan] = []
        self._numbers: dict[str, int] = {}
        self._places: dict[tuple[str, int], int] = {}
        self._ends: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._reached: dict[str, dict[int, int]] = {}

    @property
    def is_bounded(self) -> bool:
        """Whether there is something before the window."""
        return self._window.since_ms is not None

    def number(self, topic: str) -> int:
        found = self._numbers.get(topic)
        if found is None:
            found = self._numbers[topic] = len(self.topics)
            self.topics.append(topic)
        return found

    def existing(self, wanted: Callable[[str], bool]) -> dict[str, int]:
        """The topics of the cluster that are wanted, with their numbers of partitions."""
        return {name: count for name, count in ClusterObserver(self._kafka).look().topics.items() if wanted(name)}

    def begin_at(self, topic: str, starts: Mapping[int, int]) -> None:
        """What lies before these offsets is of no interest: neither read, nor missed if it was deleted."""
        self.expect(topic, starts)
        for number, start in starts.items():
            place = self._place(topic, number)
            self._begins[place] = self._ends[place] = start

    def expect(self, topic: str, ends: Mapping[int, int]) -> None:
        """The topic once reached these offsets. One that ends before them is another: what the first held is gone."""
        known = self._reached.setdefault(topic, {})
        for number, end in ends.items():
            known[number] = max(end, known.get(number, 0))

    def read(self, topics: dict[str, int], *, to_the_end: bool) -> None:
        """Adds the records of `topics` that were not read before; `to_the_end` also those behind the window."""
        self.start(topics, to_the_end=to_the_end)
        self.finish()

    def start(self, topics: dict[str, int], *, to_the_end: bool) -> None:
        """Begins to read, up to the ends that the topics have now; `finish` waits for it."""
        admin = ClusterObserver(self._kafka).admin
        parts: list[PartitionScan] = []
        for topic, partitions in topics.items():
            reader = DeadLetterReader(replace(self._kafka, dead_letter_topic=topic))  # a reader reads any topic
            there = reader.spans_of(topic, final=True)
            held = self._in_window(reader, there, to_the_end=to_the_end)
            if topic not in self.kept:
                self._look(admin, topic, partitions, there, held)
            kept = self.kept[topic]
            parts += [
                PartitionScan(topic, number, span, self._place(topic, number), kept.is_untold(number), partitions)
                for number, span in self._unread(topic, held).items()
            ]
        self._started = parts
        self._reading.start(parts)

    def read_earlier(self, topics: dict[str, int]) -> None:
        """Adds what lies before the window: a row may bear a later time than its commit."""
        parts: list[PartitionScan] = []
        for topic, partitions in topics.items():
            reader = DeadLetterReader(replace(self._kafka, dead_letter_topic=topic))
            for number, span in reader.spans_of(topic, final=True).items():
                place = self._place(topic, number)
                start, end = max(span.start, self._begins.get(place, 0)), self._starts.get(place, span.end)
                if start < end:
                    parts.append(PartitionScan(topic, number, Span(start, end), place, partitions=partitions))
                    self._starts[place], self._ends[place] = start, max(end, self._ends.get(place, 0))
        self._started = parts
        self._reading.start(parts)
        self.finish()

    def finish(self) -> None:
        told = self._reading.finish()
        self.foreign += told.foreign
        for topic, number, _, place, is_first, _ in self._started:
            # Without a first one nothing is left that tells up to when records were deleted.
            if is_first and place in told.firsts:
                self.kept[topic].note(number, told.firsts[place], told.keys[place])
                self.kept_since[topic] = self.kept[topic].since
        self._started = []

    def read_letters(self) -> None:
        """All letters of the pipeline, with what became of them by now: replaces what was known of them."""
        self._spool.clear(LETTERS)
        reader = DeadLetterReader(self._kafka)
        # The letters first: a mark that comes meanwhile is then seen, too.
        spans = reader.spans()
        marks = self._marks(reader)
        for event in self._given_up:
            # Before the letters: should the event have one after all, that counts.
            place = self._place(resolutions_topic(self._kafka), 0)
            self._spool.add(LETTERS, event, (event, UNKNOWN, 0, DISCARDED | AGAIN | OUTSIDE, place, 0))
        with closing(reader.dead_letters(spans, copies=True)) as letters:
            for letter in letters:
                if FIRST in letter.details:
                    self.lost_fronts.pop(letter.position, None)
                flags = _state(letter, marks) | (0 if letter.committed_ms in self._window else OUTSIDE)
                flags |= AGAIN if REPLAY in letter.details else 0
                digest = letter.details.get("tailrace.payload.sha256", "")
                name = row_name(digest) if letter.event_id is None else letter.event_id
                print_ = of_payload(None) if letter.is_row else self._prints.of_letter(letter.kind, letter.value)
                place = self._place(self._kafka.dead_letter_topic, letter.id.partition)
                self._spool.add(LETTERS, name, (name, *print_, flags, place, letter.id.offset))
        for event in filter(None, self.lost_fronts.values()):
            # Without its letter it is still in front of its key: `recover` must not put it behind itself.
            self._spool.add(WAITING, event, (event,))

    def read_waiting(self) -> None:
        """What waits behind parked keys; what was released since is on its topic, or must be."""
        self._spool.clear(WAITING)
        keys = requests.board(self._kafka).keys
        # Each is taken out when its letter is read, after this.
        self.lost_fronts = {state.place: state.event for state in keys.values() if not state.releasing}
        if not keys:
            return
        reader, topic = DeadLetterReader(self._kafka), waiting_topic(self._kafka)
        with closing(reader.scan(topic, reader.spans_of(topic))) as messages:
            for message in messages:
                headers: Any = message.headers()
                event = waiting_event(headers, message.value() or b"")
                entity = entity_of(event)
                state = None if entity is None else keys.get(entity)
                if state is not None and (message.offset() or 0) >= state.released:
                    self._spool.add(WAITING, event.id, (event.id,))

    def _look(self, admin: Admin, topic: str, partitions: int, there: Spans, held: Spans) -> None:
        """What the topic has deleted of that which would have been read; looked at once."""
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
        # What the window leaves out is not missed; a partition that is empty may have had some of it.
        firsts = {n: inf for n, at in gone.items() if n not in there or (n in held and held[n].start <= at)}
        rule = Retention.of(topic_config(admin, topic) if firsts else {})
        now_ms = time.time_ns() // 1_000_000
        rules = {number: rule.keeps_since(now_ms, emptied=number not in there) for number in firsts}
        vouches = not (another or compacted)
        self.kept[topic] = RetainedRange(partitions, firsts, rules, by_age=rule.bytes < 0, vouches=vouches)
        self.kept_since[topic] = self.kept[topic].since

    def _in_window(self, reader: DeadLetterReader, spans: Spans, *, to_the_end: bool) -> Spans:
        """All of the topic, or its part in the window."""
        since, until = self._window
        if since is not None:
            first = reader.spans(since - MARGIN_MS)
            spans = {number: Span(first[number].start, span.end) for number, span in spans.items() if number in first}
        if until is not None and not to_the_end:
            behind = reader.spans(until + MARGIN_MS)
            spans = {
                number: Span(span.start, behind[number].start) if number in behind else span
                for number, span in spans.items()
            }
        return spans

    def _unread(self, topic: str, spans: Spans) -> Spans:
        """From where reading ended before."""
        unread: Spans = {}
        for number, span in spans.items():
            place = self._place(topic, number)
            start = max(span.start, self._ends.get(place, 0))
            if start < span.end:
                unread[number] = Span(start, span.end)
                self._starts.setdefault(place, start)
                self._ends[place] = span.end
        return unread

    def _marks(self, reader: DeadLetterReader) -> dict[DeadLetterId | str, Resolution]:
        """By letter, and by the fingerprint of the letter and its copies."""
        found: dict[DeadLetterId | str, Resolution] = {}
        topic = resolutions_topic(self._kafka)
        with closing(reader.scan(topic, reader.spans_of(topic))) as messages:
            for message in messages:
                letter, value = dead_letter_id_of(message.key()), message.value()
                if letter is None:
                    if (event := event_of(message.key())) is not None:
                        self._given_up.add(event)
                    continue
                if value is None:
                    found.pop(letter, None)
                else:
                    mark = Resolution.parse(value)
                    short = Resolution(mark.action, position=mark.position)  # who and why would fill memory
                    found[letter] = short
                    if mark.fingerprint is not None:
                        found[mark.fingerprint] = short
        return found

    def _place(self, topic: str, partition: int) -> int:
        found = self._places.get((topic, partition))
        if found is None:
            found = self._places[topic, partition] = len(self.places)
            self.places.append((topic, partition))
        return found


class _ReadHere:
    """Puts records where other facts go, one by one."""

    def __init__(
        self,
        kafka: KafkaOptions,
        prints: RecordFingerprints,
        order_of: Callable[[str], Order | None],
        window: Window,
        facts: FactSink,
    ) -> None:
        self._kafka = kafka
        self._prints = prints
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
                whose = RecordOrigin(
                    said.get(PIPELINE_HEADER), topics[place], key, said.get("type"), position, said.get("timestamp")
                )
                add(PUBLISHED, event, (event, *self._prints.of_record(value, headers), flags, place, offset, whose))
                if key is not None and position is not None and not flags & AGAIN:
                    order = self._order_of(position.decode(errors="replace"))
                    if order is not None:
                        add(ORDER, key, (place, key, *order, event, offset))
        return scan.told


def _state(letter: DeadLetter, marks: Mapping[DeadLetterId | str, Resolution]) -> int:
    flags = IS_ROW if letter.is_row else 0
    mark = marks.get(letter.id)
    if mark is None or not mark.is_of(letter):
        mark = marks.get(letter.fingerprint or "")
    if mark is None:
        return flags
    # One that cannot be read counts all the same, but promises no record.
    return flags | (REDRIVEN if mark.action in PUBLISHED_ACTIONS else DISCARDED)
