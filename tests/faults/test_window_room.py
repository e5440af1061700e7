"""A replay window on a server with a log limit per slot: the window shrinks before the slot is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from helpers.shop import Shop, close_shop, open_shop
from tailrace.check.health import read_health
from tailrace.cli.status import _slot_lines
from tailrace.config.load import load_pipeline
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until

MB = 1 << 20
MOST = 96
PAYLOAD = json.dumps({"order": "o", "revision": 1, "amount": 1, "currency": "EUR"})
NOISE = f"SELECT pg_logical_emit_message(false, 'noise', repeat('x', {MB})), pg_sleep(0.02)"
"""Writes a MiB of log that does not concern the outbox, about 40 a second."""
ROOM = "SELECT coalesce(safe_wal_size, -1), wal_status FROM pg_replication_slots WHERE slot_name = %s"


@pytest.fixture
def own(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    settings = {"max_slot_wal_keep_size": f"{MOST}MB", "max_wal_size": "64MB", "min_wal_size": "32MB"}
    with PostgresServer("16", choice=ServerChoice.LOCAL, settings=settings) as server:
        shop = open_shop(server, kafka, tmp_path)
        yield shop
        close_shop(shop)


def test_the_window_shrinks_before_the_slot_is_lost(own: Shop) -> None:
    own.configure(source={"replay_window": "24 h"})
    connector = own.start()
    least, ids = MOST * MB, set()
    with psycopg.connect(own.dsn, autocommit=True) as connection:
        for number in range(400):
            connection.execute(NOISE)
            if number % 10 == 0:
                ids.add(own.insert(PAYLOAD, key=str(number)))
            if number % 40 == 0:
                connection.execute("CHECKPOINT")
            room, status = connection.execute(ROOM, [own.slot]).fetchall()[0]
            assert status != "lost", f"after {number} MiB:\n{connector.log}"
            least = min(least, int(room))
    wait_until(lambda: ids <= {seen.id for seen in own.published()}, 60, what="the rows")
    assert connector.log.count("the replay window is given up") == 1
    assert least > MOST * MB // 8, "without a window it is about half"
    assert connector.stop() == 0
    lost_while_nobody_reads(own)


def lost_while_nobody_reads(own: Shop) -> None:
    """Postgres 16 reports a conflict and no remaining bytes, although there is a limit."""
    with psycopg.connect(own.dsn, autocommit=True) as connection:

        def lost() -> bool:
            connection.execute(f"SELECT pg_logical_emit_message(false, 'noise', repeat('x', {32 * MB}))")
            connection.execute("CHECKPOINT")
            return bool(connection.execute(ROOM, [own.slot]).fetchall()[0][1] == "lost")

        wait_until(lost, 60, what="the slot to be lost")
    lines = str(_slot_lines(read_health(load_pipeline(own.file))))
    assert "INVALIDATED (wal_removed)" in lines
    assert "bound" not in lines
    own.start(wait=False).failed("SlotLost")
    assert "invalidated (wal_removed)" in own.connectors[-1].log
