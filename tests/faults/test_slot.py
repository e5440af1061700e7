"""Rows 20-22 of the fault matrix: a dropped, lost or moved slot always stops the pipeline."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.shop import Shop, close_shop, open_shop
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until


@pytest.fixture(scope="module")
def forgetful() -> Iterator[PostgresServer]:
    """A server that keeps almost no WAL for slots."""
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "48MB", "min_wal_size": "32MB"}
    with PostgresServer("16", choice=ServerChoice.LOCAL, settings=settings) as server:
        yield server


@pytest.fixture
def forgetful_shop(forgetful: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(forgetful, kafka, tmp_path)
    yield shop
    close_shop(shop)


def ran_before(shop: Shop) -> None:
    """Runs a pipeline that publishes some events, then stops it."""
    connector = shop.start()
    shop.writer().transaction(3, rollback=False)
    shop.caught_up()
    assert connector.stop() == 0


def outgrow(shop: Shop) -> None:
    """Writes WAL until the server invalidates the slot."""

    def lost() -> bool:
        shop.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000))")
        shop.execute("SELECT pg_switch_wal()")
        shop.execute("CHECKPOINT")
        return shop.execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", shop.slot) == [
            ("lost",)
        ]

    wait_until(lost, 60, what="the loss of the slot")


def missed(shop: Shop) -> list[str]:
    """Commits three events; returns their ids."""
    return [entry.id for entry in shop.writers[0].transaction(3, rollback=False)]


def continues_without(shop: Shop, lost: list[str]) -> None:
    """After --adopt, exactly the events that the error named as being only in the table are missing."""
    connector = shop.start("--adopt")
    new = missed(shop)
    wait_until(lambda: set(new) <= {s.id for s in (*shop.published(), *shop.dead_lettered())}, 60, what="new events")
    verdict = shop.verdict()
    assert sorted(verdict.missing) == sorted(lost)
    verdict.missing.clear()
    assert verdict.ok, verdict
    assert connector.stop() == 0


def test_dropped_while_stopped(shop: Shop) -> None:
    """Row 20. A new slot would begin now and skip everything committed since."""
    ran_before(shop)
    stored = shop.positions()[-1]
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    lost = missed(shop)
    shop.start(wait=False).failed("SlotMissing")
    assert shop.confirmed_lsn() is None, "the slot was re-created"
    assert shop.positions()[-1] == stored
    shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
    # A slot created by hand begins behind the stored position: it is not accepted silently either.
    shop.start(wait=False).failed("SlotAhead")
    continues_without(shop, lost)


def test_invalidated_while_stopped(forgetful_shop: Shop) -> None:
    """Row 21."""
    shop = forgetful_shop
    ran_before(shop)
    stored = shop.positions()[-1]
    lost = missed(shop)
    outgrow(shop)
    shop.start(wait=False).failed("SlotLost")
    shop.start("--adopt", wait=False).failed("SlotLost")
    assert shop.positions()[-1] == stored
    # The remedy that the error names.
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
    continues_without(shop, lost)


def test_invalidated_while_the_connector_hangs(forgetful_shop: Shop) -> None:
    """Row 21, with an open session: the server ends it, and reconnecting must not be taken for a temporary failure."""
    shop = forgetful_shop
    connector = shop.start()
    writer = shop.writer()
    writer.transaction(3, rollback=False)
    assert shop.caught_up().ok
    stored = shop.positions()[-1]
    connector.process.send_signal(signal.SIGSTOP)
    missed(shop)
    outgrow(shop)
    connector.process.send_signal(signal.SIGCONT)
    connector.failed("SlotLost")
    # Events that the walsender had sent before may still be published, but none behind the loss.
    assert shop.positions()[-1].progress >= stored.progress
    verdict = shop.verdict()
    verdict.missing.clear()
    assert verdict.ok, verdict


def test_advanced_by_hand_while_stopped(shop: Shop) -> None:
    """Row 22: the rows in between would never be sent."""
    ran_before(shop)
    stored = shop.positions()[-1]
    lost = missed(shop)
    shop.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", shop.slot)
    shop.start(wait=False).failed("SlotAhead")
    assert shop.positions()[-1] == stored
    continues_without(shop, lost)


def test_adopt_holds_for_one_start_only(shop: Shop) -> None:
    """A process that was started with --adopt must not accept any slot when it reconnects weeks later."""
    ran_before(shop)
    connector = shop.start("--adopt")
    stored = shop.positions()[-1]
    connector.process.send_signal(signal.SIGSTOP)
    shop.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", shop.slot)
    free = "SELECT active_pid IS NULL FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: shop.execute(free, shop.slot) == [(True,)], what="the end of the walsender")
    missed(shop)
    shop.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", shop.slot)
    connector.process.send_signal(signal.SIGCONT)
    connector.failed("SlotAhead")
    assert shop.positions()[-1].lsn == stored.lsn
