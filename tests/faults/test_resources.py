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
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.topic_reader import header, read_all
from tailrace.testkit.workload.orders import Mix


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaBroker]:
    """A broker that the test may pause."""
    with KafkaBroker(choice=ServerChoice.LOCAL) as broker:
        yield broker


@pytest.fixture
def own_shop(postgres: PostgresServer, own_kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(postgres, own_kafka, tmp_path)
    yield shop
    own_kafka.resume()
    close_shop(shop)


def arrived(shop: Shop) -> int:
    """Returns the number of published events; -1 while a resumed broker is not ready yet."""
    try:
        return len(shop.published())
    except KafkaException:
        return -1


def memory_mb(connector: Connector) -> float:
    status = Path(f"/proc/{connector.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


@pytest.mark.slow
def test_each_attempt_frees_its_threads_and_files(shop: Shop) -> None:
    """A producer has about eight threads: without this, a long outage would exhaust file descriptors."""
    with TcpProxy((shop.postgres.host, shop.postgres.port)) as proxy:
        shop.configure(source={"postgres": make_conninfo(shop.dsn, host=proxy.host, port=proxy.port)})
        connector = shop.start()
        threads, files = connector.holds("task"), connector.holds("fd")
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: connector.log.count('"waiting"') >= 4, 60, what="some attempts")
        proxy.accept()
        wait_until(lambda: connector.log.count('"running"') >= 2, 60, what="the connector to run again")
        # The margin allows one attempt that is just ending. Four leaked ones would be three times as many, and stay.
        wait_until(lambda: connector.holds("task") <= threads + 10, 30, what="the threads of the attempts to end")
        wait_until(lambda: connector.holds("fd") <= files + 16, 30, what="the files of the attempts to be closed")
    shop.writer().transaction(rollback=False)


def test_it_stops_in_time_while_kafka_hangs(own_shop: Shop) -> None:
    """A client call may take half a minute to return; SIGTERM does not wait for it."""
    shop = own_shop
    shop.start().stop()
    shop.kafka.pause()
    connector = shop.start(wait=False)
    wait_until(lambda: connector.holds("task") > 4, 60, what="the connector to call Kafka")
    # The limit is 5 s; the hanging calls take 10 s and 30 s.
    assert connector.stop(timeout=9) == 0


def threads_that_accept(pid: int, number: int) -> Iterator[int]:
    """Yields the threads that do not block a signal; librdkafka's threads block all."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        status = (thread / "status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        if not blocked >> (number - 1) & 1:
            yield int(thread.name)


def test_it_stops_if_another_thread_received_the_signal(shop: Shop) -> None:
    """The kernel chooses the thread for a signal. Python's main thread, which alone handles it, must be woken."""
    connector = shop.start()
    pid = connector.process.pid
    other = next(thread for thread in threads_that_accept(pid, signal.SIGTERM) if thread != pid)
    assert ctypes.CDLL(None).tgkill(pid, other, signal.SIGTERM) == 0
    assert connector.ended(30) == 0
    assert '"stopped"' in connector.log


@pytest.mark.slow
def test_a_batch_is_bounded_by_all_its_bytes(own_shop: Shop) -> None:
    """Further columns become headers, which need memory like payloads."""
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
    # The log has 140 MB; while Kafka hangs, the connector holds one or two batches of 8 MiB.
    received = (
        "SELECT sent_lsn - '0/0' FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid "
        "WHERE slot_name = %s"
    )
    before = wait_until(lambda: shop.execute(received, shop.slot))
    wait_until(lambda: shop.execute(received, shop.slot) != before, 60, what="the transaction to be sent")
    end = int(shop.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0])
    shop.kafka.resume()
    # Counting reads the whole topic, so it begins when everything is confirmed.
    wait_until(
        lambda: (shop.confirmed_lsn() or 0) >= end, 90, what=f"the end of the transaction; log:\n{connector.log}"
    )
    wait_until(lambda: arrived(shop) == 1500, 90, what=f"all events; log:\n{connector.log}")
    assert memory_mb(connector) < 170


def test_long_names_do_not_stay_in_memory(shop: Shop) -> None:
    """200 different types of 900 kB are dead-lettered, and the next event is published."""
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
    assert memory_mb(connector) - before < 170, "the names alone have 180 MB"


@pytest.mark.parametrize("rows", [1000, 1001, 2002])
def test_a_full_read_does_not_wait(shop: Shop, rows: int) -> None:
    """A read that is full at the last row of a transaction must not wait a second for another row."""
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
        # This does not measure speed: a read that waits takes a whole second every time, on any machine.
        if time.monotonic() - began < 1.0:
            return
    pytest.fail("never within a second")


def test_a_slot_cannot_be_adopted_before_the_table_was_read(shop: Shop) -> None:
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
