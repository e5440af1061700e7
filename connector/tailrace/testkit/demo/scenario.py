"""The plot: connect, write, kill, restart, catch up, judge. Connectors are killed twice, between that the projection.

One thread directs; the writers and the watchers have threads of their own. Every wait is for a condition with a
deadline, and while it lasts the show goes on. The judgement is not the live view's: when all have caught up they are
stopped, and then everything on Kafka is read from the beginning and compared with the writers' ledgers, and what the
projection holds with what it should hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from tailrace.testkit.demo.consumer import RECENT
from tailrace.testkit.demo.display import Display, Frame
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.demo.process import DemoProcess
from tailrace.testkit.demo.projection_run import ProjectionRun
from tailrace.testkit.demo.report import DemoReport, seconds
from tailrace.testkit.demo.service_run import ServiceRun
from tailrace.testkit.stack import StackError

RATE = 100.0
"""Transactions a second, of each service."""
FIRST_KILL, PROJECTION_KILL, SECOND_KILL = 1 / 3, 1 / 2, 2 / 3
"""Shares of the writing time. Connectors are back before the next kill, the projection perhaps not."""
START_TIMEOUT = 30.0
CATCH_UP_TIMEOUT = 30.0
POLL_SECONDS = 0.03

P = TypeVar("P", bound=DemoProcess)


class Scenario:
    """One performance on an open scene. `close` ends all threads, wherever they are."""

    def __init__(self, scene: DemoEnvironment, show: Display, *, writing_seconds: float, seed: int) -> None:
        self._show = show
        self._writing_seconds = writing_seconds
        self._seed = seed
        self._parts = [ServiceRun(service, seed=seed) for service in scene.services]
        self._projections = [ProjectionRun(summary, self._parts[0]) for summary in scene.projections]
        self._performers: list[DemoProcess] = [*self._parts, *self._projections]
        self._began = time.monotonic()

    def run(self) -> DemoReport:
        self._start_connectors()
        for part in self._parts:
            part.watcher.start()
        # Now its topic is there. Nobody waits for it: a consumer may come when it likes.
        for projection in self._projections:
            projection.start()
        self._began = time.monotonic()
        for part in self._parts:
            part.writer.start(rate=RATE)
        services = " and to ".join(part.service.DATABASE for part in self._parts)
        self._show.note(f"writing {RATE:.0f} transactions/s to {services}; some roll back, some break their schema")
        self._write_until(FIRST_KILL)
        self._kill_connectors()
        self._write_until(PROJECTION_KILL)
        self._kill_projections()
        self._write_until(SECOND_KILL)
        self._kill_connectors()
        self._write_until(1.0)
        wrote = self._elapsed
        for part in self._parts:
            part.writer.stop()
        self._catch_up()
        for performer in self._performers:
            performer.stop()
        self._show.note("all processes stopped; reading all of Kafka from the beginning to compare")
        results = [part.judge() for part in self._parts]
        return DemoReport(results, [projection.judge() for projection in self._projections], self._seed, wrote)

    def close(self) -> None:
        with ExitStack() as last:
            for part in self._parts:
                last.callback(part.close)

    def _start_connectors(self) -> None:
        for part in self._parts:
            part.start()
        self._until(ServiceRun.is_running, self._parts, START_TIMEOUT, what="the start")

    def _kill_connectors(self) -> None:
        self._kill(self._parts)
        self._start_connectors()
        self._until(ServiceRun.has_recovered, self._parts, CATCH_UP_TIMEOUT, what="the first event after the restart")

    def _kill_projections(self) -> None:
        """The plot goes on before they are back."""
        self._until(ProjectionRun.is_at_work, self._projections, START_TIMEOUT, what="the first event applied")
        self._kill(self._projections)
        for projection in self._projections:
            projection.start()

    def _kill(self, performers: Sequence[DemoProcess]) -> None:
        for performer in performers:
            pid = performer.kill()
            self._show.note(f"{performer.name} killed (SIGKILL): pid {pid}, in mid-work", alarm=True)

    def _catch_up(self) -> None:
        """Waits for the live view to be complete; if it never is, the judgement says what is missing."""
        self._show.note("writing ended; waiting for the last events")
        try:
            self._until(ServiceRun.has_caught_up, self._parts, CATCH_UP_TIMEOUT, what="the arrival of the last events")
            self._until(ProjectionRun.has_caught_up, self._projections, CATCH_UP_TIMEOUT, what="the last event applied")
        except StackError:
            self._show.note("the last events did not come in time", alarm=True)
        self._show.frame(self._frame, last=True)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _write_until(self, share: float) -> None:
        while self._elapsed < share * self._writing_seconds:
            self._wait()

    def _until(self, done: Callable[[P], bool], performers: Sequence[P], timeout: float, *, what: str) -> None:
        """Waits until it is `done` for each of them, who is asked until it says so."""
        deadline = time.monotonic() + timeout
        waiting = performers
        while waiting := [performer for performer in waiting if not done(performer)]:
            if time.monotonic() > deadline:
                late = waiting[0]
                raise late.failure(f"{what} did not happen within {timeout:g} s: {late.name}")
            self._wait()

    def _wait(self) -> None:
        """A moment, in which the show goes on."""
        for performer in self._performers:
            performer.require_health()
            if performer.came_up():
                self._show.note(_entrance(performer))
        if any(part.state == "starting" for part in self._parts):
            self._show.busy("starting the connectors")
        else:
            self._show.frame(self._frame)
        time.sleep(POLL_SECONDS)

    def _frame(self) -> Frame:
        # As many of each, or the busier one would hide the other.
        share = RECENT // len(self._parts)
        arrivals = [arrival for part in self._parts for arrival in list(part.watcher.recent)[-share:]]
        return Frame(
            elapsed=self._elapsed,
            total=self._writing_seconds,
            standings=[part.standing() for part in self._parts],
            projections=[projection.standing() for projection in self._projections],
            recent=sorted(arrivals, key=lambda arrival: arrival.received_ms),
        )


def _entrance(performer: DemoProcess) -> str:
    """What is told of one who has come up."""
    pid = performer.process.pid
    if not performer.outages:
        return f"{performer.name} started: pid {pid}, {performer.task}"
    return (
        f"{performer.name} restarted: pid {pid}, {performer.task} again after {seconds(performer.outages[-1].millis)}"
    )
