"""Row 44 of the fault matrix: one of three brokers hangs. Its connections stay open, and nothing answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from helpers.shop import close_shop, open_shop
from tailrace.testkit.stack import KafkaBroker, KafkaCluster, PostgresServer, wait_until
from tailrace.testkit.workload.orders import Mix


@pytest.fixture
def kafka_set() -> Iterator[KafkaCluster]:
    # Long enough for brokers that share a busy machine; Kafka's own default is 9 s.
    with KafkaCluster(properties={"broker.session.timeout.ms": "6000"}) as members:
        yield members


@pytest.mark.slow
def test_a_broker_that_hangs_while_others_lead(
    postgres: PostgresServer, kafka_set: KafkaCluster, tmp_path: Path
) -> None:
    """Its requests are sent again to other brokers before any of them times out."""
    shop = open_shop(postgres, cast("KafkaBroker", kafka_set), tmp_path)
    try:
        spec = tmp_path / "topics" / "orders.yaml"
        spec.write_text(json.dumps({**json.loads(spec.read_text()), "partitions": 6, "replication": 3}))
        # Shorter than librdkafka's default request timeout of a minute.
        shop.configure(kafka={"settings": {"message.timeout.ms": 55_000}})
        connector = shop.start()
        shop.writer(mix=Mix(events_per_transaction=30)).start(rate=20)
        wait_until(lambda: len(shop.positions()) > 10, 60, what="some batches to be stored")
        hung = kafka_set.leader(shop.topic)
        hung.pause()
        try:
            shop.writers[0].stop()
            verdict = shop.caught_up(120)
        finally:
            hung.resume()
        assert verdict.ok, (verdict, connector.log)
        assert connector.waits == [], connector.log
    finally:
        close_shop(shop)
