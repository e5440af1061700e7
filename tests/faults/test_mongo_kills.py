"""Rows 1-8 and 42 of the fault matrix for MongoDB: the connector is killed between two steps, or stopped."""

from __future__ import annotations

import os
import random

import pytest

from helpers.kill_loop import ended_within, kill_again_and_again
from helpers.tiers import mostly_slow
from helpers.users import Users
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.workload.writer import Mix

# The kill loop below reaches the other failpoints of a stream.
WHILE_STREAMING = (failpoints.ROWS_READ, failpoints.BEFORE_PRODUCE, failpoints.AFTER_PRODUCE, failpoints.AFTER_COMMIT)
ROUNDS = int(os.environ.get("KILL_ROUNDS", "12"))
SEED = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)


@pytest.mark.parametrize("point", mostly_slow(WHILE_STREAMING, [failpoints.AFTER_PRODUCE, failpoints.AFTER_COMMIT]))
def test_killed_while_streaming(users: Users, point: str) -> None:
    """Small batches cut transactions in the middle: each event is published once and in order (row 42)."""
    users.configure(limits={"batch_records": 5})
    users.start().stop()
    writer = users.writer()
    for _ in range(30):
        writer.transaction(events=7)
    connector = users.start(kill=f"{point}:4")
    assert connector.ended() == -9
    for _ in range(10):
        writer.transaction()
    users.start()
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert verdict.committed > 150


def test_killed_while_an_idle_position_is_stored(users: Users) -> None:
    connector = users.start(kill=failpoints.IDLE_STORED)
    with users.client() as client:
        # Writes to another collection move the server's token past a quiet outbox.
        wait_until(
            lambda: client[users.database].unrelated.insert_one({}) and not connector.running,
            60,
            what="a position without events to be stored",
        )
    assert connector.ended() == -9
    writer = users.writer()
    for _ in range(10):
        writer.transaction()
    users.start()
    verdict = users.caught_up()
    assert verdict.ok, verdict


def test_killed_while_draining(users: Users) -> None:
    connector = users.start(kill=failpoints.DRAINING, wait=False)
    connector.says('"running"')
    writer = users.writer()
    for _ in range(30):
        writer.transaction()
    assert connector.stop() == -9
    users.start()
    verdict = users.caught_up()
    assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_killed_again_and_again(users: Users) -> None:
    mixes = [(Mix(rollback=0.2, invalid=0.05, events_per_transaction=35), 2), (Mix(rollback=0.2, invalid=0.05), 12)]
    kill_again_and_again(users, mixes, rounds=ROUNDS, seed=SEED)


def test_stopped_under_load(users: Users) -> None:
    connector = users.start()
    writer = users.writer()
    writer.start(rate=100)
    wait_until(lambda: len(users.positions()) > 3, 60, what="some batches to be stored")
    assert connector.stop() == 0, connector.log
    assert ended_within(connector, 0)
    writer.stop()
    users.start()
    verdict = users.caught_up()
    assert verdict.ok, verdict
