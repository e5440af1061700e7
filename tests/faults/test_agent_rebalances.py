"""Rows 61 and 82 with agents: workers come and go, sleep past their session, or are slow while partitions move."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

from helpers.agent_apps import AgentHistory
from helpers.projection import Worker
from tailrace.projections.reader.connection import group_of
from tailrace.testkit.stack import wait_until

KEYS = [f"o-{number}" for number in range(12)]
SLOW = """
@app.agent(channel, concurrency=2)
async def histories(stream):
    async for event in stream:
        async with event.once() as effects:
            await append(event, effects)
            print("inside", flush=True)
            await asyncio.sleep(0.03)
{more}
"""
SWALLOWS = """
from tailrace.errors import EventNotApplied

@app.agent(channel)
async def histories(stream):
    async for batch in stream.take(5, within=0.01):
        try:
            async with batch.once() as effects:
                for event in batch:
                    await append(event, effects)
                await asyncio.sleep(0.1)
        except EventNotApplied as error:
            print("not applied:", error.why, flush=True)
{more}
"""


def some_events(history: AgentHistory, chance: random.Random, count: int = 20) -> None:
    history.publish(*({"key": chance.choice(KEYS)} for _ in range(count)))


@contextmanager
def visitor(history: AgentHistory) -> Iterator[Consumer]:
    """A group member that reads nothing: it takes partitions, and gives them back when it leaves."""
    member = Consumer(
        {
            "bootstrap.servers": history.kafka.bootstrap,
            "group.id": group_of(history.name),
            "partition.assignment.strategy": "roundrobin",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    member.subscribe([history.topic])
    try:
        yield member
    finally:
        member.close()


def visit(history: AgentHistory, worker: Worker, chance: random.Random) -> None:
    before = worker.log.count('"reading"')

    def has_read(times: int) -> bool:
        if chance.random() < 0.3:
            some_events(history, chance, 6)
        return worker.log.count('"reading"') >= before + times

    with visitor(history) as member:

        def is_settled() -> bool:
            member.poll(0.05)
            return has_read(1) and bool(member.assignment())

        wait_until(is_settled, 60, what="both to have partitions")
    wait_until(lambda: has_read(2), 60, what="the worker to have them all")


@pytest.mark.slow
def test_a_member_that_comes_and_goes_while_agents_are_inside_once(history: AgentHistory) -> None:
    history.use(SLOW)
    chance = random.Random(15)
    worker = history.start()
    for _ in range(3):
        some_events(history, chance, 30)
        worker.says("inside", 60)
        visit(history, worker, chance)
    history.caught_up()
    assert worker.running, worker.log
    assert "AgentCrashed" not in worker.log


@pytest.mark.slow
def test_a_member_that_comes_and_goes_in_both_stores(histories: AgentHistory) -> None:
    """An agent that swallows what `once()` raises for a lost partition."""
    histories.use(SWALLOWS)
    chance = random.Random(16)
    worker = histories.start()
    for _ in range(4):
        some_events(histories, chance, 60)
        visit(histories, worker, chance)
    histories.caught_up(180)
    assert "not applied: The worker lost its partition" in worker.log
    assert worker.running, worker.log


@pytest.mark.slow
@pytest.mark.parametrize("way", ["several tasks", "batches"])
def test_a_group_that_keeps_rebalancing(histories: AgentHistory, way: str) -> None:
    histories.use(way)
    chance = random.Random(61)
    histories.start()
    for _ in range(4):
        for _ in range(3):
            some_events(histories, chance, 10)
        histories.start(wait=chance.random() < 0.5)
        some_events(histories, chance, 10)
        running = [worker for worker in histories.workers if worker.running]
        if len(running) > 2:
            leaver = chance.choice(running)
            if chance.random() < 0.5:
                leaver.kill()
            else:
                assert leaver.stop() == 0, leaver.log
    histories.caught_up(180)
    some_events(histories, chance, 30)
    histories.caught_up()


@pytest.mark.slow
def test_a_worker_that_sleeps_past_its_session_while_its_agent_has_events(history: AgentHistory) -> None:
    """It wakes up inside `once()`, with a transaction whose partition another worker has: it must not commit."""
    history.use(SLOW)
    chance = random.Random(7)
    sleeper = history.start()
    some_events(history, chance, 60)
    sleeper.says("inside", 60)
    sleeper.process.send_signal(signal.SIGSTOP)
    some_events(history, chance, 30)
    history.start()
    sleeper.process.send_signal(signal.SIGCONT)
    some_events(history, chance, 30)
    history.caught_up(180)
