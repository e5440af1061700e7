"""An outage must not cost threads, sockets or memory, nor delay a stop (I9, I10)."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from psycopg.conninfo import make_conninfo

from helpers.shop import Connector, Shop, close_shop, open_shop
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, TcpProxy, wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.testkit.workload.orders import Mix


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaBroker]:
    """A broker that may be paused."""
    with KafkaBroker(choice=ServerChoice.LOCAL) as broker:
        yield broker


@pytest.fixture
def own_shop(postgres: PostgresServer, own_kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(postgres, own_kafka, tmp_path)
    yield shop
    own_kafka.resume()
    close_shop(shop)


def arrived(shop: Shop) -> int:
    """How many events there are; a broker that was paused first has to find itself again."""
    try:
        return len(shop.published())
    except KafkaException:
        return -1


def memory_mb(connector: Connector) -> float:
    status = Path(f"/proc/{connector.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def test_each_attempt_gives_back_what_it_took(shop: Shop) -> None:
    """A producer has some eight threads: an outage with many attempts would run out of files and never come back."""
    with TcpProxy((shop.postgres.host, shop.postgres.port)) as proxy:
        shop.configure(source={"postgres": make_conninfo(shop.dsn, host=proxy.host, port=proxy.port)})
        connector = shop.start()
        threads, files = connector.holds("task"), connector.holds("fd")
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: connector.log.count('"waiting"') >= 4, 60, what="some attempts")
        proxy.accept()
        wait_until(lambda: connector.log.count('"running"') >= 2, 60, what="it to come back")
        # Room for one attempt that is just ending; four that leaked would be three times as many, and stay.
        wait_until(lambda: connector.holds("task") <= threads + 10, 30, what="the threads of the attempts to end")
        wait_until(lambda: connector.holds("fd") <= files + 16, 30, what="the files of the attempts to be closed")
    shop.writer().transaction(rollback=False)


def test_it_leaves_in_time_though_kafka_hangs(own_shop: Shop) -> None:
    """A driver's call may take half a minute to return; SIGTERM does not wait for it."""
    shop = own_shop
    shop.start().stop()
    shop.kafka.pause()
    connector = shop.start(wait=False)
    wait_until(lambda: connector.holds("task") > 4, 60, what="it to be talking to Kafka")
    # The promise is 5 s; the calls that hang take 10 and 30.
    assert connector.stop(timeout=9) == 0


def threads_that_take(pid: int, number: int) -> Iterator[int]:
    """Kafka's own threads block every signal."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        status = (thread / "status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        if not blocked >> (number - 1) & 1:
            yield int(thread.name)


def test_it_leaves_though_another_thread_was_given_the_signal(shop: Shop) -> None:
    """To whom a signal goes is the kernel's choice; Python's main thread, which alone acts on it, then sleeps on."""
    connector = shop.start()
    pid = connector.process.pid
    other = next(thread for thread in threads_that_take(pid, signal.SIGTERM) if thread != pid)
    assert ctypes.CDLL(None).tgkill(pid, other, signal.SIGTERM) == 0
    assert connector.ended(30) == 0
    assert '"stopped"' in connector.log


def test_a_batch_is_bounded_by_all_its_bytes(own_shop: Shop) -> None:
    """Further columns travel as headers: they fill memory as payloads do."""
    shop = own_shop
    shop.execute("ALTER TABLE outbox ADD COLUMN remark text")
    connector = shop.start()
    shop.kafka.pause()
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, remark) "
        "SELECT gen_random_uuid(), 'order', 'k', 'OrderPlaced', "
        '\'{"order": "k", "revision": 1, "amount": 1, "currency": "EUR"}\', repeat(md5(n::text), 3000) '
        "FROM generate_series(1, 1500) AS n"
    )
    # 140 MB wait in the log; while Kafka hangs the connector holds a batch or two of 8 MiB.
    received = (
        "SELECT sent_lsn - '0/0' FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid "
        "WHERE slot_name = %s"
    )
    before = wait_until(lambda: shop.execute(received, shop.slot))
    wait_until(lambda: shop.execute(received, shop.slot) != before, 60, what="the transaction to be sent")
    end = int(shop.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0])
    shop.kafka.resume()
    # To look at the topic is to read all of it: only when it is all there.
    wait_until(lambda: (shop.confirmed_lsn() or 0) >= end, 90, what=f"the end of it; log:\n{connector.log}")
    wait_until(lambda: arrived(shop) == 1500, 90, what=f"all events; log:\n{connector.log}")
    assert memory_mb(connector) < 170


def test_long_names_do_not_stay_in_memory(shop: Shop) -> None:
    """200 types of 900 kB, each another one: set aside, and the next event passes."""
    connector = shop.start()
    first = shop.insert('{"order": "k", "revision": 1, "amount": 1, "currency": "EUR"}')
    wait_until(lambda: first in {seen.id for seen in shop.published()}, 60, what="the first event")
    before = memory_mb(connector)
    for column, other in (("type", "aggregatetype"), ("aggregatetype", "type")):
        shop.execute(
            f"INSERT INTO outbox (id, aggregateid, {column}, {other}, payload) "
            "SELECT gen_random_uuid(), 'k', repeat(md5(n::text), 28125), 'OrderPlaced', '{}' "
            "FROM generate_series(1, 100) AS n"
        )
    last = shop.insert('{"order": "k", "revision": 2, "amount": 1, "currency": "EUR"}')
    wait_until(lambda: last in {seen.id for seen in shop.published()}, 90, what=f"the last event:\n{connector.log}")
    letters = read_all(shop.kafka.bootstrap, [shop.letters])
    assert len(letters) == 200
    assert {header(letter, "tailrace.reason") for letter in letters} == {"permanent_failure"}
    assert memory_mb(connector) - before < 120


@pytest.mark.parametrize("rows", [1000, 1001, 2002])
def test_a_full_read_is_not_kept_waiting(shop: Shop, rows: int) -> None:
    """The read that is full at the last row of a transaction must not wait a second for a row that is not coming."""
    shop.start()
    writer = shop.writer(mix=Mix(invalid=0.0, savepoint=0.0))
    writer.transaction(events=1, rollback=False)
    assert shop.caught_up().ok
    for turn in range(1, 11):
        shop.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
            "SELECT gen_random_uuid(), 'order', 'k' || n, 'OrderPlaced', "
            '\'{"order": "k", "revision": 1, "amount": 1, "currency": "EUR"}\' FROM generate_series(1, %s) AS n',
            rows,
        )
        began = time.monotonic()
        wait_until(lambda turn=turn: len(shop.published()) == 1 + turn * rows, 60, what="the events to arrive")
        # Not a claim about speed: a read that waits takes its whole second every time, whatever the machine.
        if time.monotonic() - began < 1.0:
            return
    pytest.fail("never within a second")


def test_a_slot_cannot_be_adopted_with_the_table_unread(shop: Shop) -> None:
    shop.configure(source={"start": "beginning", "create": False})
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert')")
    shop.writer().transaction(rollback=False)
    connector = shop.start(wait=False)
    assert connector.ended() == 2
    assert "start: beginning" in connector.log
    shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
    adopting = shop.start("--adopt", wait=False)
    assert adopting.ended() == 2
    assert "cannot be adopted" in adopting.log
    assert shop.published() == []
