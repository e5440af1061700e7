"""What consumers see: everything on some topics, committed records only, from the beginning."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.positions.base import Position, from_stored
from tailrace.testkit.oracle import ConsumedRecord

READ_TIMEOUT = 60.0


class Reader:
    """Reads `topics` from their beginning; each `more` goes on where the last one ended. Missing topics count as empty.

    To a reader of committed records a partition ends where the first open transaction begins.
    """

    def __init__(self, bootstrap: str, topics: Iterable[str], *, isolation: str = "read_committed") -> None:
        self._topics = [*topics]
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "tailrace-proof",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._at: dict[tuple[str, int], int] = {}
        self.messages: list[Message] = []
        """All that was read so far."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def more(self) -> list[Message]:
        """All messages, up to the ends that the topics have now."""
        waiting = self._ends()
        if not waiting:
            return self.messages
        consumer = self._consumer
        consumer.assign([TopicPartition(*place, self._at.get(place, 0)) for place in waiting])
        deadline = time.monotonic() + READ_TIMEOUT
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the ends of {sorted(waiting)} were not reached: is a transaction hanging?")
            for message in consumer.consume(num_messages=1000, timeout=0.02):
                error: Any = message.error()
                place = (str(message.topic()), int(message.partition() or 0))
                if error is None:
                    self.messages.append(message)
                    self._at[place] = int(message.offset() or 0) + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    # Its offset counts control records too: a topic may end in one.
                    self._at[place] = int(message.offset() or 0)
                    if self._at[place] >= waiting.get(place, 0):
                        waiting.pop(place, None)
                else:
                    raise KafkaException(error)
        consumer.unassign()  # or it would go on asking for more in the background
        return self.messages

    def _ends(self) -> dict[tuple[str, int], int]:
        """Of the partitions in which there is something to read."""
        ends: dict[tuple[str, int], int] = {}
        for topic in self._topics:
            # By name: a cluster may have thousands of others.
            found = self._consumer.list_topics(topic, timeout=10).topics[topic]
            for partition in found.partitions:
                end = _end(self._consumer, TopicPartition(topic, partition))
                if end > self._at.get((topic, partition), 0):
                    ends[topic, partition] = end
        return ends


def read_all(bootstrap: str, topics: Iterable[str], *, isolation: str = "read_committed") -> list[Message]:
    """Every record of `topics` up to the ends they have now."""
    with Reader(bootstrap, topics, isolation=isolation) as reader:
        return reader.more()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """A broker that was away does not know its own partitions for a moment."""
    deadline = time.monotonic() + READ_TIMEOUT
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=10, cached=False)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            consumer.poll(0.2)
            consumer.list_topics(partition.topic, timeout=10)  # or the client goes on asking whoever led it before


def consumed_records(messages: Iterable[Message]) -> list[ConsumedRecord]:
    """As the oracle takes them."""
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
    messages = read_all(bootstrap, [offsets_topic])
    return [
        from_stored(json.loads(message.value() or b""))
        for message in messages
        if message.key() == pipeline.encode() and message.value()
    ]
