"""Stands in for kafka-topics and kafka-acls: the options that findings use, with Kafka's names and meanings."""

from __future__ import annotations

import argparse

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

OPERATIONS = {each.name.replace("_", "").lower(): each for each in AclOperation}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--bootstrap-server", required=True)
    for name in ("--create", "--add", "--cluster"):
        parser.add_argument(name, action="store_true")
    for name in ("--topic", "--transactional-id", "--allow-principal"):
        parser.add_argument(name)
    parser.add_argument("--partitions", type=int, default=-1)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--operation", action="append", default=[])
    given = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap_server})
    if given.create:
        for created in admin.create_topics(
            [NewTopic(given.topic, given.partitions, given.replication_factor)]
        ).values():
            created.result(30)
    if given.add:
        kind, name = _resource(given)
        for operation in given.operation:
            binding = AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                given.allow_principal,
                "*",
                OPERATIONS[operation.lower()],
                AclPermissionType.ALLOW,
            )
            for added in admin.create_acls([binding]).values():
                added.result(30)


def _resource(given: argparse.Namespace) -> tuple[ResourceType, str]:
    if given.topic:
        return ResourceType.TOPIC, given.topic
    if given.transactional_id:
        return ResourceType.TRANSACTIONAL_ID, given.transactional_id
    return ResourceType.BROKER, "kafka-cluster"


if __name__ == "__main__":
    main()
