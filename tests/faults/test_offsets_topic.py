"""Rows 10-13 of the fault matrix: the offsets topic is lost, forged, corrupt or misconfigured. No event is skipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from helpers.shop import Connector, Shop
from tailrace.positions.base import to_stored
from tailrace.positions.postgres import format_lsn
from tailrace.testkit.stack import KafkaBroker, PostgresServer, StackError, wait_until
from tailrace.testkit.topic_reader import read_all, stored_positions
from tailrace.testkit.workload.orders import SHOP_DDL


def own_offsets_topic(shop: Shop) -> str:
    """An offsets topic that no other test shares."""
    topic = f"{shop.name}.offsets"
    shop.configure(kafka={"offsets_topic": topic})
    return topic


def write(shop: Shop, value: bytes | None) -> None:
    """Writes a record with the pipeline's key to the offsets topic."""
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    producer.produce(shop.settings["kafka"]["offsets_topic"], value, shop.name.encode())
    assert producer.flush(10) == 0


def stored(shop: Shop) -> dict[str, Any]:
    topic = shop.settings["kafka"]["offsets_topic"]
    return to_stored(stored_positions(shop.kafka.bootstrap, shop.name, topic)[-1])


def refused(shop: Shop, code: str, *arguments: str) -> Connector:
    """Starts the pipeline, which must fail with `code` and publish nothing."""
    before = len(read_all(shop.kafka.bootstrap, [shop.topic, shop.letters]))
    connector = shop.start(*arguments, wait=False)
    assert connector.ended() == 3, connector.log
    assert f'"{code}"' in connector.log
    assert len(read_all(shop.kafka.bootstrap, [shop.topic, shop.letters])) == before
    return connector


def arrived(shop: Shop, timeout: float = 30) -> None:
    """Waits until no event is missing; there may be duplicates."""
    wait_until(lambda: not shop.verdict().missing, timeout, what=f"all events; log:\n{shop.connectors[-1].log}")


def used(shop: Shop) -> None:
    """Runs and stops the pipeline, then writes events that are not published yet."""
    shop.start()
    writer = shop.writer()
    for _ in range(5):
        writer.transaction(rollback=False)
    assert not shop.caught_up().missing
    assert shop.connectors[-1].stop() == 0
    for _ in range(5):
        writer.transaction(rollback=False)


def test_a_lost_offsets_topic_does_not_look_like_a_first_start(shop: Shop) -> None:
    topic = own_offsets_topic(shop)
    used(shop)
    admin = shop.kafka.admin()
    admin.delete_topics([topic])[topic].result(20)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, what="the topic to go")
    refused(shop, "SlotUnclaimed")
    shop.start("--adopt")
    arrived(shop)
    assert shop.connectors[-1].stop() == 0
    shop.writers[0].transaction(rollback=False)
    shop.start()
    arrived(shop)


def test_an_open_transaction_of_another_pipeline_hides_no_position(shop: Shop) -> None:
    """It is open before our last position: reading only up to it would return an older one."""
    topic = own_offsets_topic(shop)
    shop.start()
    other = Producer({"bootstrap.servers": shop.kafka.bootstrap, "transactional.id": f"{shop.name}-other"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, b"{}", b"another pipeline")
    assert other.flush(10) == 0
    shop.writer().transaction(rollback=False)
    wait_until(lambda: shop.published() or shop.dead_lettered(), 60, what="the event to arrive")
    shop.connectors[-1].kill()
    restarted = shop.start(wait=False)
    # The new instance must wait until the transaction is committed.
    with pytest.raises(StackError):
        wait_until(lambda: '"running"' in restarted.log or not restarted.running, 3, what="a start")
    other.abort_transaction(10)
    restarted.says('"running"')
    shop.writers[0].transaction(rollback=False)
    verdict = shop.caught_up()
    assert verdict.ok, verdict


def test_a_wrong_position_is_rejected_and_can_be_corrected(shop: Shop) -> None:
    """Ahead of the server's log, unreadable or deleted: each has its own error. The right one is accepted again."""
    own_offsets_topic(shop)
    used(shop)
    good = stored(shop)
    far = int(shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0]) + 2**32
    write(shop, json.dumps({**good, "lsn": format_lsn(far)}).encode())
    refused(shop, "PositionAhead")
    write(shop, json.dumps({**good, "lsn": "beyond"}).encode())
    refused(shop, "OffsetRecordCorrupt")
    write(shop, None)
    refused(shop, "SlotUnclaimed")
    write(shop, json.dumps(good).encode())
    shop.start()
    arrived(shop)
    assert not shop.verdict().duplicated


def test_a_position_of_another_server_is_rejected(shop: Shop, postgres18: PostgresServer) -> None:
    """The settings point to another cluster that is otherwise the same."""
    own_offsets_topic(shop)
    used(shop)
    at_home = shop.settings["source"]["postgres"]
    elsewhere = postgres18.create_database(shop.name)
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        connection.execute(SHOP_DDL)
        connection.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert')")
        shop.configure(source={"postgres": elsewhere})
        log = refused(shop, "WrongLog").log
        assert "system_id" in log
        assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchall() == [(0,)]
    shop.configure(source={"postgres": at_home})
    shop.start()
    arrived(shop)
    assert not shop.verdict().duplicated


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xfe not json",
        b'{"format": 2, "source": "postgres"}',
        b'{"format": 1, "source": "postgres", "lsn": 5, "at_ms": 0, "log": {}}',
    ],
)
def test_a_corrupt_record_is_reported_and_not_ignored(
    shop: Shop, make_topic: Callable[..., None], value: bytes
) -> None:
    make_topic(own_offsets_topic(shop), cleanup_policy="compact")
    write(shop, value)
    log = refused(shop, "OffsetRecordCorrupt").log
    assert shop.name in log
    assert shop.confirmed_lsn() is None, "no slot may be created on top of a position that cannot be read"


@pytest.mark.parametrize(("partitions", "policy"), [(1, "delete"), (1, "compact,delete"), (2, "compact")], ids=str)
def test_an_offsets_topic_that_could_lose_positions_is_rejected(
    shop: Shop, make_topic: Callable[..., None], partitions: int, policy: str
) -> None:
    make_topic(own_offsets_topic(shop), partitions, cleanup_policy=policy)
    refused(shop, "OffsetsTopicUnfit")
    assert shop.confirmed_lsn() is None


def test_the_offsets_topic_is_created_with_the_right_settings(shop: Shop, kafka: KafkaBroker) -> None:
    topic = own_offsets_topic(shop)
    shop.start()
    found = kafka.admin().list_topics(timeout=10).topics[topic]
    assert len(found.partitions) == 1


def test_an_event_cannot_forge_a_position(shop: Shop) -> None:
    """With a template of only the aggregate, a row of the outbox could name the offsets topic."""
    topic = own_offsets_topic(shop)
    shop.configure(topics={"folder": None, "template": "{aggregate}"})
    shop.start()
    before = len(read_all(shop.kafka.bootstrap, [topic]))
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "VALUES (gen_random_uuid(), %s, 'another-pipeline', 'OrderPlaced', %s)",
        topic,
        json.dumps({"order": "o", "revision": 1, "amount": 1, "currency": "EUR"}),
    )
    wait_until(lambda: len(shop.dead_lettered()) == 1, 60, what="the dead letter")
    written = {message.key() for message in read_all(shop.kafka.bootstrap, [topic])[before:]}
    assert b"another-pipeline" not in written
