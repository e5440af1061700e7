"""Rows 6-9 of the fault matrix: SIGTERM, a suspended process, two instances, and two pipelines on one slot.

A second instance while the first one is healthy: `test_second_instance.py`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from helpers.broken_kafka import HASTY, IMPATIENT, sleeping
from helpers.second_instance import publishes
from helpers.shop import Connector, Shop, close_shop, open_shop
from helpers.tiers import mostly_slow
from tailrace.kafka.publisher import COMMIT_TIMEOUT
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.workload.orders import Mix


@pytest.fixture(scope="module")
def hasty_kafka() -> Iterator[KafkaBroker]:
    """Its broker aborts expired transactions twice a second, not every ten seconds."""
    with KafkaBroker(properties=HASTY, choice=ServerChoice.LOCAL) as broker:
        yield broker


@pytest.fixture
def hasty_shop(postgres: PostgresServer, hasty_kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(postgres, hasty_kafka, tmp_path)
    shop.configure(kafka={"settings": IMPATIENT})
    yield shop
    close_shop(shop)


def slot_is_free(shop: Shop) -> bool:
    return not shop.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", shop.slot)


def test_sigterm_under_load_leaves_a_complete_state(shop: Shop) -> None:
    connector = shop.start()
    for _ in range(3):
        shop.writer(mix=Mix(events_per_transaction=20)).start(rate=100)
    wait_until(lambda: len(shop.positions()) > 20, 60, what="some batches to be stored")
    assert connector.stop() == 0, connector.log
    wait_until(lambda: slot_is_free(shop), what="the server to notice")
    # The confirmed position is the stored one: the slot holds back no log of published events.
    assert shop.confirmed_lsn() == shop.positions()[-1].lsn, connector.log
    for writer in shop.writers:
        writer.stop()
    shop.start()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert verdict.committed > 100


def test_sigterm_ends_an_idle_pipeline_at_once(shop: Shop) -> None:
    connector = shop.start()
    assert connector.stop() == 0
    # It ended by itself, not by the forced end after 5 s.
    assert '"stopped"' in connector.log, connector.log


def test_a_suspension_longer_than_the_transaction_timeout(hasty_shop: Shop) -> None:
    """Kafka aborts the transaction and fences the producer. No instance took over, so it continues with a new one."""
    shop = hasty_shop
    connector = sleeping(shop)
    wait_until(lambda: not shop.undecided(), 60, what="Kafka to end the transaction")
    os.kill(connector.process.pid, signal.SIGCONT)
    connector.says('"OutcomeUnknown"', COMMIT_TIMEOUT + 60)
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert connector.running


def test_a_suspended_instance_that_was_replaced_publishes_nothing_more(hasty_shop: Shop) -> None:
    """The server frees the slot of a suspended client; its commit comes after the new instance has started (I11)."""
    shop = hasty_shop
    shop.execute(f"ALTER DATABASE {shop.name} SET wal_sender_timeout = '8s'")
    older = sleeping(shop)
    newer = shop.start(wait=False)
    newer.says('"SlotBusy"')
    assert f"process {older.process.pid} on " in newer.log, "who had it, and has it still"
    newer.says('"running"')
    assert shop.caught_up().ok
    wait_until(lambda: not shop.undecided(), 60, what="the older one's transaction to end")
    os.kill(older.process.pid, signal.SIGCONT)
    assert older.ended() == 4, older.log
    shop.writers[0].transaction(rollback=False)
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert newer.running


def test_an_instance_without_its_database_does_not_fence_the_one_that_took_over(shop: Shop) -> None:
    """It retries; if each attempt took the pipeline back, no instance would publish."""
    direct = shop.settings["source"]["postgres"]
    server = conninfo_to_dict(direct)
    with TcpProxy((str(server["host"]), int(server["port"] or 5432))) as proxy:
        shop.configure(source={"postgres": make_conninfo(direct, host=proxy.host, port=proxy.port)})
        older = shop.start()
        proxy.refuse()
        proxy.cut()
        older.says('"SourceUnavailable"')
        shop.configure(source={"postgres": direct})
        newer = shop.start()
        assert older.ended() == 4, older.log
        shop.writer().transaction(rollback=False)
        verdict = shop.caught_up()
        assert verdict.ok, verdict
        assert newer.running


@pytest.mark.parametrize("delivery", mostly_slow(["exactly_once", "at_least_once"], ["exactly_once"]))
def test_an_instance_that_continues_after_another_left_owns_the_pipeline_again(shop: Shop, delivery: str) -> None:
    """The last ownership record was the other's. Without a new one nobody could see that this instance runs the
    pipeline, and without transactions it could not either.
    """
    direct = shop.settings["source"]["postgres"]
    server = conninfo_to_dict(direct)
    with TcpProxy((str(server["host"]), int(server["port"] or 5432))) as proxy:
        shop.configure(
            source={"postgres": make_conninfo(direct, host=proxy.host, port=proxy.port)}, kafka={"delivery": delivery}
        )
        older = shop.start()
        proxy.refuse()
        proxy.cut()
        older.says('"SourceUnavailable"')
        os.kill(older.process.pid, signal.SIGSTOP)
        shop.configure(source={"postgres": direct})
        assert shop.start().stop() == 0
        proxy.accept()
        os.kill(older.process.pid, signal.SIGCONT)
        wait_until(lambda: older.log.count('"running"') == 2, 60, what=f"the older one to go on:\n{older.log}")
        shop.connectors.reverse()
        shop.writer().transaction(rollback=False)
        assert shop.caught_up().ok, older.log
        third = shop.start(wait=False)
        third.says('"PipelineBusy"')
        publishes(shop)
        assert older.running, older.log
        assert '"Fenced"' not in older.log


def test_an_instance_fenced_by_one_without_ownership_continues(shop: Shop) -> None:
    """As if an older instance read the ownership just before this one took it, and fenced it just after."""
    connector = shop.start()
    shop.writer().transaction(rollback=False)
    assert shop.caught_up().ok
    settings = {"bootstrap.servers": shop.kafka.bootstrap, "transactional.id": shop.name}
    Producer(settings).init_transactions(30)
    shop.writers[0].transaction(rollback=False)
    connector.says('"Fenced"')
    verdict = shop.caught_up()
    assert verdict.ok, connector.log
    assert connector.running


@pytest.mark.parametrize("first_runs", [True, False])
def test_another_pipeline_on_the_same_slot_is_rejected(shop: Shop, first_runs: bool) -> None:
    first = shop.start()
    writer = shop.writer()
    writer.transaction(rollback=False)
    assert shop.caught_up().ok
    if not first_runs:
        first.stop()
    other = {
        **shop.settings,
        "pipeline": f"{shop.name}-other",
        "source": {**shop.settings["source"], "slot": shop.slot},
    }
    file = shop.folder / "other.yaml"
    file.write_text(json.dumps(other))
    second = Connector(file, shop.folder / "other.log")
    assert second.ended() == 3, second.log
    assert '"SlotUnclaimed"' in second.log
    if first_runs:
        assert first.running
        assert '"waiting"' not in first.log
    else:
        shop.start()
    writer.transaction(rollback=False)
    verdict = shop.caught_up()
    assert verdict.ok, verdict
