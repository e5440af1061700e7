"""The offsets topic: one compacted partition with the stored position of each pipeline under its name.

It alone decides where a pipeline goes on. A position is written in the Kafka transaction of the events it covers (I5),
and is read, committed records only, after the old producer has been fenced. Whoever can write to this topic can make a
pipeline skip events: protect it.
"""

from __future__ import annotations

import json
import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.errors import OffsetRecordCorrupt, OffsetsTopicUnfit
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions, admin_config, error_of, require_token, translate, unusable
from tailrace.kafka.reader import STALL_SECONDS, TopicFollower
from tailrace.kafka.topics import create_topic, topic_config
from tailrace.positions.base import MALFORMED, Position, from_stored, to_stored
from tailrace.routing.specs import TopicSpec

Admin = AdminClient
"""For packages that pass one on without importing the driver."""
STATUS_SUFFIX = "/status"
"""Of the key of a pipeline's last reported state."""


def spec(options: KafkaOptions) -> TopicSpec:
    """Small segments keep a start short: the last segment is never compacted."""
    return TopicSpec(
        topic=options.offsets_topic,
        partitions=1,
        replication=options.internal_replication,
        config={"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"},
    )


def ensure(options: KafkaOptions, admin: AdminClient) -> None:
    """Creates the topic if it is missing; raises OffsetsTopicUnfit if it could lose positions."""
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
            why="Positions of a pipeline must be in one order, which needs exactly one partition.",
            remedy="Set another topic in kafka.offsets_topic.",
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
    """The stored position of this pipeline, or None. Call it only after the old producer is fenced."""
    value = read_keys(options, {options.pipeline.encode()}).get(options.pipeline.encode())
    return None if value is None else parse(options, value)


def parse(options: KafkaOptions, value: bytes) -> Position:
    try:
        return from_stored(json.loads(value))
    except MALFORMED as error:
        raise OffsetRecordCorrupt(
            f"the record under key {options.pipeline!r} on {options.offsets_topic} is not a position: {error!r}",
            why="Something else wrote it, or a newer version of Tailrace did.",
            remedy="Find the last good record of that key and write it again. If it is lost, `tailrace recover plan "
            "FILE` compares the outbox with the topics. To go on without the missed events, write a tombstone and "
            "start once with --adopt.",
        ) from None


def read_keys(
    options: KafkaOptions, keys: set[bytes] | None, *, timeout: float = STALL_SECONDS, committed: bool = True
) -> dict[bytes, bytes]:
    """The last committed value of each key, up to the end that the topic has now; None for all keys.

    The end is the high watermark: another pipeline's open transaction may hold the last stable offset back, in front of
    a record of ours that is committed. Without `committed`, for keys that are written outside transactions, no open
    transaction holds the end back.
    """
    follower = TopicFollower(options, options.offsets_topic, "offsets", committed=committed)
    found: dict[bytes, bytes] = {}
    try:
        for message in follower.read(timeout):
            key, value = message.key(), message.value()
            if key is None or (keys is not None and key not in keys):
                continue
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
    finally:
        follower.close()
    return found


def admin_client(options: KafkaOptions) -> AdminClient:
    require_token(options)
    try:
        return AdminClient(admin_config(options))
    except KafkaException as error:
        raise unusable(error) from None
