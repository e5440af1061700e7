"""Rows 47, 50 and 58 of the fault matrix: Kafka is unavailable, or a topic is deleted or rejects our records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.broken_kafka import HASTY, IMPATIENT, Hesitation, read_only
from helpers.shop import Shop, close_shop, open_shop
from tailrace.kafka.publisher import COMMIT_TIMEOUT
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.workload.orders import Mix


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaBroker]:
    """A broker that may be killed."""
    with KafkaBroker(properties=HASTY, choice=ServerChoice.LOCAL) as broker:
        yield broker


@pytest.fixture
def own_shop(postgres: PostgresServer, own_kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(postgres, own_kafka, tmp_path)
    yield shop
    close_shop(shop)


@pytest.mark.slow
def test_all_brokers_down_for_a_while(own_shop: Shop) -> None:
    """Longer than every timeout: the open transaction is lost, and its events are published again."""
    shop = own_shop
    shop.configure(kafka={"settings": IMPATIENT}, limits={"batch_records": 20})
    connector = shop.start()
    for _ in range(2):
        shop.writer(mix=Mix(events_per_transaction=30)).start(rate=10)
    wait_until(lambda: len(shop.positions()) > 10, 60, what="some batches to be stored")
    shop.kafka.kill()
    committed = sum(len(writer.written) for writer in shop.writers)
    connector.says('"waiting"', COMMIT_TIMEOUT + 30)
    assert sum(len(writer.written) for writer in shop.writers) > committed, "the service goes on"
    assert connector.running
    assert shop.execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", shop.slot) != [("lost",)]
    shop.kafka.start()
    for writer in shop.writers:
        writer.stop()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert connector.running, connector.log


def test_a_broker_restarts_under_load(own_shop: Shop) -> None:
    shop = own_shop
    shop.configure(limits={"batch_records": 20})
    connector = shop.start()
    shop.writer(mix=Mix(events_per_transaction=30)).start(rate=20)
    wait_until(lambda: len(shop.positions()) > 10, 60, what="some batches to be stored")
    shop.kafka.stop()
    shop.kafka.start()
    shop.writers[0].stop()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert connector.running, connector.log


def test_cut_off_until_the_transaction_has_timed_out(postgres: PostgresServer, tmp_path: Path) -> None:
    """Kafka aborts the transaction after its timeout. No other instance took over, so this one continues."""
    with (
        TcpProxy() as proxy,
        KafkaBroker(properties=HASTY, advertised_port=proxy.port, choice=ServerChoice.LOCAL) as broker,
    ):
        proxy.point_at(proxy.host, broker.port)
        shop = open_shop(postgres, broker, tmp_path)
        try:
            shop.configure(kafka={"settings": IMPATIENT})
            hesitation = Hesitation(shop)
            connector = hesitation.connector
            shop.writer().transaction(rollback=False)
            hesitation.wait_until_sent()
            proxy.refuse()
            proxy.cut()
            assert shop.undecided()
            hesitation.commit()
            wait_until(lambda: not shop.undecided(), 60, what="Kafka to end the transaction")
            proxy.accept()
            verdict = shop.caught_up()
            assert verdict.ok, (verdict, connector.log)
            assert connector.running, connector.log
        finally:
            close_shop(shop)


def test_a_deleted_topic_stops_the_pipeline(shop: Shop) -> None:
    shop.configure(kafka={"settings": IMPATIENT})
    connector = shop.start()
    writer = shop.writer(mix=Mix(invalid=0.0))
    writer.transaction(rollback=False)
    assert shop.caught_up().ok
    admin = shop.kafka.admin()
    admin.delete_topics([shop.topic])[shop.topic].result(20)
    before = shop.positions()[-1]
    lost = {entry.id for entry in writer.written}
    for _ in range(3):
        writer.transaction(rollback=False)
    connector.failed("TopicMissing")
    assert shop.topic in connector.log
    assert shop.positions()[-1].progress == before.progress
    # The next start creates the topic from its spec, and publishes the rest.
    shop.start()
    wait_until(lambda: set(shop.verdict().missing) <= lost, 60, what=f"the rest; log:\n{shop.connectors[-1].log}")
    verdict = shop.verdict()
    assert set(verdict.missing) == lost, "only what was on the deleted topic is gone"
    assert not verdict.duplicated
    assert not verdict.out_of_order


def test_a_topic_that_is_missing_and_may_not_be_created(shop: Shop) -> None:
    shop.configure(topics={"create": False})
    shop.start(wait=False).failed("TopicMissing")
    shop.configure(topics={"create": True})
    shop.start()
    shop.writer().transaction(rollback=False)
    assert shop.caught_up().ok


@pytest.mark.parametrize("which", ["topic", "letters"])
def test_a_topic_that_rejects_our_records_stops_the_pipeline(shop: Shop, which: str) -> None:
    """Events for two topics in one batch: the records on the healthy topic must stay invisible, too."""
    shop.start()
    shop.writer(mix=Mix(invalid=0.0)).transaction(rollback=False)
    assert shop.caught_up().ok
    shop.connectors[-1].stop()
    before, seen = shop.positions()[-1], shop.verdict()
    shop.writer(mix=Mix(invalid=0.5), seed=7).transaction(events=12, rollback=False)
    assert {entry.valid for entry in shop.writers[-1].written} == {True, False}
    with read_only(shop, getattr(shop, which)):
        connector = shop.start(wait=False)
        connector.failed("TopicRefused")
        assert getattr(shop, which) in connector.log
        assert shop.positions()[-1].progress == before.progress
        wait_until(lambda: not shop.undecided(), 60, what="the transaction to be aborted")
        now = shop.verdict()
        assert (now.published, now.dead_lettered) == (seen.published, seen.dead_lettered)
    shop.start()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert verdict.dead_lettered > 0
