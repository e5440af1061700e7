"""`tailrace check` on a cluster of three brokers: topics with one copy, and one whose only copy is gone."""

from __future__ import annotations

from confluent_kafka.admin import NewTopic

from fix_command import Tailrace
from fix_shop import Shop
from tailrace.stack import KafkaSet, wait_until

OFFSETS = "tailrace-offsets"


def test_topics_with_one_copy(shop: Shop, tailrace: Tailrace) -> None:
    with KafkaSet() as kafka:
        shop.configure(kafka={"bootstrap": kafka.bootstrap})
        found = {check["name"]: check for check in tailrace("check", shop.file)["checks"]}
        assert found[f"topic {shop.topic}"]["state"] == "WARN", "it is to be created with one copy"
        admin = kafka.admin()
        made = [
            NewTopic(OFFSETS, 1, 1, config={"cleanup.policy": "compact", "min.insync.replicas": "1"}),
            NewTopic(shop.letters, 1, 1, config={"max.message.bytes": "5000000"}),
            NewTopic(shop.topic, 3, 1, config={"max.message.bytes": "5000000"}),
        ]
        for created in admin.create_topics(made).values():
            created.result(30)
        wait_until(lambda: OFFSETS in admin.list_topics(timeout=10).topics, what="the topics")
        found = {check["name"]: check for check in tailrace("check", shop.file)["checks"]}
        names = ("offsets topic", "dead-letter topic", f"topic {shop.topic}")
        assert {(found[name]["state"], "has one copy" in found[name]["found"]) for name in names} == {("WARN", True)}

        kafka.leader(OFFSETS).kill()
        wait_until(
            lambda: admin.list_topics(OFFSETS, timeout=10).topics[OFFSETS].partitions[0].leader < 0,
            60,
            what="the partition without a leader",
        )
        found = {check["name"]: check for check in tailrace("check", shop.file, code=1)["checks"]}
        assert found["offsets topic"]["state"] == "FAIL"
        assert "no leader" in found["offsets topic"]["found"]
