"""The oracle detects broken rules: each mutation breaks one rule of the connector, and the verdict must be negative.

A mutant is the connector with one change, run in its own process. Every scenario is also run with the unchanged
connector, where the verdict must be positive: the mutation causes the failure, not the injected fault.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from helpers.mutations import (
    BELIEVE_ABORTED,
    CONFIRM_COMMIT_LSN,
    CONFIRM_EARLY,
    DROP_IF_FULL,
    DROP_REJECTED,
    POSITION_APART,
    SKIP_BY_LSN,
    SKIP_THE_FENCE,
    STALE_OWNER,
    program,
)
from helpers.shop import Connector, Shop
from tailrace import failpoints
from tailrace.testkit.oracle import OracleVerdict, check_delivery
from tailrace.testkit.stack import wait_until
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.topic_reader import consumed_records, read_all
from tailrace.testkit.workload.orders import Mix

pytestmark = pytest.mark.slow

# A fault that no environment variable can cause: stop or die at an exact step. The guarantees hold.
STOP_BEFORE_PRODUCE = """
import signal, threading
from tailrace import failpoints
from tailrace.kafka import publisher
left = 3
def reached(name):
    global left
    if name == failpoints.BEFORE_PRODUCE:
        left -= 1
        if left == 0:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread, before it goes on
publisher.failpoints.reached = reached
"""
DIE_AFTER_SENDING = """
import os, signal
from tailrace.kafka.publisher import Publisher
left = 3
finish = Publisher._finish
def die(self, step):
    global left
    left -= 1
    if left == 0:
        self._producer.flush(10)  # unlike at the failpoint, every record is on the broker for certain
        os.kill(os.getpid(), signal.SIGKILL)
    finish(self, step)
Publisher._finish = die
"""


def prepared(shop: Shop, transactions: int = 20) -> None:
    """A slot, a stored position, and work that is waiting; batches are small, transactions are cut."""
    shop.configure(limits={"batch_records": 5})
    shop.start().stop()
    writer = shop.writer()
    for _ in range(transactions):
        writer.transaction(events=7, rollback=False)


def is_stopped(connector: Connector) -> bool:
    return Path(f"/proc/{connector.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(("mutation", "green"), [("", True), (CONFIRM_EARLY, False)], ids=["sound", "confirm early"])
def test_confirming_unstored_positions_is_detected(shop: Shop, mutation: str, green: bool) -> None:
    prepared(shop)
    mutant = shop.start(kill=f"{failpoints.BEFORE_PRODUCE}:4", program=program(shop.folder, mutation))
    assert mutant.ended() == -signal.SIGKILL, mutant.log
    # Restarted unchanged: the server does not send again what the slot has confirmed.
    shop.start(wait=green)
    verdict = shop.caught_up()
    assert verdict.ok is green, verdict
    if not green:
        assert verdict.missing
        assert verdict.positions
        assert "SlotAhead" in shop.connectors[-1].log


@pytest.mark.parametrize(
    ("mutation", "green"), [("", True), (CONFIRM_COMMIT_LSN, False)], ids=["sound", "commit_lsn for end_lsn"]
)
def test_a_position_before_the_end_of_its_transaction_is_detected(shop: Shop, mutation: str, green: bool) -> None:
    prepared(shop, transactions=4)
    changed = program(shop.folder, mutation)
    shop.start(program=changed)
    shop.caught_up()
    assert shop.connectors[-1].stop() == 0
    shop.start(program=changed)
    shop.writers[0].transaction(events=1, rollback=False)
    verdict = shop.caught_up()
    assert verdict.ok is green, verdict
    assert bool(verdict.duplicated) is not green


def test_a_reader_of_uncommitted_records_is_detected(shop: Shop) -> None:
    """Here the reader is the mutant, so both readers can read the same topic."""
    prepared(shop)
    assert shop.start(wait=False, program=program(shop.folder, DIE_AFTER_SENDING)).ended() == -signal.SIGKILL
    shop.start()
    assert shop.caught_up().ok
    seen, letters = (
        consumed_records(read_all(shop.kafka.bootstrap, [topic], isolation="read_uncommitted"))
        for topic in (shop.topic, shop.letters)
    )
    verdict = check_delivery(shop.writers[0].written, seen, letters)
    assert not verdict.ok
    assert verdict.duplicated


@pytest.mark.parametrize("mutation", ["", SKIP_THE_FENCE], ids=["sound", "skip the fence"])
def test_an_instance_that_is_not_fenced_is_detected(shop: Shop, mutation: str) -> None:
    """The older instance is suspended with a batch to publish; a newer one takes over; the older one is resumed."""
    prepared(shop)
    older = shop.start(wait=False, program=program(shop.folder, STOP_BEFORE_PRODUCE))
    wait_until(lambda: is_stopped(older), 60, what="the older instance to fall asleep")
    # As a network failure of its machine would do in time: the slot is free for the newer one.
    shop.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", shop.slot)
    newer = shop.start(program=program(shop.folder, mutation))
    assert shop.caught_up().ok
    os.kill(older.process.pid, signal.SIGCONT)
    if not mutation:
        assert older.ended() == 4, older.log
        assert '"Fenced"' in older.log
        shop.writers[0].transaction(rollback=False)
        assert shop.caught_up().ok
        assert newer.running
        return
    wait_until(lambda: shop.verdict().duplicated, 60, what=f"a second publication; the log:\n{older.log}")
    verdict = shop.verdict()
    assert verdict.duplicated
    assert verdict.positions, "the older instance has moved the stored position back"


@pytest.mark.parametrize(("mutation", "green"), [("", True), (STALE_OWNER, False)], ids=["sound", "stale owner"])
def test_an_instance_that_takes_its_pipeline_back_is_detected(shop: Shop, mutation: str, green: bool) -> None:
    """The older instance loses its database, a newer one takes over, and the older one has its database again."""
    prepared(shop)
    direct = shop.settings["source"]["postgres"]
    server = conninfo_to_dict(direct)
    with TcpProxy((str(server["host"]), int(server["port"] or 5432))) as proxy:
        shop.configure(source={"postgres": make_conninfo(direct, host=proxy.host, port=proxy.port)})
        older = shop.start(program=program(shop.folder, mutation))
        proxy.refuse()
        proxy.cut()
        older.says('"SourceUnavailable"')
        shop.configure(source={"postgres": direct})
        newer = shop.start()
        if green:
            assert older.ended() == 4, older.log
            assert shop.caught_up().ok
            assert newer.running
            assert '"Fenced"' not in newer.log
            return
        proxy.accept()
        newer.says('"Fenced"')


@pytest.mark.parametrize(
    ("mutation", "green"), [("", True), (BELIEVE_ABORTED, False)], ids=["sound", "believe an aborted position"]
)
def test_reading_a_position_of_an_aborted_transaction_is_detected(shop: Shop, mutation: str, green: bool) -> None:
    prepared(shop)
    assert shop.start(wait=False, program=program(shop.folder, DIE_AFTER_SENDING)).ended() == -signal.SIGKILL
    shop.start(program=program(shop.folder, mutation))
    last = shop.writers[0].transaction(rollback=False)[-1].id
    wait_until(
        lambda: last in {seen.id for seen in (*shop.published(), *shop.dead_lettered())},
        30,
        what="the last event to arrive",
    )
    verdict = shop.verdict()
    assert verdict.ok is green, verdict
    assert bool(verdict.missing) is not green


@pytest.mark.parametrize(
    ("mutation", "green"), [("", True), (POSITION_APART, False)], ids=["sound", "position in its own transaction"]
)
def test_a_position_stored_in_another_transaction_than_its_events_is_detected(
    shop: Shop, mutation: str, green: bool
) -> None:
    prepared(shop)
    # With two commits a batch the third is that of the second batch's events: its position is never stored.
    die = DIE_AFTER_SENDING.replace("self._producer.flush(10)", "finish(self, step)")
    assert shop.start(wait=False, program=program(shop.folder, mutation, die)).ended() == -signal.SIGKILL
    shop.start()
    verdict = shop.caught_up()
    assert verdict.ok is green, verdict
    assert bool(verdict.duplicated) is not green


@pytest.mark.parametrize(
    ("mutation", "green"), [("", True), (DROP_REJECTED, False)], ids=["sound", "drop what is invalid"]
)
def test_dropping_an_invalid_event_is_detected(shop: Shop, mutation: str, green: bool) -> None:
    shop.start(program=program(shop.folder, mutation))
    bad = shop.writer(mix=Mix(invalid=1.0)).transaction(events=1, rollback=False)
    good = shop.writer(mix=Mix(invalid=0.0)).transaction(events=1, rollback=False)
    wait_until(lambda: good[0].id in {seen.id for seen in shop.published()}, 60, what="the good event to arrive")
    verdict = shop.verdict()
    assert verdict.ok is green, verdict
    assert verdict.missing == ([] if green else [bad[0].id])


@pytest.mark.parametrize(("mutation", "green"), [("", True), (SKIP_BY_LSN, False)], ids=["sound", "skip by LSN"])
def test_skipping_rows_by_their_lsn_is_detected(shop: Shop, mutation: str, green: bool) -> None:
    """Killed with a position inside a transaction, whose first rows are published."""
    prepared(shop)
    assert shop.start(kill=f"{failpoints.AFTER_COMMIT}:4").ended() == -signal.SIGKILL
    assert shop.positions()[-1].cut is not None
    shop.start(program=program(shop.folder, mutation))
    verdict = after_everything_is_confirmed(shop)
    assert verdict.ok is green, verdict
    assert bool(verdict.missing) is not green


@pytest.mark.parametrize(("mutation", "green"), [("", True), (DROP_IF_FULL, False)], ids=["sound", "drop if full"])
def test_dropping_records_that_find_no_room_is_detected(shop: Shop, mutation: str, green: bool) -> None:
    """The queue of the producer is smaller than a batch."""
    shop.configure(kafka={"settings": {"queue.buffering.max.messages": 3}})
    prepared(shop)
    shop.start(program=program(shop.folder, mutation))
    verdict = after_everything_is_confirmed(shop)
    assert verdict.ok is green, verdict
    assert bool(verdict.missing) is not green


def after_everything_is_confirmed(shop: Shop) -> OracleVerdict:
    """Returns the verdict when the pipeline has confirmed all that is written now, published or not."""
    [(written,)] = shop.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
    wait_until(lambda: (shop.confirmed_lsn() or 0) >= int(written), 60, what="all positions to be confirmed")
    return shop.verdict()
