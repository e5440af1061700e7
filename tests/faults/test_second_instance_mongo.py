"""Rows 7, 79 and 87 of the fault matrix for MongoDB, which has no slot: only Kafka shows which instance runs."""

from __future__ import annotations

import os
import signal

import pytest

from helpers.broken_kafka import sleeping
from helpers.command import Tailrace
from helpers.second_instance import broken_seconds_are_harmless, publishes, take_turns
from helpers.tiers import mostly_slow
from helpers.users import Users
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.ports import free_port


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_second_instance_takes_over_when_the_first_ends(users: Users, tailrace: Tailrace, delivery: str) -> None:
    users.configure(kafka={"delivery": delivery})
    take_turns(users, tailrace)


@pytest.mark.slow
def test_a_second_instance_that_cannot_work_does_not_affect_the_first(users: Users, tailrace: Tailrace) -> None:
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


@pytest.mark.parametrize("delivery", mostly_slow(["exactly_once", "at_least_once"], ["exactly_once"]))
def test_a_suspended_instance_that_was_replaced_stores_nothing_more(users: Users, delivery: str) -> None:
    """Suspended between its events and their position, which would be older than that of the new instance."""
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
    # Without transactions, events sent before the suspension are published twice, but none after it was replaced.
    assert verdict.ok or delivery == "at_least_once", verdict


def test_of_two_simultaneous_starts_without_transactions_one_remains(users: Users) -> None:
    """Both may find the pipeline free. One of them ends, and nothing is lost.

    If it is replaced between the events of a batch and their position, these are published twice, as this mode allows.
    """
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
    wrong = verdict.missing + verdict.phantom + verdict.positions
    assert not wrong, (verdict, [each.log for each in pair])
    assert len(verdict.duplicated) < verdict.published / 2, "the events of one batch at most"


def test_the_older_of_two_instances_stops_without_events_to_publish(users: Users) -> None:
    users.configure(kafka={"delivery": "at_least_once"})
    older = users.start()
    os.kill(older.process.pid, signal.SIGSTOP)
    newer = users.start()
    os.kill(older.process.pid, signal.SIGCONT)
    assert older.ended() == 4, older.log
    users.writer().transaction(rollback=False)
    publishes(users)
    assert newer.running
