"""The offsets topic: one compacted partition, one key per pipeline, its value the stored position.

It is the only truth about how far a pipeline is. Its record is written in the Kafka transaction of the events it
covers (I5), and is read, committed records only, after the old producer has been fenced. Whoever can write to this
topic can make a pipeline skip events: guard it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.errors import KafkaUnavailable, OffsetRecordCorrupt, OffsetsTopicUnfit, TopicMissing
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions, admin_config, consumer_config, error_of, translate, unusable
from tailrace.kafka.topics import create_topic, topic_config
from tailrace.positions.base import Position, from_stored, to_stored
from tailrace.routing.specs import TopicSpec

Admin = AdminClient
"""For rooms that hand one on without talking to it."""
READ_TIMEOUT = 90.0
"""Longer than a transaction's timeout: a hanging transaction of another pipeline may hold the topic's end back."""
MISSING_SECONDS = 5.0
"""A topic is taken for gone only after this long: brokers may not know it yet after it was created, or they started."""
MISSING_PAUSE = 0.2
STATUS_SUFFIX = "/status"
"""A pipeline's last announced state stands beside its position, under this key."""


def spec(options: KafkaOptions) -> TopicSpec:
    """Small segments, so that compaction keeps a start short: the last segment is never compacted."""
    return TopicSpec(
        topic=options.offsets_topic,
        partitions=1,
        replication=options.internal_replication,
        config={"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"},
    )


def ensure(options: KafkaOptions, admin: AdminClient) -> None:
    """Creates the topic if it is missing; refuses one that would forget positions."""
    name = options.offsets_topic
    try:
        found = admin.list_topics(timeout=10).topics.get(name)
    except KafkaException as error:
        raise translate(error_of(error), "asking Kafka for its topics") from None
    if found is None or found.error is not None:
        create_topic(admin, spec(options))
        return
    policy = topic_config(admin, name).get("cleanup.policy", "")
    if policy != "compact":
        raise OffsetsTopicUnfit(
            f"the offsets topic {name} has cleanup.policy={policy}",
            why="Kafka would delete stored positions by age or size.",
            remedy="kafka-configs --alter --entity-type topics "
            f"--entity-name {name} --add-config cleanup.policy=compact",
        )
    if len(found.partitions) != 1:
        raise OffsetsTopicUnfit(
            f"the offsets topic {name} has {len(found.partitions)} partitions",
            why="Positions of one pipeline must be in one order, so it has exactly one.",
            remedy="Name another topic in kafka.offsets_topic.",
        )


def record(options: KafkaOptions, position: Position) -> Record:
    """The record that stores `position`."""
    return Record(
        topic=options.offsets_topic,
        key=options.pipeline.encode(),
        value=json.dumps(to_stored(position)).encode(),
        headers=[],
        timestamp=time.time_ns() // 1_000_000,
    )


def read(options: KafkaOptions) -> Position | None:
    """The stored position of this pipeline, or None; call it only after the old producer is fenced."""
    value = read_keys(options, {options.pipeline.encode()}).get(options.pipeline.encode())
    return None if value is None else parse(options, value)


def parse(options: KafkaOptions, value: bytes) -> Position:
    try:
        return from_stored(json.loads(value))
    except (ValueError, KeyError, TypeError) as error:
        raise OffsetRecordCorrupt(
            f"the record under key {options.pipeline!r} on {options.offsets_topic} is not a position: {error!r}",
            why="Something else wrote it, or a newer version of Tailrace did.",
            remedy="Find the last good record of that key and write it again. If it is lost, `tailrace recover plan "
            "FILE` compares the outbox with the topics. A tombstone and one start with --adopt go on without what was "
            "missed.",
        ) from None


def read_keys(
    options: KafkaOptions, keys: set[bytes] | None, *, timeout: float = READ_TIMEOUT, committed: bool = True
) -> dict[bytes, bytes]:
    """The last committed value of each key, None for all. Reads up to the end that the topic has now, and not less.

    Without `committed`, for what is written outside transactions, no open transaction holds the end back.

    The end is the high watermark: the last *stable* offset may be held back by another pipeline's open transaction,
    in front of a record of ours that is already committed.
    """
    follower = Follower(options, committed=committed)
    found: dict[bytes, bytes] = {}
    try:
        for key, value in follower.read(timeout):
            if keys is not None and key not in keys:
                continue
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
    finally:
        follower.close()
    return found


class Follower:
    """Reads the topic from its beginning and, each time it is asked again, what was written since."""

    def __init__(self, options: KafkaOptions, *, committed: bool = False) -> None:
        """`committed`: only records whose transaction is committed; see `read_keys`."""
        self._options = options
        isolation = {} if committed else {"isolation.level": "read_uncommitted"}
        self._consumer = Consumer({**consumer_config(options, f"tailrace-offsets-{options.pipeline}"), **isolation})
        self._committed = committed
        self._next = 0

    def read(self, timeout: float) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values up to the end that the topic has now, and not less; KafkaUnavailable if that takes longer."""
        deadline = time.monotonic() + MISSING_SECONDS
        while True:
            try:
                yield from self._read(timeout)
            except TopicMissing:
                if time.monotonic() > deadline:
                    raise
                time.sleep(MISSING_PAUSE)
            else:
                return

    def _read(self, timeout: float) -> Iterator[tuple[bytes, bytes | None]]:
        options = self._options
        try:
            end = _high_watermark(options) if self._committed else self._end()
            if end < self._next:
                self._next = 0  # the topic was deleted and created again
            if end > self._next:
                self._consumer.assign([TopicPartition(options.offsets_topic, 0, self._next)])
            deadline = time.monotonic() + timeout
            while self._next < end:
                for message in self._consumer.consume(num_messages=500, timeout=0.02):
                    error: Any = message.error()
                    if error is None:
                        key = message.key()
                        # On a busy topic the end keeps moving away, and no EOF comes: a record at or behind it is as
                        # good.
                        self._next = max(self._next, (message.offset() or 0) + 1)
                        if key is not None:
                            yield key, message.value()
                    elif error.code() == KafkaError._PARTITION_EOF:
                        # Its offset counts control records too, which no message shows.
                        self._next = max(self._next, message.offset() or 0)
                    else:
                        raise translate(error, "reading the stored position", options.offsets_topic)
                if self._next < end and time.monotonic() > deadline:
                    raise KafkaUnavailable(
                        f"the end of {options.offsets_topic} could not be read within {timeout:.0f} s",
                        why="A hanging transaction of another producer holds it back, or Kafka is too slow.",
                        remedy="Tailrace tries again by itself; `kafka-transactions find-hanging` names the culprit.",
                    )
            self._consumer.unassign()  # or it would go on fetching in the background
        except KafkaException as error:
            raise translate(error_of(error), "reading the stored position", options.offsets_topic) from None

    def _end(self) -> int:
        partition = TopicPartition(self._options.offsets_topic, 0)
        return int(self._consumer.get_watermark_offsets(partition, timeout=10, cached=False)[1])

    def close(self) -> None:
        self._consumer.close()


def _high_watermark(options: KafkaOptions) -> int:
    """Asked for by a reader of uncommitted records: to a `read_committed` one the end is the last stable offset."""
    follower = Follower(options)
    try:
        return follower._end()
    except KafkaException as error:
        raise translate(error_of(error), "asking for the end of the offsets topic", options.offsets_topic) from None
    finally:
        follower.close()


def admin_client(options: KafkaOptions) -> AdminClient:
    try:
        return AdminClient(admin_config(options))
    except KafkaException as error:
        raise unusable(error) from None
