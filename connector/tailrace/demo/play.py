"""The plot: connect, write, kill, restart, kill, restart, catch up, judge.

One thread directs; the writers and the watchers have threads of their own. Every wait is for a condition with a
deadline, and while it lasts the show goes on. The judgement is not the live view's: when the connectors have caught up
they are stopped, and then everything on Kafka is read from the beginning and compared with the writers' ledgers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from tailrace.demo.part import Part
from tailrace.demo.report import Report, seconds
from tailrace.demo.scene import Scene
from tailrace.demo.show import Frame, Show
from tailrace.demo.watcher import RECENT
from tailrace.stack import StackError

RATE = 100.0
"""Transactions a second, of each service."""
KILLS_AT = (1 / 3, 2 / 3)
"""Shares of the writing time. The second kill also waits until the first restart is over."""
START_TIMEOUT = 30.0
CATCH_UP_TIMEOUT = 30.0
POLL_SECONDS = 0.03


class Play:
    """One performance on an open scene. `close` ends all threads, wherever they are."""

    def __init__(self, scene: Scene, show: Show, *, writing_seconds: float, seed: int) -> None:
        self._show = show
        self._writing_seconds = writing_seconds
        self._seed = seed
        self._parts = [Part(service, seed=seed) for service in scene.services]
        self._began = time.monotonic()

    def run(self) -> Report:
        self._start_connectors("started", lambda part: f"tailing {part.service.outbox}")
        for part in self._parts:
            part.watcher.start()
        self._began = time.monotonic()
        for part in self._parts:
            part.writer.start(rate=RATE)
        services = " and to ".join(part.service.DATABASE for part in self._parts)
        self._show.note(f"writing {RATE:.0f} transactions/s to {services}; some roll back, some break their schema")
        for share in KILLS_AT:
            self._write_until(share)
            self._kill_and_restart()
        self._write_until(1.0)
        wrote = self._elapsed
        for part in self._parts:
            part.writer.stop()
        self._catch_up()
        for part in self._parts:
            part.stop_connector()
        self._show.note("connectors stopped; reading all of Kafka from the beginning to compare")
        results = [part.judge() for part in self._parts]
        return Report(results, self._seed, wrote)

    def close(self) -> None:
        with ExitStack() as last:
            for part in self._parts:
                last.callback(part.close)

    def _start_connectors(self, how: str, remark: Callable[[Part], str]) -> None:
        for part in self._parts:
            part.connector.start()

        def came_up(part: Part) -> bool:
            if not part.is_running():
                return False
            self._show.note(f"{part.service.NAME} connector {how}: pid {part.connector.pid}, {remark(part)}")
            return True

        self._until(came_up, START_TIMEOUT, what="the start")

    def _kill_and_restart(self) -> None:
        for part in self._parts:
            pid = part.kill()
            self._show.note(f"{part.service.NAME} connector killed (SIGKILL): pid {pid}, in mid-work", alarm=True)
        self._start_connectors("restarted", lambda part: f"running after {seconds(part.outages[-1].millis)}")
        self._until(Part.has_recovered, CATCH_UP_TIMEOUT, what="the first event after the restart")

    def _catch_up(self) -> None:
        """Waits for the live view to be complete; if it never is, the judgement says what is missing."""
        self._show.note("writing ended; waiting for the last events")
        try:
            self._until(Part.has_caught_up, CATCH_UP_TIMEOUT, what="the arrival of the last events")
        except StackError:
            self._show.note("the last events did not come in time", alarm=True)
        self._show.frame(self._frame, last=True)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _write_until(self, share: float) -> None:
        while self._elapsed < share * self._writing_seconds:
            self._wait()

    def _until(self, done: Callable[[Part], bool], timeout: float, *, what: str) -> None:
        """Waits until it is `done` for every part, which is asked until it says so."""
        deadline = time.monotonic() + timeout
        waiting = self._parts
        while waiting := [part for part in waiting if not done(part)]:
            if time.monotonic() > deadline:
                late = waiting[0]
                raise late.connector.failure(f"{what} did not happen within {timeout:g} s: {late.service.NAME}")
            self._wait()

    def _wait(self) -> None:
        """A moment, in which the show goes on."""
        for part in self._parts:
            part.require_health()
        if any(part.state == "new" for part in self._parts):
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
            recent=sorted(arrivals, key=lambda arrival: arrival.received_ms),
        )
