"""Rows 59-61 of the fault matrix: a projection killed between any two steps, and a group that keeps rebalancing."""

from __future__ import annotations

import random
import signal

import pytest

from helpers.projection import Projected
from tailrace import failpoints
from tailrace.testkit.stack import wait_until

KEYS = [f"o-{number}" for number in range(12)]


def some_events(projected: Projected, chance: random.Random, count: int = 20) -> None:
    projected.publish(*({"key": chance.choice(KEYS)} for _ in range(count)))


@pytest.mark.parametrize("point", [failpoints.PROJECTION_APPLIED, failpoints.PROJECTION_COMMITTED])
@pytest.mark.parametrize("nth", [1, 3])
def test_killed_at(projected: Projected, point: str, nth: int) -> None:
    """Killed before the commit, a batch is applied again; after it, never."""
    projected.configure("events=7, within=0.01")
    chance = random.Random(nth)
    for _ in range(5):
        some_events(projected, chance)
    worker = projected.start(kill=f"{point}:{nth}", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    applied = sum(map(len, projected.state().values()))
    assert applied < 100, "it died in the middle"
    if point == failpoints.PROJECTION_COMMITTED:
        assert applied > 0, "what it had committed is there"
    projected.start()
    projected.caught_up()
    some_events(projected, chance)
    projected.caught_up()


def test_killed_after_a_dead_letter(projected: Projected) -> None:
    """The dead letter is written, the offset is not: the event fails again, and may be dead-lettered twice."""
    projected.configure("max_attempts=1, within=0.01")
    [first, bad, last] = projected.publish({"key": "o-1"}, {"key": "o-1", "value": b'{"fail": true}'}, {"key": "o-1"})
    worker = projected.start(kill=f"{failpoints.PROJECTION_LETTER}:1", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    projected.start()
    wait_until(lambda: projected.state() == {"o-1": [first, last]}, 120, what="the others to be applied")
    assert {said["id"] for said in projected.dead_letters()} == {bad}


@pytest.mark.slow
def test_a_group_that_keeps_rebalancing(projected: Projected) -> None:
    """Workers start, stop and are killed while events arrive: each change moves partitions."""
    projected.configure("events=5, within=0.02")
    chance = random.Random(61)
    projected.start()
    for _ in range(6):
        for _ in range(3):
            some_events(projected, chance, 10)
        projected.start(wait=chance.random() < 0.5)
        some_events(projected, chance, 10)
        running = [worker for worker in projected.workers if worker.running]
        if len(running) > 2:
            leaver = chance.choice(running)
            if chance.random() < 0.5:
                leaver.kill()
            else:
                assert leaver.stop() == 0, leaver.log
    projected.caught_up(180)
    some_events(projected, chance, 30)
    projected.caught_up()
    # The partitions did move: many workers had some, and the first did not keep all of them.
    readers = [worker for worker in projected.workers if '"reading"' in worker.log]
    assert len(readers) > 3, [worker.log for worker in projected.workers]
    assert projected.workers[0].log.count('"reading"') > 1, projected.workers[0].log


def test_a_worker_that_was_suspended_while_another_took_over(projected: Projected) -> None:
    """It resumes with events of partitions that it lost: they are applied already, and it does not repeat them."""
    projected.configure("events=5, within=0.02")
    chance = random.Random(7)
    sleeper = projected.start()
    some_events(projected, chance, 30)
    projected.caught_up()
    sleeper.process.send_signal(signal.SIGSTOP)
    some_events(projected, chance, 60)
    projected.start()
    projected.caught_up(180)
    sleeper.process.send_signal(signal.SIGCONT)
    some_events(projected, chance, 60)
    projected.caught_up(180)
