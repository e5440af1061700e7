"""Reads what consumers see: every record of some topics, from the beginning."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Message

from tailrace.errors import TailraceError
from tailrace.kafka.client import KafkaOptions, Setting
from tailrace.kafka.reader import OffsetRange, Partition, RangeReader
from tailrace.positions.base import Position, from_stored
from tailrace.testkit.oracle import ConsumedRecord

READ_TIMEOUT = 60.0


class RecordReader:
    """Reads `topics` from their beginning; each `more` goes on where the last one ended. Missing topics count as empty.

    For a reader of committed records a partition ends where the first open transaction begins. Kafka confirms a commit
    before it ends the transaction, so right after a commit its records may still be hidden: `include_open` waits until
    every transaction is committed or aborted.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Iterable[str],
        *,
        isolation: str = "read_committed",
        include_open: bool = False,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        """`settings` are those of librdkafka, such as a login."""
        self._topics = [*topics]
        self._include_open = include_open
        self._reader = RangeReader(
            KafkaOptions(bootstrap, "testkit", settings={**(settings or {}), "log_level": 0}),
            "records",
            committed=isolation == "read_committed",
            stall_seconds=READ_TIMEOUT,
            batch_records=1000,
        )
        self._at: dict[Partition, int] = {}
        self.messages: list[Message] = []
        """All records that were read so far."""

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def more(self) -> list[Message]:
        """All records, up to the ends that the topics have now."""
        ranges = {
            (topic, number): OffsetRange(self._at.get((topic, number), 0), found.end)
            for topic in self._topics
            for number, found in self._bounds(topic).items()
        }
        for batch in self._reader.batches(ranges):
            self.messages += batch
        self._at.update({partition: max(found) for partition, found in ranges.items()})
        return self.messages

    def _bounds(self, topic: str) -> dict[int, OffsetRange]:
        """A broker that was away does not know its own partitions for a moment."""
        deadline = time.monotonic() + READ_TIMEOUT
        while True:
            try:
                return self._reader.bounds(topic, include_open=self._include_open)
            except TailraceError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def read_all(
    bootstrap: str, topics: Iterable[str], *, isolation: str = "read_committed", include_open: bool = False
) -> list[Message]:
    """Every record of `topics` up to the ends they have now; see `RecordReader`."""
    with RecordReader(bootstrap, topics, isolation=isolation, include_open=include_open) as reader:
        return reader.more()


def consumed_records(messages: Iterable[Message]) -> list[ConsumedRecord]:
    """Returns records in the form that the oracle takes."""
    return [
        ConsumedRecord(
            header(message, "id"),
            (message.key() or b"").decode(),
            str(message.topic()),
            int(message.partition() or 0),
            int(message.offset() or 0),
        )
        for message in messages
    ]


def header(message: Message, name: str) -> str:
    """The header's text; empty if there is none."""
    headers: Any = message.headers() or []
    for key, value in headers:
        if key == name and value is not None:
            return str(value.decode() if isinstance(value, bytes) else value)
    return ""


def stored_positions(bootstrap: str, pipeline: str, offsets_topic: str = "tailrace-offsets") -> list[Position]:
    """Every position still on the offsets topic for `pipeline`, in the order it was stored."""
    return positions_of(read_all(bootstrap, [offsets_topic]), pipeline)


def positions_of(messages: Iterable[Message], pipeline: str) -> list[Position]:
    """Returns the positions of a pipeline among the records of an offsets topic."""
    return [
        from_stored(json.loads(message.value() or b""))
        for message in messages
        if message.key() == pipeline.encode() and message.value()
    ]
