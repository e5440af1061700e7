"""Rows 44, 45, 46 and 93 of the fault matrix: brokers of a cluster are killed, also in the middle of a commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from helpers.broken_kafka import HASTY, Hesitation
from helpers.service import Connector
from helpers.shop import Shop, close_shop, open_shop
from helpers.tiers import mostly_slow
from tailrace.testkit.proxied_connection import Direction
from tailrace.testkit.stack import KafkaBroker, KafkaCluster, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.stack.kafka import ClusterMember
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.topic_reader import read_all
from tailrace.testkit.workload.orders import Mix

MIX = Mix(events_per_transaction=30)
STATE = "__transaction_state"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(properties={"broker.session.timeout.ms": "6000"}) as members:
        yield members


@pytest.fixture
def shop(postgres: PostgresServer, cluster: KafkaCluster, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(postgres, cast("KafkaBroker", cluster), tmp_path)
    spec = tmp_path / "topics" / "orders.yaml"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "partitions": 6, "replication": 3}))
    shop.configure(kafka={"internal_replication": 3})
    yield shop
    close_shop(shop)


def batches(shop: Shop, more: int) -> None:
    """Waits until `more` batches are stored."""
    stored = len(shop.positions())
    wait_until(lambda: len(shop.positions()) >= stored + more, 120, what=f"{more} more batches")


def in_sync(cluster: KafkaCluster, topic: str) -> bool:
    partitions = cluster.admin().list_topics(topic, timeout=30).topics[topic].partitions.values()
    return all(len(partition.isrs) == len(cluster.members) for partition in partitions)


def complete(shop: Shop, connector: Connector) -> None:
    """Stops the writers and compares."""
    for writer in shop.writers:
        writer.stop()
    verdict = shop.caught_up()
    assert verdict.ok, (verdict, connector.log)
    assert connector.running, connector.log


@pytest.mark.slow
@pytest.mark.parametrize("end", [KafkaBroker.kill, KafkaBroker.stop], ids=["killed", "rolling restart"])
def test_brokers_are_killed_one_after_another(
    shop: Shop, cluster: KafkaCluster, end: Callable[[KafkaBroker], None]
) -> None:
    connector = shop.start()
    shop.writer(mix=MIX).start(rate=20)
    batches(shop, 5)
    for member in cluster.members:
        end(member)
        assert not member.running
        batches(shop, 5)
        member.start()
        wait_until(lambda: in_sync(cluster, shop.topic), 120, what="the broker to catch up")
    complete(shop, connector)


def java_hash(text: str) -> int:
    """Returns the hash by which Kafka chooses the partition of a transactional id."""
    value = 0
    for char in text:
        value = (value * 31 + ord(char)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def coordinator(cluster: KafkaCluster, transactional_id: str) -> ClusterMember:
    partitions = len(cluster.admin().list_topics(STATE, timeout=30).topics[STATE].partitions)
    return cluster.leader(STATE, java_hash(transactional_id) % partitions)


def sent_but_not_committed(shop: Shop) -> Hesitation:
    """Starts a connector, and returns when its third batch is on the brokers and not committed."""
    hesitation = Hesitation(shop)
    shop.writer(mix=MIX).start(rate=20)
    hesitation.wait_until_sent()
    assert shop.undecided()
    return hesitation


@pytest.mark.slow
def test_the_coordinator_is_killed_during_a_commit(shop: Shop, cluster: KafkaCluster) -> None:
    """Another broker takes its place; the commit is repeated there, or the batch is sent again."""
    hesitation = sent_but_not_committed(shop)
    lost = coordinator(cluster, shop.name)
    lost.kill()
    hesitation.commit()
    try:
        batches(shop, 5)
        assert coordinator(cluster, shop.name) is not lost
    finally:
        lost.start()
    complete(shop, hesitation.connector)


@pytest.mark.slow
def test_too_few_in_sync_replicas(shop: Shop, cluster: KafkaCluster) -> None:
    """Kafka refuses every write to the topic; the pipeline waits, and continues when the broker is back."""
    spec = shop.folder / "topics" / "orders.yaml"
    config = {"config": {"min.insync.replicas": "3"}}
    spec.write_text(json.dumps({**json.loads(spec.read_text()), **config}))
    connector = shop.start()
    shop.writer(mix=MIX).start(rate=20)
    batches(shop, 5)
    lost = cluster.members[-1]
    lost.kill()
    wait_until(lambda: not in_sync(cluster, shop.topic), 60, what="too few in-sync replicas")
    stored = len(shop.positions())
    written = len(shop.writers[0].written)
    wait_until(lambda: len(shop.writers[0].written) > written + 500, 60, what="the service to go on")
    assert len(shop.positions()) <= stored + 1, "a batch was committed without enough replicas"
    lost.start()
    complete(shop, connector)


def visible(broker: KafkaBroker, shop: Shop) -> int:
    """Counts the records that readers see. The broker is asked without its proxy."""
    return len(read_all(broker.direct_bootstrap, [shop.topic]))


@pytest.mark.parametrize("ending", mostly_slow(["late", "never"], ["never"]))
def test_the_answer_to_a_commit_is_lost(postgres: PostgresServer, tmp_path: Path, ending: str) -> None:
    """Kafka has committed the transaction, and the producer cannot know: the stored position decides."""
    with (
        TcpProxy() as proxy,
        KafkaBroker(properties=HASTY, advertised_port=proxy.port, choice=ServerChoice.LOCAL) as broker,
    ):
        proxy.point_at(proxy.host, broker.port)
        shop = open_shop(postgres, broker, tmp_path)
        try:
            hesitation = sent_but_not_committed(shop)
            seen = visible(broker, shop)
            proxy.hold(Direction.TO_CLIENT)
            hesitation.commit()
            wait_until(lambda: visible(broker, shop) > seen, 60, what="Kafka to commit the transaction")
            if ending == "late":
                proxy.release()
            else:
                proxy.cut()
                proxy.restore()
            complete(shop, hesitation.connector)
        finally:
            close_shop(shop)
