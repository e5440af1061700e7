"""Finds the events that a consumer has not passed: those beyond its stored offsets.

Only the end of each topic is read, from the stored offset on: a published event that is not there lies before it. What
is deleted from a topic, or was never read, cannot be compared; then the consumer counts as behind for every event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tailrace.archive.pinned_rows import no_room
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange, RangeReader, Ranges
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.replay.source_log import ID
from tailrace.temporary_table import DiskSet

BATCH = 1000


@dataclass(frozen=True, slots=True)
class Consumer:
    """A projection: the topics that it reads, and the next offset of each partition (topic, number) that it has."""

    name: str
    topics: tuple[str, ...]
    positions: Mapping[tuple[str, int], int]


class UnreadEvents:
    """The events of a pipeline that consumers have not passed. Create it after reading what the pipeline has passed."""

    def __init__(self, kafka: KafkaOptions, consumers: Iterable[Consumer], published: Collection[str]) -> None:
        """`published` are the topics of the pipeline; others do not matter."""
        self.notes: list[str] = []
        self._unread: dict[str, DiskSet] = {}
        self._unknown: dict[str, str] = {}
        with RangeReader(kafka, "retention") as reader:
            for consumer in consumers:
                self._add(kafka, reader, consumer, [topic for topic in consumer.topics if topic in published])

    def behind(self, event_id: str) -> str | None:
        """Returns a consumer that has not passed the event; None if all have."""
        for name in self._unknown:
            return name
        encoded = event_id.encode()
        return next((name for name, unread in self._unread.items() if encoded in unread), None)

    def close(self) -> None:
        for unread in self._unread.values():
            unread.close()

    def _add(self, kafka: KafkaOptions, reader: RangeReader, consumer: Consumer, topics: list[str]) -> None:
        if not topics:
            self.notes.append(f"{consumer.name} reads no topic of this pipeline, so it does not count")
            return
        unread = self._unread[consumer.name] = DiskSet(no_room)
        for topic in topics:
            # Also behind an open transaction of another producer, because a missed record would count as passed.
            bounds = reader.bounds(topic, include_open=True)
            if why := _not_known(consumer, topic, bounds):
                self._unknown[consumer.name] = why
                self.notes.append(f"{consumer.name} counts as behind for every event: {why}")
                return
            left = {
                number: OffsetRange(consumer.positions.get((topic, number), bound.start), bound.end)
                for number, bound in bounds.items()
            }
            names: list[bytes] = []
            with closing(reader.records(topic, left)) as messages:
                for message in messages:
                    headers: Any = message.headers() or []
                    values = {name: value for name, value in headers if value is not None}
                    if values.get(PIPELINE_HEADER) in (None, kafka.pipeline.encode()) and ID in values:
                        names.append(values[ID])
                    if len(names) >= BATCH:
                        unread.add(names)
                        names.clear()
            unread.add(names)


def _not_known(consumer: Consumer, topic: str, bounds: Ranges) -> str:
    """Returns why it is not known what a consumer has passed; empty if it is known."""
    if not any(each == topic for each, _ in consumer.positions) and any(bound.end for bound in bounds.values()):
        return f"it has never read {topic}"
    for number, bound in bounds.items():
        offset = consumer.positions.get((topic, number))
        if offset is None and bound.start > 0:
            return f"it has never read {topic}[{number}], which has deleted its first records"
        if offset is not None and offset < bound.start:
            return f"{topic}[{number}] has deleted records that it has not read"
        if offset is not None and offset > bound.end:
            return f"{topic}[{number}] is shorter than what it has read: the topic was created again"
    return ""
