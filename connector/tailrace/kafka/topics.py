"""Admin requests about topics: lists, creates and changes them as declared, and reads their offsets and settings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tailrace.errors import ConfigError, TailraceError
from tailrace.kafka.client import error_of, translate
from tailrace.kafka.topic_plan import Change, Kind, TopicState, differences
from tailrace.routing.specs import TopicSpec

ADMIN_TIMEOUT = 15.0
SETTLE_SECONDS = 10.0
ABSENCE_PAUSES = (0.2, 0.4, 0.8, 1.6)
"""Seconds between the requests after which a topic counts as missing."""

Partition = tuple[str, int]
Offsets = dict[Partition, int]

_REJECTIONS = {
    KafkaError.INVALID_CONFIG: "",
    KafkaError.INVALID_REQUEST: "",
    KafkaError.POLICY_VIOLATION: "",
    KafkaError.INVALID_PARTITIONS: "partitions",
    KafkaError.INVALID_REPLICATION_FACTOR: "replication",
}
"""Error codes that mean a wrong declaration, with the field if the code names it."""


def partition_counts(admin: AdminClient, *, timeout: float = ADMIN_TIMEOUT) -> dict[str, int]:
    """The number of partitions of every topic."""
    return {name: state.partitions for name, state in _shapes(admin, timeout).items()}


def cluster_id(admin: AdminClient, *, timeout: float = ADMIN_TIMEOUT) -> str:
    """The id of the cluster; empty if it has none."""
    try:
        return str(admin.list_topics(timeout=timeout).cluster_id or "")
    except KafkaException as error:
        raise translate(error_of(error), "asking Kafka for its cluster id") from None


def absent(admin: AdminClient, topics: Iterable[str], *, timeout: float = ADMIN_TIMEOUT) -> list[str]:
    """Which of these topics do not exist. Asks several times, because a broker that has just started may not know its
    topics yet.
    """
    gone = list(topics)
    for pause in (*ABSENCE_PAUSES, 0.0):
        existing = partition_counts(admin, timeout=timeout)
        gone = [topic for topic in gone if topic not in existing]
        if not gone:
            break
        time.sleep(pause)
    return gone


def end_offsets(admin: AdminClient, partitions: Iterable[Partition], *, timeout: float = ADMIN_TIMEOUT) -> Offsets:
    """The high watermarks of these partitions: records of open transactions are below them."""
    return _list_offsets(admin, partitions, "latest", timeout)


def start_offsets(admin: AdminClient, partitions: Iterable[Partition]) -> Offsets:
    """The first offsets that these partitions still hold; 0 unless records were deleted."""
    return _list_offsets(admin, partitions, "earliest", ADMIN_TIMEOUT)


def _list_offsets(admin: AdminClient, partitions: Iterable[Partition], which: str, timeout: float) -> Offsets:
    spec = getattr(OffsetSpec, which)()  # untyped in the driver
    asked = {TopicPartition(*each): spec for each in partitions}
    topics = ", ".join(sorted({each.topic for each in asked}))
    try:
        answers = admin.list_offsets(asked, request_timeout=timeout) if asked else {}
        return {
            (each.topic, each.partition): int(answer.result(2 * timeout).offset) for each, answer in answers.items()
        }
    except KafkaException as error:
        raise translate(error_of(error), f"asking for the offsets of {topics}", topics) from None


class TopicRetention(NamedTuple):
    """`starts`: the first offset of each partition, 0 unless records were deleted."""

    starts: dict[int, int]
    compacted: bool


def topic_retention(admin: AdminClient, topic: str, partitions: int) -> TopicRetention:
    """Returns what is deleted: the records before the first offsets, and all but the last of a key if compacted."""
    starts = start_offsets(admin, [(topic, number) for number in range(partitions)])
    compacted = "compact" in topic_config(admin, topic).get("cleanup.policy", "")
    return TopicRetention({number: start for (_, number), start in starts.items()}, compacted)


def create_topic(admin: AdminClient, spec: TopicSpec, *, validate_only: bool = False) -> None:
    """Creates a topic, unless it exists."""
    try:
        send_create(admin, spec, spec.config, validate_only=validate_only)
    except KafkaException as error:
        if error_of(error).code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        # Kafka rejects the whole request: validate each setting alone to name the wrong one.
        for name, value in spec.config.items():
            try:
                send_create(admin, spec, {name: value}, validate_only=True)
            except KafkaException as single:
                if error_of(single).code() == KafkaError.INVALID_CONFIG:
                    raise _rejected(error_of(single), spec, name) from None
        raise _rejected(error_of(error), spec, "") from None


def delete_topics(admin: AdminClient, topics: Iterable[str]) -> None:
    """Deletes topics, and waits until the brokers no longer show them."""
    names = list(topics)
    for name, deleted in admin.delete_topics(names, request_timeout=ADMIN_TIMEOUT).items():
        try:
            deleted.result()
        except KafkaException as error:
            if error_of(error).code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                raise translate(error_of(error), f"deleting {name}", name) from None
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline and partition_counts(admin).keys() & set(names):
        time.sleep(0.1)


def topic_states(admin: AdminClient, topics: Iterable[str]) -> dict[str, TopicState]:
    """Those of these topics that exist, with their settings."""
    wanted = set(topics)
    shapes = {name: state for name, state in _shapes(admin, ADMIN_TIMEOUT).items() if name in wanted}
    return {
        name: TopicState(state.partitions, state.replication, topic_config(admin, name))
        for name, state in shapes.items()
    }


def topic_config(admin: AdminClient, topic: str) -> dict[str, str]:
    """The topic's settings, defaults included."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        entries = admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT)[resource].result()
    except KafkaException as error:
        raise translate(error_of(error), f"reading the settings of {topic}", topic) from None
    return {name: entry.value for name, entry in entries.items()}


def make_change(admin: AdminClient, change: Change, *, validate_only: bool = False) -> None:
    """Makes a change, or only asks the broker to validate it; raises ConfigError if the broker rejects it."""
    spec = change.spec
    try:
        if change.kind is Kind.CREATE:
            create_topic(admin, spec, validate_only=validate_only)
        elif change.kind is Kind.GROW:
            new = NewPartitions(spec.topic, spec.partitions)
            admin.create_partitions([new], validate_only=validate_only, request_timeout=ADMIN_TIMEOUT)[
                spec.topic
            ].result()
        elif change.kind is Kind.SET:
            entry = ConfigEntry(change.setting, change.after, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, spec.topic, incremental_configs=[entry])
            admin.incremental_alter_configs([resource], validate_only=validate_only, request_timeout=ADMIN_TIMEOUT)[
                resource
            ].result()
    except KafkaException as error:
        raise _rejected(error_of(error), spec, change.setting) from None


def unsettled(admin: AdminClient, changes: Sequence[Change]) -> list[Change]:
    """Waits until the brokers show the changes, which they confirm earlier; returns those not visible in time."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        live = topic_states(admin, {change.topic for change in changes})
        left = [change for change in changes if change in differences(change.spec, live.get(change.topic))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def send_create(admin: AdminClient, spec: TopicSpec, config: dict[str, str], *, validate_only: bool) -> None:
    """Sends the request; raises KafkaException."""
    new = NewTopic(spec.topic, spec.partitions, spec.replication, config=dict(config))
    admin.create_topics(
        [new], operation_timeout=ADMIN_TIMEOUT, request_timeout=ADMIN_TIMEOUT, validate_only=validate_only
    )[spec.topic].result()


def _shapes(admin: AdminClient, timeout: float) -> dict[str, TopicState]:
    try:
        found = admin.list_topics(timeout=timeout).topics
    except KafkaException as error:
        raise translate(error_of(error), "asking Kafka for its topics") from None
    return {
        name: TopicState(
            len(topic.partitions), min((len(part.replicas) for part in topic.partitions.values()), default=0)
        )
        for name, topic in found.items()
        if topic.error is None
    }


def _rejected(error: KafkaError, spec: TopicSpec, setting: str) -> TailraceError:
    if error.code() not in _REJECTIONS:
        return translate(error, f"changing the topic {spec.topic}", spec.topic)
    field = setting or _REJECTIONS[error.code()]
    where = spec.line_of(field)
    value = f" = {spec.config[field]}" if field in spec.config else ""
    return ConfigError(
        f"{f'{where}: ' if where else ''}Kafka rejects {f'{field}{value}' if field else 'the topic'} for {spec.topic}",
        why=error.str(),
        remedy=f"Correct it in {where}." if where else "See Kafka's own text above.",
    )
