"""What consumers see: everything on some topics, committed records only, from the beginning."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.position import Position, from_stored
from tailrace.proof.oracle import Sighting

READ_TIMEOUT = 60.0


def read_all(
    bootstrap: str,
    topics: Iterable[str],
    *,
    isolation: str = "read_committed",
) -> list[Message]:
    """Every record of `topics` up to the ends they have now; missing topics count as empty.

    To a reader of committed records a partition ends where the first open transaction begins.
    """
    consumer = Consumer(
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
    messages: list[Message] = []
    try:
        waiting: dict[tuple[str, int], int] = {}
        cluster = consumer.list_topics(timeout=10).topics
        for topic in topics:
            for partition in cluster[topic].partitions if topic in cluster else ():
                end = _end(consumer, TopicPartition(topic, partition))
                if end > 0:
                    waiting[topic, partition] = end
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in waiting])
        deadline = time.monotonic() + READ_TIMEOUT
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the ends of {sorted(waiting)} were not reached: is a transaction hanging?")
            for message in consumer.consume(num_messages=1000, timeout=0.02):
                error: Any = message.error()
                place = (str(message.topic()), int(message.partition() or 0))
                if error is None:
                    messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # Its offset counts control records too: a topic may end in one.
                    if (message.offset() or 0) >= waiting.get(place, 0):
                        waiting.pop(place, None)
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return messages


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


def sightings(messages: Iterable[Message]) -> list[Sighting]:
    """As the oracle takes them."""
    return [
        Sighting(
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
