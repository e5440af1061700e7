"""`tailrace check` on three brokers: topics with one replica, and one whose only replica is lost."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import NewTopic

from helpers.shop import Shop
from tailrace.check.preflight import preflight
from tailrace.check.result import CheckResult, State
from tailrace.testkit.stack import KafkaCluster, wait_until

OFFSETS = "tailrace-offsets"


@pytest.mark.slow
def test_topics_with_one_replica(shop: Shop) -> None:
    def found(name: str) -> CheckResult:
        return {check.name: check for check in preflight(shop.file)}[name]

    def lacks_replicas(name: str) -> bool:
        check = found(name)
        return check.state is State.WARN and "has one replica" in check.found

    with KafkaCluster() as kafka:
        shop.configure(kafka={"bootstrap": kafka.bootstrap})
        assert found(f"topic {shop.topic}").state is State.WARN, "it is to be created with one copy"
        admin = kafka.admin()
        made = [
            NewTopic(OFFSETS, 1, 1, config={"cleanup.policy": "compact", "min.insync.replicas": "1"}),
            NewTopic(shop.letters, 1, 1),
            NewTopic(shop.topic, 3, 1),
        ]
        for created in admin.create_topics(made).values():
            created.result(30)
        # A broker may know of the topics later than another.
        for name in ("offsets topic", "dead-letter topic", f"topic {shop.topic}"):
            wait_until(lambda name=name: lacks_replicas(name), 60, what=f"the warning of the {name}")

        kafka.leader(OFFSETS).kill()
        wait_until(lambda: "no leader" in found("offsets topic").found, 60, what="the partition without a leader")
        assert found("offsets topic").state is State.FAIL
