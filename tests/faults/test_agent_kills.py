"""Rows 59-64 of the fault matrix with agents: killed between any two steps, aborted records, replays, duplicates."""

from __future__ import annotations

import random
import signal

import pytest

from helpers.agent_apps import AgentHistory
from tailrace import failpoints
from tailrace.testkit.stack import wait_until

KEYS = [f"o-{number}" for number in range(12)]


def some_events(history: AgentHistory, chance: random.Random, count: int = 20) -> None:
    history.publish(*({"key": chance.choice(KEYS)} for _ in range(count)))


POINTS = [failpoints.PROJECTION_HANDED_OVER, failpoints.PROJECTION_APPLIED, failpoints.PROJECTION_COMMITTED]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(history: AgentHistory, point: str) -> None:
    kill_at(history, "each", point)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_in_both_stores_with_batches(histories: AgentHistory, point: str) -> None:
    kill_at(histories, "batches", point)


def kill_at(history: AgentHistory, way: str, point: str) -> None:
    """Killed before the commit, events are applied again; after it, never."""
    history.use(way)
    chance = random.Random(7)
    for _ in range(4):
        some_events(history, chance)
    worker = history.start(kill=f"{point}:3", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    applied = sum(map(len, history.state().values()))
    assert applied < 80, "it died in the middle"
    if point == failpoints.PROJECTION_COMMITTED:
        assert applied > 0, "what it had committed is there"
    history.start()
    history.caught_up()
    some_events(history, chance)
    history.caught_up()


@pytest.mark.slow
def test_killed_after_a_dead_letter(history: AgentHistory) -> None:
    history.use("each", "max_attempts=1")
    [first, bad, last] = history.publish({"key": "o-1"}, {"key": "o-1", "value": b'{"fail": true}'}, {"key": "o-1"})
    worker = history.start(kill=f"{failpoints.PROJECTION_LETTER}:1", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    history.start()
    wait_until(lambda: history.state() == {"o-1": [first, last]}, 120, what="the others to be applied")
    assert {said["id"] for said in history.dead_letters()} == {bad}


def test_aborted_repeated_and_replayed_events(histories: AgentHistory) -> None:
    histories.use("several tasks")
    [first] = histories.publish({"key": "k"})
    histories.publish({"key": "k"}, {"key": "k"}, commit=False)
    [second] = histories.publish({"key": "k"})
    histories.publish({"key": "k", "id": first}, {"key": "k", "id": second, "headers": {"tailrace.replay": "r"}})
    histories.start()
    wait_until(lambda: histories.state() == {"k": [first, second]}, 120, what="each event once")
    [third] = histories.publish({"key": "k"})
    wait_until(lambda: histories.state() == {"k": [first, second, third]}, 120, what="the event after them")


@pytest.mark.slow
def test_a_reset_to_the_beginning_changes_nothing(history: AgentHistory) -> None:
    history.use("batches")
    some_events(history, random.Random(3), 40)
    worker = history.start()
    history.caught_up()
    assert worker.stop() == 0, worker.log
    done = history.command("--reset", "earliest", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    history.start()
    [last] = history.publish({"key": "end"})
    wait_until(lambda: history.state().get("end") == [last], 120, what="the last event")
    history.caught_up()


def test_a_failing_event_is_dead_lettered_and_the_others_are_applied(histories: AgentHistory) -> None:
    histories.use("batches", "max_attempts=2")
    chance = random.Random(5)
    some_events(histories, chance)
    [bad] = histories.publish({"key": "o-1", "value": b'{"fail": true}'})
    some_events(histories, chance)
    worker = histories.start()
    expected = {key: [each for each in ids if each != bad] for key, ids in histories.fold().items()}
    wait_until(lambda: histories.state() == expected, 120, what="all other events")
    assert [said["id"] for said in histories.dead_letters()] == [bad]
    assert worker.running
    assert "AgentCrashed" not in worker.log
    assert "this one fails" not in worker.log, "an error may quote a payload"
