"""Rows 33 and 52 of the fault matrix: the disk of a server is full, and later has space again."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.shop import Shop, close_shop, open_shop
from helpers.small_disk import SmallDisk, on_a_small_disk
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.stack.server import StackServer
from tailrace.testkit.workload.orders import Mix

MIX = Mix(events_per_transaction=30)
FULL = "No space left on device"


def survives_a_full_disk(shop: Shop, server: StackServer, disk: SmallDisk, *, ends: bool) -> None:
    """Writes, fills the disk until the server fails to write, gives the space back, and compares."""
    connector = shop.start()
    shop.writer(mix=MIX).start(rate=20)
    wait_until(lambda: len(shop.positions()) > 5, 60, what="some batches to be stored")
    disk.fill()
    wait_until(lambda: FULL in server.log.read_text(errors="replace"), 120, what=f"{server.NAME} to notice it")
    if ends:
        wait_until(lambda: not server.running, 120, what=f"{server.NAME} to end")
    shop.writers[0].stop()
    assert connector.running, connector.log
    disk.empty()
    if ends:
        server.start()
    shop.writer(mix=MIX).transaction(rollback=False)
    verdict = shop.caught_up()
    assert verdict.ok, (verdict, connector.log)
    assert connector.running, connector.log


@pytest.mark.slow
def test_the_disk_of_postgres_is_full(kafka: KafkaBroker, tmp_path: Path) -> None:
    settings = {"min_wal_size": "32MB", "max_wal_size": "64MB"}
    with (
        PostgresServer(settings=settings, choice=ServerChoice.LOCAL) as postgres,
        on_a_small_disk(postgres, 400) as disk,
    ):
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            survives_a_full_disk(shop, postgres, disk, ends=False)
        finally:
            close_shop(shop)


@pytest.mark.slow
def test_the_disk_of_kafka_is_full(postgres: PostgresServer, tmp_path: Path) -> None:
    with KafkaBroker(choice=ServerChoice.LOCAL) as kafka, on_a_small_disk(kafka, 400) as disk:
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            survives_a_full_disk(shop, kafka, disk, ends=True)
        finally:
            close_shop(shop)
