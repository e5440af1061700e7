"""The rules over brokers, topics and rights, at their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.check.doctor.access_rules import AccessFacts, check_access
from tailrace.check.doctor.kafka_rules import InternalTopic, KafkaFacts, TopicFacts, check_kafka_facts
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.inspection import AclEntry, ClientRights

OPTIONS = KafkaOptions("k:9092", "orders")
NOW = 1_800_000_000_000
BROKER = {"transaction.max.timeout.ms": "900000", "transactional.id.expiration.ms": "604800000"}
TOPIC = TopicFacts("orders", 3, {"min.insync.replicas": "2", "cleanup.policy": "delete"})
FACTS = KafkaFacts("2.16.0", BROKER, (TOPIC,), {}, "tailrace-offsets", 60_000, NOW)


def codes(*topics: TopicFacts, **changes: Any) -> list[str]:
    facts = replace(FACTS, topics=topics or FACTS.topics, **changes)
    return [each.code for each in check_kafka_facts(facts, OPTIONS, "orders.yaml")]


def topic(copies: int = 3, **values: str) -> TopicFacts:
    return replace(TOPIC, copies=copies, values={**TOPIC.values, **{k.replace("_", "."): v for k, v in values.items()}})


def test_nothing_to_report() -> None:
    assert codes() == []


def test_brokers() -> None:
    assert codes(broker=None) == ["kafka-settings-unread"]
    assert codes(transaction_timeout_ms=900_001) == ["transaction-timeout"]
    assert codes(transaction_timeout_ms=900_000) == []
    assert codes(transaction_timeout_ms=None) == []
    assert codes(broker={"transactional.id.expiration.ms": "86399999"}) == ["transactional-id-expiration"]
    assert codes(broker={"transactional.id.expiration.ms": "86400000"}) == []
    assert codes(broker={"auto.create.topics.enable": "true"}) == ["auto-create"]
    assert codes(broker={"log.cleaner.enable": "false"}) == ["offsets-topic-uncompacted"]
    assert codes(broker={"inter.broker.protocol.version": "3.9-IV0"}) == ["kafka-known-bug"]
    assert codes(library="2.4.1") == ["librdkafka-known-bug"]


@pytest.mark.parametrize(
    ("copies", "least", "code"),
    [
        (3, "1", "min-insync-low"),
        (3, "3", "min-insync-high"),
        (3, "4", "min-insync-high"),
        (3, "2", ""),
        (2, "1", ""),
        (2, "2", "min-insync-high"),
        (1, "1", ""),
        (1, "2", "min-insync-high"),
    ],
)
def test_replicas_in_sync(copies: int, least: str, code: str) -> None:
    assert codes(topic(copies, min_insync_replicas=least)) == [code] * bool(code)


def test_topics_of_events() -> None:
    assert codes(topic(unclean_leader_election_enable="true")) == ["unclean-election"]
    assert codes(topic(cleanup_policy="compact,delete")) == ["event-topic-compacted"]


def test_a_setting_is_fixed_where_it_is_declared() -> None:
    declared = replace(
        topic(unclean_leader_election_enable="true"),
        declared={"unclean.leader.election.enable": "true"},
        file="topics/orders.yaml",
    )
    (found,) = check_kafka_facts(replace(FACTS, topics=(declared,)), OPTIONS, "orders.yaml")
    assert [fix.kind for fix in found.fixes] == ["yaml", "shell"]
    assert found.fixes[0].text.startswith("# topics/orders.yaml\n")
    assert found.fixes[1].text == "tailrace topics apply orders.yaml --yes"


def test_internal_topics() -> None:
    internal = {"orders": InternalTopic("parked keys", {"cleanup.policy": "compact"})}
    assert codes(topic(cleanup_policy="delete"), internal=internal) == ["internal-topic-settings"]
    assert codes(topic(cleanup_policy="compact"), internal=internal) == []
    both = {"orders": InternalTopic("history", {"cleanup.policy": "compact,delete"})}
    assert codes(topic(cleanup_policy="delete,compact"), internal=both) == []
    offsets = topic(cleanup_policy="compact", segment_bytes="1073741824")
    found = codes(offsets, internal={"orders": InternalTopic("positions", {})}, offsets_topic="orders")
    assert found == ["offsets-topic-uncompacted"]


@pytest.mark.parametrize(("ahead_ms", "reported"), [(4_999, False), (5_000, True), (-3_600_000, False)])
def test_the_clock_of_a_broker(ahead_ms: int, reported: bool) -> None:
    """A record that the broker stamped in the future; an old one says nothing."""
    stamped = replace(topic(message_timestamp_type="LogAppendTime"), newest_ms=NOW + ahead_ms)
    assert codes(stamped) == ["kafka-clock"] * reported
    assert codes(replace(topic(message_timestamp_type="CreateTime"), newest_ms=NOW + ahead_ms)) == []


RIGHTS = ClientRights({"orders": frozenset({"WRITE", "DESCRIBE"})}, frozenset({"CREATE"}))
ACCESS = AccessFacts(RIGHTS, {"orders": ("WRITE", "DESCRIBE")}, principal="User:u", acls=())


def access(**changes: Any) -> list[str]:
    return [each.code for each in check_access(replace(ACCESS, **changes), OPTIONS)]


def test_rights() -> None:
    assert access() == []
    assert access(needed={"orders": ("READ", "WRITE", "DESCRIBE")}) == ["topic-access"]
    assert access(rights=ClientRights({}, RIGHTS.cluster)) == []
    assert access(missing_topics=("new",)) == []
    assert access(missing_topics=("new",), rights=ClientRights(RIGHTS.topics, frozenset({"DESCRIBE"}))) == [
        "create-access"
    ]
    assert access(missing_topics=("new",), rights=ClientRights(RIGHTS.topics, None)) == []


def test_rights_on_the_transactional_id() -> None:
    def entry(principal: str = "User:u", operation: str = "WRITE", *, allows: bool = True) -> AclEntry:
        return AclEntry(principal, operation, allows)

    assert access(acls=None) == ["access-unread"]
    assert access(principal=None) == ["access-unread"]
    assert access(acls=None, authorized=False) == []
    assert access(acls=[entry("User:other")]) == ["transactional-id-access"]
    assert access(acls=[entry()]) == []
    assert access(acls=[entry("User:*", "ALL")]) == []
    assert access(acls=[entry(), entry(allows=False)]) == ["transactional-id-access"]
    assert access(acls=[entry(operation="DESCRIBE")]) == ["transactional-id-access"]


def test_the_rights_of_an_unknown_principal_are_advice() -> None:
    (found,) = check_access(replace(ACCESS, principal=None), OPTIONS)
    assert found.fixes[0].kind == "text"
    assert "User:NAME" in found.fixes[0].text
