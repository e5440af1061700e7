"""Reads partitions up to a known end as fast as Kafka delivers them: committed records only, in batches.

A record becomes a tuple (`Taken`) with what the comparison needs. Nothing here commits offsets, joins a group or
creates a topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.dlq.reader import SILENCE_SECONDS, Span
from tailrace.errors import KafkaUnavailable
from tailrace.event import Headers
from tailrace.kafka.client import KafkaOptions, consumer_config, error_of, translate, unusable
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.state.rewind_marker import SHADOW
from tailrace.verify.backend import Window
from tailrace.verify.findings import AGAIN, EDITED, OTHERS, OUTSIDE, SECOND

AT_ONCE = 2000
"""Messages per call, enough to make the overhead per message small."""
WAIT_SECONDS = 0.05
QUEUE_KBYTES = 8192
"""How much the client prefetches; it bounds the memory even for large records."""
KEYS = 32
"""Number of records whose keys are collected."""
REPLAY = "tailrace.replay"
_PUBLISHED_AGAIN = {
    "tailrace.redriven": AGAIN,
    "tailrace.redriven.for": AGAIN | SECOND,
    REPLAY: AGAIN | SECOND,
    "tailrace.edited": EDITED,
}
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""Errors of a broker that is unavailable for a moment; the deadline decides how long that may take."""

Taken = tuple[bytes, bytes | None, Headers, int, int, int, bytes | None, bytes | None, bytes | None]
"""A record of a pipeline: id, value, headers, flags, place, offset, key, and the headers `position` and `type`."""


class PartitionScan(NamedTuple):
    """What to read of a partition, which has the number `place`.

    `is_first`: earlier records were deleted, so the time of its first record matters. `partitions`: how many the topic
    has.
    """

    topic: str
    partition: int
    span: Span
    place: int
    is_first: bool = False
    partitions: int = 0


class ScanResult(NamedTuple):
    """What was found besides the records: the number of records without an event id, and for parts with `is_first`, by
    place, the time of the first record and some keys.
    """

    foreign: int
    firsts: dict[int, int]
    keys: dict[int, list[bytes]]


class Scan:
    """One pass over some partitions."""

    def __init__(
        self, kafka: KafkaOptions, window: Window, parts: Sequence[PartitionScan], *, patience: float = SILENCE_SECONDS
    ) -> None:
        """`patience`: seconds without progress after which the scan fails."""
        self.foreign = 0
        """Number of records without an event id, which no pipeline wrote."""
        self.firsts: dict[int, int] = {}
        self.keys: dict[int, list[bytes]] = {}
        self._kafka = kafka
        self._own = kafka.pipeline.encode()
        self._patience = patience
        self._window = window
        self._bounded = window != (None, None)
        self._parts = parts
        self._numbers = {(part.topic, part.partition): number for number, part in enumerate(parts)}
        self._places = [part.place for part in parts]
        self._ends = [part.span.end for part in parts]
        self._next = [part.span.start for part in parts]
        self._looked_at = {part.place: KEYS for part in parts if part.is_first}

    @property
    def told(self) -> ScanResult:
        return ScanResult(self.foreign, self.firsts, self.keys)

    def batches(self) -> Iterator[list[Taken]]:
        """Yields the records of pipelines, in the order of their partitions."""
        waiting = dict(enumerate(self._ends))
        if not waiting:
            return
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(part.topic, part.partition, part.span.start) for part in self._parts])
            deadline = time.monotonic() + self._patience
            while waiting:
                messages = consumer.consume(num_messages=AT_ONCE, timeout=WAIT_SECONDS)
                good = [message for message in messages if message.error() is None]
                reached = sum(self._next[number] for number in waiting)
                if good:
                    before = time.monotonic()
                    yield self._take(good)
                    # The time that the caller takes is not Kafka's delay.
                    deadline += time.monotonic() - before
                if len(good) < len(messages):
                    self._handle_errors([message for message in messages if message.error() is not None])
                # Messages of finished partitions are no progress for the others.
                if sum(self._next[number] for number in waiting) > reached:
                    deadline = time.monotonic() + self._patience
                self._leave(consumer, [number for number, end in waiting.items() if self._next[number] >= end], waiting)
                if waiting and time.monotonic() > deadline:
                    topic = self._parts[min(waiting)].topic
                    raise KafkaUnavailable(
                        f"the end of {topic} could not be read within {self._patience:.0f} s",
                        why="A hanging transaction holds it back, or Kafka is too slow.",
                        remedy="Try again; `kafka-transactions find-hanging` names the transaction.",
                    )
        except KafkaException as error:
            raise translate(error_of(error), "reading topics") from None
        finally:
            consumer.close()

    def _leave(self, consumer: Consumer, ended: list[int], waiting: dict[int, int]) -> None:
        """Pauses finished partitions, so that later records are not fetched."""
        for number in ended:
            del waiting[number]
        if ended and waiting:
            consumer.pause([TopicPartition(self._parts[each].topic, self._parts[each].partition) for each in ended])

    def _take(self, messages: list[Any]) -> list[Taken]:
        taken: list[Taken] = []
        take = taken.append
        numbers, places, ends, following = self._numbers, self._places, self._ends, self._next
        bounded, looked_at, own = self._bounded, self._looked_at, self._own
        for message in messages:
            number = numbers[message.topic(), message.partition()]
            offset = message.offset()
            following[number] = offset + 1
            if offset >= ends[number]:
                continue
            headers = message.headers()
            try:
                (name, event), (_, kind), (where, position), (when, stamp), *further = headers
                if not event.isascii():
                    event.decode()
            except (TypeError, ValueError, AttributeError):
                name = ""
            # Every record of a pipeline begins with the headers id, type, position and timestamp.
            if name != "id" or where != "position" or when != "timestamp":
                self.foreign += 1
                continue
            flags = 0
            for name, said in further:
                if name == PIPELINE_HEADER:
                    if said != own:
                        flags |= OTHERS
                elif name in _PUBLISHED_AGAIN:
                    flags |= _PUBLISHED_AGAIN[name]
                elif name == SHADOW:
                    break  # a shadow record does not count as published
            else:
                place = places[number]
                if bounded or place in looked_at:
                    flags |= self._times(place, stamp, message, flags)
                take((event, message.value(), headers, flags, place, offset, message.key(), position, kind))
        return taken

    def _times(self, place: int, stamp: bytes | None, message: Any, flags: int) -> int:  # noqa: ANN401 - typed loosely by the driver
        """Returns OUTSIDE for a record outside of the window; notes the time of the first record of a partition."""
        published_ms = message.timestamp()[1]
        at_ms = int(stamp) if stamp and stamp.isdigit() else published_ms
        if place in self._looked_at:
            # Records published late (replayed, redriven, recovered) have an old commit time but a recent timestamp.
            self.firsts.setdefault(place, max(at_ms, published_ms))
            self._note_key(place, message.key(), flags)
        return OUTSIDE if self._bounded and at_ms not in self._window else 0

    def _note_key(self, place: int, key: bytes | None, flags: int) -> None:
        keys = self.keys.setdefault(place, [])
        # A redrive may have used another partitioner.
        if key is not None and not flags & AGAIN:
            keys.append(key)
        self._looked_at[place] -= 1
        if not self._looked_at[place]:
            del self._looked_at[place]

    def _handle_errors(self, messages: list[Message]) -> None:
        for message in messages:
            error: Any = message.error()
            topic = message.topic()
            if error.code() == KafkaError._PARTITION_EOF:
                # The offset counts control records as well, which are never delivered.
                number = self._numbers[topic or "", int(message.partition() or 0)]
                self._next[number] = max(self._next[number], int(message.offset() or 0))
            elif error.code() not in _PASSING:
                raise translate(error, f"reading {topic}", topic)

    def _consumer(self) -> Consumer:
        try:
            return Consumer(
                {
                    **consumer_config(self._kafka, f"tailrace-dlq-{self._kafka.pipeline}"),
                    "queued.max.messages.kbytes": QUEUE_KBYTES,
                }
            )
        except KafkaException as error:
            raise unusable(error) from None
