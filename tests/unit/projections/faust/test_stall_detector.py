"""Stalls are detected: no records although the log grows, no progress, a blocked event loop."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from helpers.memory_store import MemoryStore
from tailrace.errors import KafkaUnavailable, ProjectionStalled
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.app import projection_app
from tailrace.projections.faust.stall_detector import ProjectionStallDetector, stalled
from tailrace.projections.projection import Projection

P0, P1 = Partition("orders", 0), Partition("orders", 1)
BOTH = {P0, P1}
BLOCKED_LOOP = """
import asyncio, sys, time
from tailrace.projections.faust.stall_detector import ProjectionWatchdog
async def main():
    dog = ProjectionWatchdog(0.5)
    dog.start(asyncio.get_running_loop())
    for _ in range(10):
        await asyncio.sleep(0.1)
    print("alive", flush=True)
    {then}
asyncio.run(main())
"""


def test_an_idle_partition_is_not_a_stall() -> None:
    detector = ProjectionStallDetector(10)
    for now in range(0, 500, 5):
        detector.look(now, {P0: 7, P1: 0}, {P0: 7, P1: 0}, ())
    assert detector.stalled("orders", BOTH, 100) is None
    assert detector.longest(BOTH) == (None, 0.0)


def test_a_growing_log_without_records_is_a_stall() -> None:
    detector = ProjectionStallDetector(10)
    for now in range(0, 110, 5):
        detector.look(now, {P0: 7, P1: now}, {P0: 9 + now, P1: now + 1}, ())
    assert detector.stalled("orders", BOTH, 105) is None
    assert detector.longest(BOTH) == (P0, 105.0)
    error = detector.stalled("orders", BOTH, 104)
    assert isinstance(error, ProjectionStalled)
    assert error.what == "orders: orders[0] ends at offset 114, but for 105 s nothing has come from offset 7 on"
    assert detector.stalled("orders", {P1}, 104) is None, "records of this one arrive each time"


@pytest.mark.parametrize("busy", [(), (P0,)])
def test_busy_partitions_are_ignored(busy: tuple[Partition, ...]) -> None:
    detector = ProjectionStallDetector(10)
    for now in (0, 5, 10):
        detector.look(now, {P0: 7}, {P0: 9}, busy)
    assert (detector.stalled("orders", {P0}, 1) is None) is bool(busy)


def test_a_suspended_process_is_not_a_stall() -> None:
    detector = ProjectionStallDetector(10)
    detector.look(0, {P0: 7}, {P0: 9}, ())
    detector.look(4000, {P0: 7}, {P0: 9}, ())
    assert detector.stalled("orders", {P0}, 10) is None


def test_kafka_without_an_answer_is_reported() -> None:
    detector = ProjectionStallDetector(10)
    detector.look(0, {P0: 7}, {P0: 7}, ())
    detector.look(5, {P0: 7}, None, ())
    assert detector.stalled("orders", {P0}, 4) is None, "not answered once"
    detector.look(10, {P0: 7}, None, ())
    assert isinstance(detector.stalled("orders", {P0}, 4), KafkaUnavailable)
    assert detector.stalled("orders", (), 4) is None, "it reads nothing"
    detector.look(15, {P0: 7}, {P0: 7}, ())
    assert detector.stalled("orders", {P0}, 4) is None


class Busy:
    """The attributes of a worker that the detector reads."""

    def __init__(self, busy_since: float | None) -> None:
        self.busy_since = busy_since
        self.partition = P0
        self.next = 7


def projection(**choices: Any) -> Projection:
    return Projection(projection_app("orders"), "orders", store=MemoryStore(), **choices)


@pytest.mark.parametrize(
    ("busy_since", "unassigned_since", "expected"),
    [
        (None, None, None),
        (950.0, None, None),
        (795.0, None, "orders[0] has made no progress for 205 s at offset 7"),
        (None, 950.0, None),
        (None, 895.0, "no partitions to read for 105 s"),
    ],
)
def test_a_worker_without_progress_is_stalled(
    busy_since: float | None, unassigned_since: float | None, expected: str | None
) -> None:
    found = projection(give_up=100)
    found.workers[P0] = Busy(busy_since)  # type: ignore[assignment]
    error = stalled(found, 1000.0, unassigned_since)
    if expected is None:
        assert error is None
    else:
        assert error is not None
        assert expected in error.what
        assert error.remedy


def test_a_handler_may_take_its_time_limit() -> None:
    found = projection(give_up=100, time_limit=400)
    found.workers[P0] = Busy(0.0)  # type: ignore[assignment]
    assert stalled(found, 450.0, None) is None
    assert stalled(found, 550.0, None) is not None


@pytest.mark.parametrize(("then", "code"), [("time.sleep(60)", 3), ("dog.stop()", 0)])
def test_a_blocked_event_loop_ends_the_process(then: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED_LOOP.format(then=then)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == "alive\n"
    assert ("ProjectionStalled" in done.stderr) is bool(code)
