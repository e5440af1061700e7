"""The tests of projections can fail: with a kit that is broken on purpose, the projection differs from its fold."""

from __future__ import annotations

import signal

import pytest

from helpers.projection import APP, Projected
from tailrace import failpoints
from tailrace.testkit.stack import wait_until

pytestmark = pytest.mark.slow

WITHOUT_MARKERS = """
from tailrace.projections.postgres.transaction import PostgresTransaction
async def mark(self, markers):
    return {marker.event_id for marker in markers}
PostgresTransaction.mark = mark
"""
OFFSET_FIRST = """
from tailrace.projections.core import partition_worker
async def offset_first(transaction, events, spec, **more):
    await projection.store.reset({events[0].partition: events[-1].offset + 1})
    return await apply(transaction, events, spec, **more)
apply, partition_worker.apply = partition_worker.apply, offset_first
from tailrace.projections.postgres.transaction import PostgresTransaction
async def position(self):
    return None
PostgresTransaction.position = position
"""
UNCOMMITTED = """
from tailrace.projections.reader import reader
config = reader.consumer_config
reader.consumer_config = lambda app: {**config(app), "isolation.level": "read_uncommitted"}
"""


def test_without_markers_a_replay_applies_twice(projected: Projected) -> None:
    projected.configure("within=0.01", WITHOUT_MARKERS)
    ids = projected.publish({"key": "k"}, {"key": "k"})
    projected.start()
    wait_until(lambda: projected.state() == {"k": ids}, 120, what="the events")
    projected.publish({"key": "k", "id": ids[0], "headers": {"tailrace.replay": "r"}})
    wait_until(lambda: projected.state() == {"k": [*ids, ids[0]]}, 120, what="the same event, applied twice")
    assert projected.state() != projected.fold()


def test_with_the_offset_stored_first_a_crash_loses_events(projected: Projected) -> None:
    projected.configure("within=0.01, events=3", OFFSET_FIRST)
    lost = projected.publish(*({"key": "k"} for _ in range(3)))
    worker = projected.start(kill=f"{failpoints.PROJECTION_APPLIED}:1", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    projected.start()
    [new] = projected.publish({"key": "k"})
    wait_until(lambda: projected.state() == {"k": [new]}, 120, what="the new event alone")
    assert lost[0] in projected.fold()["k"]


def test_reading_uncommitted_records_applies_aborted_ones(projected: Projected) -> None:
    projected.configure("within=0.01", UNCOMMITTED)
    [aborted] = projected.publish({"key": "k"}, commit=False)
    [committed] = projected.publish({"key": "k"})
    projected.start()
    wait_until(lambda: projected.state() == {"k": [aborted, committed]}, 120, what="an aborted event")
    assert projected.fold() == {"k": [committed]}


def test_the_isolation_level_cannot_be_changed_by_settings(projected: Projected) -> None:
    given = 'kafka_settings={"isolation.level": "read_uncommitted"}'
    projected.configure(
        "within=0.01",
        app=APP.replace(
            'broker="kafka://{bootstrap}"',
            f'broker="kafka://{{bootstrap}}", {given.replace("{", "{{").replace("}", "}}")}',
        ),
    )
    projected.publish({"key": "k"}, commit=False)
    projected.publish({"key": "k"})
    projected.start()
    projected.caught_up()
