"""The plot: connect, write, kill, restart, kill, restart, catch up, judge.

One thread directs; the writer and the watcher have threads of their own. Every wait is for a condition with a
deadline, and while it lasts the show goes on. The judgement is not the live view's: when the connector has caught up
it is stopped, and then everything on Kafka is read from the beginning and compared with the writer's ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.demo.latency import Outage, measure, percentile
from tailrace.demo.report import Report, seconds
from tailrace.demo.scene import Scene
from tailrace.demo.show import Frame, Show
from tailrace.demo.watcher import Watcher
from tailrace.proof.oracle import Outcome, Verdict, backward, judge
from tailrace.proof.reader import read_all, sightings, stored_positions
from tailrace.proof.workload import Mix, Writer, ids_in_table
from tailrace.stack import StackError

RATE = 200.0
"""Transactions a second."""
KEYS = 200
KILLS_AT = (1 / 3, 2 / 3)
"""Shares of the writing time. The second kill also waits until the first restart is over."""
START_TIMEOUT = 30.0
CATCH_UP_TIMEOUT = 30.0
POLL_SECONDS = 0.03
RECENT_JOURNEYS = 300


class Play:
    """One performance on an open scene. `close` ends the writer and the watcher, wherever they are."""

    def __init__(self, scene: Scene, show: Show, *, writing_seconds: float, seed: int) -> None:
        self._scene = scene
        self._show = show
        self._writing_seconds = writing_seconds
        self._seed = seed
        self._writer = Writer(scene.dsn, seed=seed, keys=KEYS, mix=Mix(rollback=0.1, invalid=0.02))
        self._watcher = Watcher(scene.bootstrap, [scene.topic], scene.letters)
        self._outages: list[Outage] = []
        self._connector = "new"
        self._began = time.monotonic()
        self._counted = self._committed = self._rolled_back = 0

    def run(self) -> Report:
        self._start_connector()
        self._show.note(f"connector started: pid {self._scene.connector.pid}, tailing public.outbox")
        self._watcher.start()
        self._began = time.monotonic()
        self._writer.start(rate=RATE)
        self._show.note(f"writing {RATE:.0f} transactions/s; some roll back, some break their schema")
        for share in KILLS_AT:
            self._until(self._after(share), what="the next act")
            self._kill_and_restart()
        self._until(self._after(1.0), what="the end of the writing")
        wrote = self._elapsed
        self._writer.stop()
        self._catch_up()
        verdict = self._judge()
        self._watcher.stop()
        return Report(verdict, measure(self._watcher.journeys, self._outages), self._outages, self._seed, wrote)

    def close(self) -> None:
        self._watcher.stop()
        self._writer.stop()

    def _start_connector(self) -> None:
        self._scene.start_connector()
        self._until(lambda: self._scene.connector_ready, START_TIMEOUT, what="the connector's start")
        self._connector = "running"

    def _kill_and_restart(self) -> None:
        scene = self._scene
        pid = scene.connector.pid
        killed_ms = time.time() * 1000
        scene.kill_connector()
        self._connector = "restarting"
        self._show.note(f"connector killed (SIGKILL): pid {pid}, in the middle of its work", alarm=True)
        self._start_connector()
        outage = Outage(killed_ms, time.time() * 1000)
        self._outages.append(outage)
        self._show.note(f"connector restarted: pid {scene.connector.pid}, running after {seconds(outage.millis)}")
        self._until(
            lambda: self._watcher.journeys and self._watcher.journeys[-1].committed_ms > outage.running_ms,
            CATCH_UP_TIMEOUT,
            what="the first event after the restart",
        )

    def _catch_up(self) -> None:
        """Waits for the live view to be complete; if it never is, the judgement says what is missing."""
        self._show.note("writing ended; waiting for the last events")
        self._count()
        try:
            self._until(lambda: len(self._watcher.ids) >= self._committed, CATCH_UP_TIMEOUT, what="the last events")
        except StackError:
            self._show.note("the last events did not come in time", alarm=True)
        self._show.frame(self._frame, last=True)

    def _judge(self) -> Verdict:
        scene = self._scene
        self._connector = "stopped"
        scene.stop_connector()
        self._show.note("connector stopped; reading all of Kafka from the beginning to compare")
        published = sightings(read_all(scene.bootstrap, [scene.topic]))
        letters = sightings(read_all(scene.bootstrap, [scene.letters]))
        verdict = judge(self._writer.ledger, published, letters, in_table=ids_in_table(scene.dsn))
        positions = stored_positions(scene.bootstrap, scene.pipeline, scene.offsets)
        verdict.positions = backward([position.progress for position in positions])
        confirmed = scene.confirmed_lsn()
        if positions and confirmed is not None and confirmed > positions[-1].lsn:
            verdict.positions.append(f"the slot is confirmed to {confirmed}, stored is {positions[-1].lsn}")
        return verdict

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _after(self, share: float) -> Callable[[], bool]:
        return lambda: self._elapsed >= share * self._writing_seconds

    def _until(self, condition: Callable[[], object], timeout: float = 0.0, *, what: str) -> None:
        """Waits while the show goes on; `timeout` 0 is for conditions that are a matter of time alone."""
        deadline = time.monotonic() + timeout
        while not condition():
            for error in (self._writer.error, self._watcher.error):
                if error is not None:
                    raise error
            if self._connector == "running" and not self._scene.connector_ready:
                raise self._scene.connector.failure("the connector ended by itself")
            if timeout and time.monotonic() > deadline:
                raise self._scene.connector.failure(f"{what} did not happen within {timeout:g} s")
            if self._connector == "new":
                self._show.busy("starting the connector")
            else:
                self._show.frame(self._frame)
            time.sleep(POLL_SECONDS)

    def _frame(self) -> Frame:
        self._count()
        watcher = self._watcher
        recent = [journey.millis for journey in watcher.journeys[-RECENT_JOURNEYS:]]
        return Frame(
            elapsed=self._elapsed,
            total=self._writing_seconds,
            connector=self._connector,
            committed=self._committed,
            rolled_back=self._rolled_back,
            arrived=len(watcher.journeys) - watcher.letters,
            letters=watcher.letters,
            p50_ms=percentile(recent, 0.5),
            recent=list(watcher.recent),
        )

    def _count(self) -> None:
        """Takes in what the ledger has grown by."""
        ledger = self._writer.ledger
        for entry in ledger[self._counted :]:
            self._counted += 1
            if entry.outcome is Outcome.ROLLED_BACK:
                self._rolled_back += 1
            else:
                self._committed += 1
