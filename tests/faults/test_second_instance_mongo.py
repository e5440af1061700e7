"""Rows 7, 79 and 87 of the fault matrix for MongoDB, which has no slot: Kafka alone knows who runs the pipeline."""

from __future__ import annotations

import os
import signal

import pytest

from helpers.broken_kafka import sleeping
from helpers.command import Tailrace
from helpers.second_instance import broken_seconds_are_harmless, publishes, take_turns
from helpers.users import Users
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.ports import free_port


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_second_instance_takes_over_when_the_first_ends(users: Users, tailrace: Tailrace, delivery: str) -> None:
    users.configure(kafka={"delivery": delivery})
    take_turns(users, tailrace)


def test_a_second_instance_that_cannot_work(users: Users, tailrace: Tailrace) -> None:
    dead = f"mongodb://127.0.0.1:{free_port()}/?replicaSet=rs0"
    broken_seconds_are_harmless(
        users,
        tailrace,
        {
            "dead port": ("SourceUnavailable", {"mongo": dead, "link_timeout": 2}),
            "other database": ("WrongLog", {"collection": ["elsewhere.outbox"]}),
            "other collection": ("StreamChanged", {"collection": [f"{users.database}.elsewhere"]}),
        },
    )
    with users.client() as client:
        assert "elsewhere" not in client.list_database_names(), "a look creates nothing"


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_sleeper_is_replaced_and_stores_nothing_more(users: Users, delivery: str) -> None:
    """Asleep between its events and their position: what it stored then would be older than what the other has."""
    users.configure(kafka={"delivery": delivery})
    older = sleeping(users)
    newer = users.start()
    assert not users.caught_up().missing
    users.writers[0].transaction(rollback=False)
    assert not users.caught_up().missing
    os.kill(older.process.pid, signal.SIGCONT)
    assert older.ended() == 4, older.log
    verdict = users.caught_up()
    assert not verdict.missing, verdict
    assert not verdict.positions, verdict
    assert newer.running, newer.log
    # Without transactions, what it had sent before it slept comes twice: never after it was replaced.
    assert verdict.ok or delivery == "at_least_once", verdict


def test_two_at_the_same_moment_without_transactions(users: Users) -> None:
    """Both may find the pipeline free. One of them is left, and nothing is published twice."""
    users.configure(kafka={"delivery": "at_least_once"})
    users.start().stop()
    pair = [users.start(wait=False) for _ in range(2)]
    users.writer().start(rate=50)
    wait_until(lambda: any('"running"' in each.log for each in pair), 60, what="one of them to run")
    wait_until(
        lambda: any(not each.running or '"PipelineBusy"' in each.log for each in pair), 60, what="the other to yield"
    )
    users.writers[0].stop()
    users.connectors.sort(key=lambda each: each.running and '"PipelineBusy"' not in each.log)
    verdict = users.caught_up()
    assert verdict.ok, (verdict, [each.log for each in pair])


def test_the_older_of_two_stops_though_it_has_nothing_to_publish(users: Users) -> None:
    users.configure(kafka={"delivery": "at_least_once"})
    older = users.start()
    os.kill(older.process.pid, signal.SIGSTOP)
    newer = users.start()
    os.kill(older.process.pid, signal.SIGCONT)
    assert older.ended() == 4, older.log
    users.writer().transaction(rollback=False)
    publishes(users)
    assert newer.running
