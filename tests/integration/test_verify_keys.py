"""`tailrace verify` compares what consumers rely on: key, type, partition, and one record per row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from helpers.command import Tailrace
from helpers.shop import Shop
from helpers.users import Users
from tailrace.routing.partition import partition_of
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
FAULTS = ("missing", "duplicated", "changed", "key_changed", "type_changed", "wrong_partition", "out_of_order")
KEYS = [next(f"k-{n}" for n in range(100) if partition_of(f"k-{n}".encode(), 3) == each) for each in range(3)]
"""One key for each of three partitions."""


def records(service: Shop | Users) -> dict[str, Any]:
    return {header(message, "id"): message for message in read_all(service.kafka.bootstrap, [service.topic])}


def on_topic(service: Shop | Users, *events: str) -> None:
    wait_until(lambda: {seen.id for seen in service.published()} >= set(events), 60, what="the records")


def test_keys_types_partitions_and_rows_of_one_id(
    shop: Shop, tailrace: Tailrace, make_topic: Callable[..., None]
) -> None:
    make_topic(shop.topic, 3)
    shop.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey")
    shop.start()
    events = [shop.insert(VALID, key=key) for key in KEYS * 3]
    on_topic(shop, *events)
    assert tailrace("verify", str(shop.file))["clean"]
    # The connector only publishes inserts: for the topic these rows never changed, so the records differ.
    shop.execute("UPDATE outbox SET aggregateid = 'other' WHERE id = %s", events[0])
    shop.execute("UPDATE outbox SET type = 'OrderChanged' WHERE id = %s", events[1])
    shop.execute("UPDATE outbox SET id = %s WHERE id = ANY(%s::uuid[])", events[2], events[3:5])
    like = records(shop)[events[-1]]
    stranger = "00000000-0000-0000-0000-000000000001"
    changed = [(name, stranger if name == "id" else value) for name, value in like.headers()]
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    producer.produce(shop.topic, like.value(), like.key(), (like.partition() + 1) % 3, headers=changed)
    assert producer.flush(30) == 0
    for jobs in ("1", "2"):
        found = tailrace("verify", str(shop.file), "--jobs", jobs, code=1)
        assert {kind: found[kind] for kind in FAULTS if found[kind]} == {
            "missing": 2, "key_changed": 1, "type_changed": 1, "wrong_partition": 1
        }  # fmt: skip
        named = {kind: {each["id"] for each in found["examples"][kind]} for kind in FAULTS if found[kind]}
        assert named == {
            "missing": {events[2]}, "key_changed": {events[0]}, "type_changed": {events[1]},
            "wrong_partition": {stranger},
        }  # fmt: skip


def test_added_partitions_do_not_make_records_misplaced(
    shop: Shop, tailrace: Tailrace, make_topic: Callable[..., None]
) -> None:
    make_topic(shop.topic, 1)
    connector = shop.start()
    on_topic(shop, *[shop.insert(VALID, key=key) for key in KEYS])
    assert connector.stop() == 0
    admin = shop.kafka.admin()
    admin.create_partitions([NewPartitions(shop.topic, 3)])[shop.topic].result(30)
    wait_until(lambda: len(admin.list_topics(timeout=10).topics[shop.topic].partitions) == 3, what="more partitions")
    shop.start()
    on_topic(shop, *[shop.insert(VALID, key=key) for key in KEYS])
    assert tailrace("verify", str(shop.file))["clean"]


def test_rows_whose_clock_is_ahead_of_their_commit(shop: Shop, tailrace: Tailrace) -> None:
    shop.start()
    ahead, hole = shop.insert(VALID), shop.insert(VALID)
    on_topic(shop, ahead, hole)
    shop.execute("UPDATE outbox SET created_at = now() + interval '5 hours'")
    since = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
    found = tailrace("verify", str(shop.file), "--from", since)
    assert (found["rows"], found["published"], found["clean"]) == (2, 2, True)
    shop.execute("UPDATE outbox SET id = gen_random_uuid() WHERE id = %s", hole)
    found = tailrace("verify", str(shop.file), "--from", since, code=1)
    assert (found["published"], found["missing"]) == (1, 1)


def test_keys_and_types_on_mongodb(users: Users, tailrace: Tailrace) -> None:
    users.start()
    events = [users.insert(key="k", seq=number) for number in range(1, 4)]
    on_topic(users, *events)
    with users.client() as client:
        outbox = client[users.database]["outbox"]
        outbox.update_one({"event_id": events[0]}, {"$set": {"partition_key": "other"}})
        outbox.update_one({"event_id": events[1]}, {"$set": {"event_type": "UserRenamed"}})
        outbox.update_one({"event_id": events[2]}, {"$set": {"created_at": datetime.now(UTC) + timedelta(hours=5)}})
    found = tailrace("verify", str(users.file), code=1)
    assert {kind: found[kind] for kind in FAULTS if found[kind]} == {"key_changed": 1, "type_changed": 1}
    since = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
    assert tailrace("verify", str(users.file), "--from", since)["published"] == 1
