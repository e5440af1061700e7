"""Reads partitions up to a known end as fast as Kafka delivers them: committed records only, in batches.

A record becomes a tuple (`Taken`) with what the comparison needs. Nothing here commits offsets, joins a group or
creates a topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tailrace.event import Headers
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import STALL_SECONDS, OffsetRange, RangeReader
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.state.rewind_marker import SHADOW
from tailrace.verify.backend import Window
from tailrace.verify.findings import AGAIN, EDITED, OTHERS, OUTSIDE, SECOND

AT_ONCE = 2000
"""Messages per call, enough to make the overhead per message small."""
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

Taken = tuple[bytes, bytes | None, Headers, int, int, int, bytes | None, bytes | None, bytes | None]
"""A record of a pipeline: id, value, headers, flags, place, offset, key, and the headers `position` and `type`."""


class PartitionScan(NamedTuple):
    """The part of a partition to read. The partition has the number `place`.

    `is_first`: earlier records were deleted, so the time of its first record matters. `partitions`: how many the topic
    has.
    """

    topic: str
    partition: int
    span: OffsetRange
    place: int
    is_first: bool = False
    partitions: int = 0


class ScanResult(NamedTuple):
    """The findings besides the records: the number of records without an event id, and for parts with `is_first`, by
    place, the time of the first record and some keys.
    """

    foreign: int
    firsts: dict[int, int]
    keys: dict[int, list[bytes]]


class Scan:
    """One pass over some partitions."""

    def __init__(
        self,
        kafka: KafkaOptions,
        window: Window,
        parts: Sequence[PartitionScan],
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """`stall_seconds`: seconds without progress after which the scan fails."""
        self.foreign = 0
        """Number of records without an event id, which no pipeline wrote."""
        self.firsts: dict[int, int] = {}
        self.keys: dict[int, list[bytes]] = {}
        self._kafka = kafka
        self._own = kafka.pipeline.encode()
        self._stall_seconds = stall_seconds
        self._window = window
        self._bounded = window != (None, None)
        self._parts = parts
        self._numbers = {(part.topic, part.partition): number for number, part in enumerate(parts)}
        self._places = [part.place for part in parts]
        self._looked_at = {part.place: KEYS for part in parts if part.is_first}

    @property
    def result(self) -> ScanResult:
        return ScanResult(self.foreign, self.firsts, self.keys)

    def batches(self) -> Iterator[list[Taken]]:
        """Yields the records of pipelines, in the order of their partitions."""
        ranges = {(part.topic, part.partition): part.span for part in self._parts}
        with RangeReader(
            self._kafka, "dlq", stall_seconds=self._stall_seconds, batch_records=AT_ONCE, queue_kbytes=QUEUE_KBYTES
        ) as reader:
            for messages in reader.batches(ranges):
                yield self._take(messages)

    def _take(self, messages: list[Any]) -> list[Taken]:
        taken: list[Taken] = []
        take = taken.append
        numbers, places = self._numbers, self._places
        bounded, looked_at, own = self._bounded, self._looked_at, self._own
        for message in messages:
            number = numbers[message.topic(), message.partition()]
            offset = message.offset()
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
