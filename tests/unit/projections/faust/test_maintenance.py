"""When a worker stands still, and how markers are pruned."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from helpers.memory_store import MemoryStore
from tailrace.projections.core.store import Marker, Partition
from tailrace.projections.faust.app import projection_app
from tailrace.projections.faust.maintenance import prune, stalled
from tailrace.projections.projection import Projection

P0 = Partition("orders", 0)
HANGING = """
import asyncio, sys, time
from tailrace.projections.faust.maintenance import Watchdog
async def main():
    dog = Watchdog(0.5)
    dog.start(asyncio.get_running_loop())
    for _ in range(10):
        await asyncio.sleep(0.1)
    print("alive", flush=True)
    {then}
asyncio.run(main())
"""


class Busy:
    """As much of a worker as is looked at."""

    def __init__(self, busy_since: float | None) -> None:
        self.busy_since = busy_since
        self.partition = P0
        self.next = 7


def projection(**choices: Any) -> Projection:
    return Projection(projection_app("orders"), "orders", store=MemoryStore(), **choices)


@pytest.mark.parametrize(
    ("busy_since", "unassigned_since", "told"),
    [
        (None, None, None),
        (950.0, None, None),
        (795.0, None, "orders[0] has made no progress for 205 s at offset 7"),
        (None, 950.0, None),
        (None, 895.0, "no partitions to read for 105 s"),
    ],
)
def test_standing_still(busy_since: float | None, unassigned_since: float | None, told: str | None) -> None:
    found = projection(give_up=100)
    found.workers[P0] = Busy(busy_since)  # type: ignore[assignment]
    error = stalled(found, 1000.0, unassigned_since)
    if told is None:
        assert error is None
    else:
        assert error is not None
        assert told in error.what
        assert error.remedy


def test_a_handler_that_may_take_long_is_waited_for() -> None:
    found = projection(give_up=100, time_limit=400)
    found.workers[P0] = Busy(0.0)  # type: ignore[assignment]
    assert stalled(found, 450.0, None) is None
    assert stalled(found, 550.0, None) is not None


def test_markers_are_pruned_by_the_time_of_their_events() -> None:
    async def play(found: Projection) -> list[str]:
        await found.store.open("orders")
        async with found.store.transaction(P0) as transaction:
            await transaction.mark([Marker("old", None, None, 1), Marker("new", None, None, 86_400_000)])
        assert await prune(found, 86_400_000 + 5) == (1 if found.spec.settings.keep_markers else 0)
        return list(found.store.records.markers)

    assert asyncio.run(play(projection(keep_markers=1))) == ["new"]
    assert asyncio.run(play(projection(keep_markers=None))) == ["old", "new"]


@pytest.mark.parametrize(("then", "code"), [("time.sleep(60)", 3), ("dog.stop()", 0)])
def test_a_loop_that_hangs_ends_the_process(then: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING.format(then=then)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == "alive\n"
    assert ("ProjectionStalled" in done.stderr) is bool(code)
