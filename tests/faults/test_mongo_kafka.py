"""Rows 7, 19, 47 and 58 of the fault matrix for MongoDB: Kafka down, slow or refusing, the connector suspended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException

from helpers.broken_kafka import HASTY, IMPATIENT, read_only, sleeping
from helpers.users import Users, close_users, open_users
from tailrace.kafka.publisher import COMMIT_TIMEOUT
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until
from tailrace.testkit.workload.writer import Mix

BACKLOG = 30_000
PADDING = 10_000
BOUND_MB = 250
"""Less than the bytes of the backlog, which takes even more as Python objects."""


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaBroker]:
    """A broker that tests may kill."""
    with KafkaBroker(properties=HASTY, choice=ServerChoice.LOCAL) as broker:
        yield broker


@pytest.fixture
def own_users(mongo: MongoServer, own_kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    users = open_users(mongo, own_kafka, tmp_path)
    users.configure(kafka={"settings": IMPATIENT})
    yield users
    close_users(users)


@pytest.mark.slow
def test_all_brokers_down_for_a_while(own_users: Users) -> None:
    users = own_users
    users.configure(limits={"batch_records": 20})
    connector = users.start()
    writer = users.writer(mix=Mix(events_per_transaction=30))
    writer.start(rate=10)
    wait_until(lambda: len(users.positions()) > 10, 60, what="some batches to be stored")
    users.kafka.kill()
    committed = len(writer.written)
    connector.says('"waiting"', COMMIT_TIMEOUT + 30)
    assert len(writer.written) > committed, "the service goes on"
    assert connector.running
    users.kafka.start()
    writer.stop()
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert connector.running, connector.log


@pytest.mark.slow
def test_kafka_hangs_with_a_backlog_behind_it(own_users: Users) -> None:
    """Reading pauses: the backlog stays in MongoDB's log, not in memory (I9)."""
    users = own_users
    users.configure(kafka={"settings": {}})
    connector = users.start()
    first = users.insert("first")
    wait_until(lambda: first in {seen.id for seen in users.published()}, 60, what=f"the first:\n{connector.log}")
    users.kafka.pause()
    try:
        process = psutil.Process(connector.process.pid)
        with users.client() as client:
            template = client[users.database].outbox.find_one({"event_id": first}, {"_id": 0}) or {}
            padded = {**template, "payload": {**template["payload"], "padding": "x" * PADDING}}
            for begin in range(0, BACKLOG, 1000):
                numbers = range(begin, begin + 1000)
                client[users.database].outbox.insert_many(
                    [{**padded, "event_id": f"e{number}", "partition_key": f"k{number}"} for number in numbers]
                )
        looks: list[float] = []

        def at_rest() -> bool:
            looks.append(process.cpu_times().user)
            return len(looks) > 10 and looks[-1] - looks[-10] < 0.02

        wait_until(at_rest, 60, what="the reading to pause")
        assert process.memory_info().rss < BOUND_MB << 20
    finally:
        users.kafka.resume()

    def all_arrived() -> bool:
        try:
            return len(users.published()) == BACKLOG + 1
        except KafkaException:
            return False  # the broker is not ready yet

    wait_until(all_arrived, 120, what=f"all of them:\n{connector.log}")
    assert len({seen.id for seen in users.published()}) == BACKLOG + 1


def test_dead_letters_that_cannot_be_written_stop_the_pipeline(own_users: Users) -> None:
    users = own_users
    users.start()
    users.writer(mix=Mix(invalid=0.0)).transaction(rollback=False)
    assert users.caught_up().ok
    users.connectors[-1].stop()
    before = users.positions()[-1]
    users.writer(mix=Mix(invalid=0.5), seed=7).transaction(events=12, rollback=False)
    with read_only(users, users.letters):
        connector = users.start(wait=False)
        connector.failed("TopicRefused")
        assert users.letters in connector.log
        assert users.positions()[-1].progress == before.progress
    users.start()
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert verdict.dead_lettered > 0


def test_suspended_for_longer_than_the_transaction_timeout(own_users: Users) -> None:
    """Kafka has aborted the transaction, but no other instance took over: it continues with a new producer."""
    users = own_users
    connector = sleeping(users)
    wait_until(lambda: not users.undecided(), 60, what="Kafka to end the transaction")
    os.kill(connector.process.pid, signal.SIGCONT)
    connector.says('"OutcomeUnknown"', COMMIT_TIMEOUT + 60)
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert connector.running


def test_suspended_while_another_instance_takes_over(own_users: Users) -> None:
    users = own_users
    older = sleeping(users)
    newer = users.start()
    os.kill(older.process.pid, signal.SIGCONT)
    assert older.ended() == 4, older.log
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert newer.running
