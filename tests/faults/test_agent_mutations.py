"""The tests of agents can fail: with a kit that is broken on purpose, the history differs from its fold."""

from __future__ import annotations

import signal

import pytest

from helpers.agent_apps import AgentHistory
from tailrace import failpoints
from tailrace.testkit.stack import wait_until

pytestmark = pytest.mark.slow

WITHOUT_MARKERS = """
from tailrace.projections.postgres.transaction import PostgresTransaction
async def mark(self, markers):
    return {marker.event_id for marker in markers}
PostgresTransaction.mark = mark
"""
EFFECTS_IN_ANOTHER_TRANSACTION = """
import psycopg
from tailrace.projections.core.handover import Turn
hand_over = Turn.hand_over
class Elsewhere:
    async def execute(self, statement, parameters):
        async with await psycopg.AsyncConnection.connect(store.address[0], autocommit=True) as connection:
            await connection.execute("SELECT set_config('search_path', %s, false)", [store.address[1]])
            await connection.execute(statement, parameters)
async def elsewhere(self, events, effects, *more):
    return await hand_over(self, events, Elsewhere(), *more)
Turn.hand_over = elsewhere
"""
UNSETTLED_COUNTS_AS_DONE = """
from tailrace.projections.core.event_delivery import EventDelivery
from tailrace.projections.core.store import EventOutcome
def skip(self):
    if not self.is_settled:
        self.settle(EventOutcome.SKIPPED)
EventDelivery.end_interruption = skip  # the first call after the agent has asked for more
"""
FAILURE_COUNTS_AS_DONE = """
from tailrace.projections.core.event_delivery import EventDelivery
from tailrace.projections.core.store import EventOutcome
def fail(self, error):
    if not self.is_settled:
        self.settle(EventOutcome.APPLIED)
EventDelivery.fail = fail
"""
FAILS_ONCE = """
failed = set()

@app.agent(channel)
async def histories(stream):
    async for event in stream:
        if event.offset == 1 and event.id not in failed:
            failed.add(event.id)
            raise ValueError("once")
        async with event.once() as effects:
            await append(event, effects)
{more}
"""
FORGETS = FAILS_ONCE.replace('raise ValueError("once")', "continue")


def test_without_markers_a_replay_is_applied_twice(history: AgentHistory) -> None:
    history.use("each", more=WITHOUT_MARKERS)
    ids = history.publish({"key": "k"}, {"key": "k"})
    history.start()
    wait_until(lambda: history.state() == {"k": ids}, 120, what="the events")
    history.publish({"key": "k", "id": ids[0], "headers": {"tailrace.replay": "r"}})
    wait_until(lambda: history.state() == {"k": [*ids, ids[0]]}, 120, what="the same event, applied twice")
    assert history.state() != history.fold()


def test_with_effects_in_another_transaction_a_kill_applies_twice(history: AgentHistory) -> None:
    history.use("each", more=EFFECTS_IN_ANOTHER_TRANSACTION)
    [first, second] = history.publish({"key": "k"}, {"key": "k"})
    worker = history.start(kill=f"{failpoints.PROJECTION_APPLIED}:1", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    history.start()
    wait_until(lambda: history.state() == {"k": [first, first, second]}, 120, what="the first event twice")
    assert history.fold() == {"k": [first, second]}


@pytest.mark.parametrize("sabotage", ["", FAILURE_COUNTS_AS_DONE], ids=["whole", "sabotaged"])
def test_an_attempt_that_fails_loses_its_event_if_failures_count_as_done(history: AgentHistory, sabotage: str) -> None:
    history.use(FAILS_ONCE, more=sabotage)
    ids = history.publish(*({"key": "k"} for _ in range(4)))
    history.start()
    expected = [ids[0], *ids[2:]] if sabotage else ids
    wait_until(lambda: history.state().get("k", [])[-1:] == ids[-1:], 120, what="the last event")
    assert history.state() == {"k": expected}


def test_going_on_without_settling_loses_events_if_it_is_allowed(history: AgentHistory) -> None:
    history.use(FORGETS, more=UNSETTLED_COUNTS_AS_DONE)
    ids = history.publish(*({"key": "k"} for _ in range(4)))
    history.start()
    wait_until(lambda: history.state() == {"k": [ids[0], *ids[2:]]}, 120, what="all but the forgotten event")
    assert history.fold() == {"k": ids}
