"""The waiting topic of a pipeline, read from the front to the end by a consumer that stays open between turns."""

from __future__ import annotations

import sys

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from tailrace.dlq.parked_keys import waiting_topic
from tailrace.dlq.reader import unknown_topic
from tailrace.errors import TopicMissing
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange, RangeReader
from tailrace.kafka.topics import end_offsets


class WaitingEvents:
    """Reads committed records of the waiting topic. Belongs to one thread."""

    def __init__(self, options: KafkaOptions, admin: AdminClient) -> None:
        self._options = options
        self._admin = admin
        self._topic = waiting_topic(options)
        self._reader: RangeReader | None = None

    @property
    def position(self) -> int:
        """Everything below this offset was read."""
        return 0 if self._reader is None else self._reader.position(self._topic, 0)

    def end(self) -> int:
        """Where the topic ends. Open transactions count: Kafka may answer a commit before readers see its records."""
        try:
            return end_offsets(self._admin, [(self._topic, 0)])[self._topic, 0]
        except TopicMissing:
            raise unknown_topic(self._topic) from None

    def seek(self, offset: int) -> None:
        """Goes on reading from `offset`."""
        if self._reader is None:
            self._reader = RangeReader(self._options, "waiting")
        self._reader.assign({(self._topic, 0): OffsetRange(offset, sys.maxsize)})

    def read(self) -> list[Message]:
        """The next records; none if none came for a moment. KafkaUnavailable if none came for long."""
        return [] if self._reader is None else self._reader.poll()

    def pause(self) -> None:
        """Fetches nothing until the next `seek`."""
        if self._reader is not None:
            self._reader.pause()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
