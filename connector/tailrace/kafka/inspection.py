"""Reads the settings of brokers and topics, the rights of the client, and the times of records. Changes nothing.

Each request has a timeout. What a client may not read is returned as None, never as an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import confluent_kafka
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

TIMEOUT = 8.0


@dataclass(frozen=True, slots=True)
class ClientRights:
    """The operations that the client may do: on each topic, and on the cluster. None if the brokers do not tell."""

    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cluster: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class AclEntry:
    """A rule of the brokers for a resource; `allows` is False for one that denies."""

    principal: str
    operation: str
    allows: bool


def library_version() -> str:
    """The version of librdkafka, such as 2.16.0."""
    return str(confluent_kafka.libversion()[0])


def broker_settings(admin: AdminClient) -> dict[str, str] | None:
    """The settings of one broker; None if they may not be read."""
    try:
        brokers = sorted(admin.list_topics(timeout=TIMEOUT).brokers)
        resource = ConfigResource(ResourceType.BROKER, str(brokers[0]))
        entries = admin.describe_configs([resource], request_timeout=TIMEOUT)[resource].result(2 * TIMEOUT)
    except (KafkaException, TimeoutError, IndexError):
        return None
    return {name: entry.value for name, entry in entries.items() if entry.value is not None and not entry.is_sensitive}


def topic_settings(admin: AdminClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of those topics whose settings may be read."""
    found: dict[str, dict[str, str]] = {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    try:
        answers = admin.describe_configs(resources, request_timeout=TIMEOUT) if resources else {}
    except KafkaException:
        return found
    for resource, answer in answers.items():
        try:
            entries = answer.result(2 * TIMEOUT)
        except (KafkaException, TimeoutError):
            continue
        found[resource.name] = {name: str(entry.value) for name, entry in entries.items()}
    return found


def client_rights(admin: AdminClient, topics: Iterable[str]) -> ClientRights:
    """Asks the brokers what this client may do, as they decide it themselves."""
    rights: dict[str, frozenset[str]] = {}
    wanted = list(topics)
    try:
        asked = TopicCollection(wanted)
        options = {"include_authorized_operations": True, "request_timeout": TIMEOUT}
        answers = admin.describe_topics(asked, **options) if wanted else {}
        for topic, answer in answers.items():
            try:
                described = answer.result(2 * TIMEOUT)
            except (KafkaException, TimeoutError):
                continue
            rights[topic] = _names(described.authorized_operations)
        cluster = admin.describe_cluster(**options).result(2 * TIMEOUT)
    except (KafkaException, TimeoutError):
        return ClientRights(rights)
    # Brokers with no authorizer allow everything, and say so; an empty list means that they do not tell.
    return ClientRights(rights, _names(cluster.authorized_operations) or None)


def _names(operations: Iterable[AclOperation] | None) -> frozenset[str]:
    return frozenset(each.name for each in operations or ())


def transactional_acls(admin: AdminClient, transactional_id: str) -> list[AclEntry] | None:
    """The rules for a transactional id; None if they may not be read, or if the brokers have none at all."""
    wanted = AclBindingFilter(
        ResourceType.TRANSACTIONAL_ID,
        transactional_id,
        ResourcePatternType.MATCH,
        None,  # type: ignore[arg-type]  # any principal
        None,  # type: ignore[arg-type]  # any host
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    try:
        found = admin.describe_acls(wanted, request_timeout=TIMEOUT).result(2 * TIMEOUT)
    except (KafkaException, TimeoutError):
        return None
    allow = AclPermissionType.ALLOW
    return [AclEntry(each.principal, each.operation.name, each.permission_type == allow) for each in found]


def newest_times(admin: AdminClient, partitions: Mapping[str, int]) -> dict[str, int]:
    """The largest timestamp of a record of each topic, in Unix milliseconds; topics without records are left out."""
    newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): newest for topic, count in partitions.items() for number in range(count)}
    found: dict[str, int] = {}
    try:
        answers = admin.list_offsets(asked, request_timeout=TIMEOUT) if asked else {}
        for partition, answer in answers.items():
            if (time := answer.result(2 * TIMEOUT).timestamp) > 0:
                found[partition.topic] = max(found.get(partition.topic, 0), time)
    except (KafkaException, TimeoutError):
        pass  # brokers before 3.0 do not answer this
    return found
