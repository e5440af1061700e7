"""The scenario of the demo: start, write, kill, restart, catch up, check. And `--keep`: keep everything running.

Connectors are killed twice, the projection once in between. One thread controls the run; writers and consumers have
their own threads. Every wait has a condition and a deadline, and the display is updated meanwhile. The check does not
use the live counters: after all processes have stopped, all topics are read from the beginning and compared with what
was written, and the projection's rows with its topic.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from tailrace.testkit.demo.consumer import RECENT
from tailrace.testkit.demo.display import Display, Frame
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.demo.process import DemoProcess
from tailrace.testkit.demo.projection import MODULE, OrderSummaryProjection
from tailrace.testkit.demo.report import DemoReport, seconds
from tailrace.testkit.demo.service import Service, ServiceRun
from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.workload.writer import Mix

RATE = 100.0
"""Transactions per second and service."""
FIRST_KILL, PROJECTION_KILL, SECOND_KILL = 1 / 3, 1 / 2, 2 / 3
"""Fractions of the writing time. Connectors are back before the next kill, the projection perhaps not."""
START_TIMEOUT = 60.0
CATCH_UP_TIMEOUT = 60.0
POLL_SECONDS = 0.03
KEEP_RATE = 5.0
"""Transactions per second and service with `--keep`: slow enough to read along."""
KEEP_KEYS = 20
KEEP_POLL_SECONDS = 0.5

P = TypeVar("P", bound=DemoProcess)


class Scenario:
    """One run in an open environment. `close` ends all threads."""

    def __init__(self, environment: DemoEnvironment, display: Display, *, writing_seconds: float, seed: int) -> None:
        self._display = display
        self._writing_seconds = writing_seconds
        self._seed = seed
        self._services = [ServiceRun(service, seed=seed) for service in environment.services]
        self._projections = [summary.run(self._services[0]) for summary in environment.projections]
        self._processes: list[DemoProcess] = [*self._services, *self._projections]
        self._began = time.monotonic()

    def run(self) -> DemoReport:
        self._start_connectors()
        for each in self._services:
            each.consumer.start()
        # Its topic exists now. Nobody waits for it: a consumer may start at any time.
        for projection in self._projections:
            projection.start()
        self._began = time.monotonic()
        for each in self._services:
            each.writer.start(rate=RATE)
        databases = " and to ".join(each.service.DATABASE for each in self._services)
        self._display.note(f"writing {RATE:.0f} transactions/s to {databases}; some roll back, some break their schema")
        self._write_until(FIRST_KILL)
        self._kill_connectors()
        self._write_until(PROJECTION_KILL)
        self._kill_projections()
        self._write_until(SECOND_KILL)
        self._kill_connectors()
        self._write_until(1.0)
        wrote = self._elapsed
        for each in self._services:
            each.writer.stop()
        self._catch_up()
        for process in self._processes:
            process.stop()
        self._display.note("all processes stopped; reading all of Kafka from the beginning to compare")
        results = [each.result() for each in self._services]
        return DemoReport(results, [projection.result() for projection in self._projections], self._seed, wrote)

    def close(self) -> None:
        with ExitStack() as last:
            for each in self._services:
                last.callback(each.close)

    def _start_connectors(self) -> None:
        for each in self._services:
            each.start()
        self._until(ServiceRun.is_running, self._services, START_TIMEOUT, what="the start")

    def _kill_connectors(self) -> None:
        self._kill(self._services)
        self._start_connectors()
        self._until(
            ServiceRun.has_recovered, self._services, CATCH_UP_TIMEOUT, what="the first event after the restart"
        )

    def _kill_projections(self) -> None:
        """Kills and starts them, without waiting until they are back."""
        self._until(
            lambda each: each.has_applied_events(), self._projections, START_TIMEOUT, what="the first event applied"
        )
        self._kill(self._projections)
        for projection in self._projections:
            projection.start()

    def _kill(self, processes: Sequence[DemoProcess]) -> None:
        for process in processes:
            pid = process.kill()
            self._display.note(f"{process.name} killed (SIGKILL): pid {pid}, in mid-work", alarm=True)

    def _catch_up(self) -> None:
        """Waits until the live counters are complete; if they never are, the check says what is missing."""
        self._display.note("writing ended; waiting for the last events")
        try:
            self._until(
                ServiceRun.has_caught_up, self._services, CATCH_UP_TIMEOUT, what="the arrival of the last events"
            )
            self._until(
                lambda each: each.has_caught_up(), self._projections, CATCH_UP_TIMEOUT, what="the last event applied"
            )
        except StackError:
            self._display.note("the last events did not come in time", alarm=True)
        self._display.frame(self._frame, last=True)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _write_until(self, share: float) -> None:
        while self._elapsed < share * self._writing_seconds:
            self._wait()

    def _until(self, done: Callable[[P], bool], processes: Sequence[P], timeout: float, *, what: str) -> None:
        """Waits until `done` is true for each of them."""
        deadline = time.monotonic() + timeout
        waiting = processes
        while waiting := [process for process in waiting if not done(process)]:
            if time.monotonic() > deadline:
                late = waiting[0]
                raise late.failure(f"{what} did not happen within {timeout:g} s: {late.name}")
            self._wait()

    def _wait(self) -> None:
        """Waits a moment and updates the display."""
        for process in self._processes:
            process.require_health()
            if process.has_just_started():
                self._display.note(_start_note(process))
        if any(each.state == "starting" for each in self._services):
            self._display.busy("starting the connectors")
        else:
            self._display.frame(self._frame)
        time.sleep(POLL_SECONDS)

    def _frame(self) -> Frame:
        # The same number of each service, or the busier one would hide the other.
        share = RECENT // len(self._services)
        arrivals = [arrival for each in self._services for arrival in list(each.consumer.recent)[-share:]]
        return Frame(
            elapsed=self._elapsed,
            total=self._writing_seconds,
            pipelines=[each.status() for each in self._services],
            projections=[projection.status() for projection in self._projections],
            recent=sorted(arrivals, key=lambda arrival: arrival.received_ms),
        )


def _start_note(process: DemoProcess) -> str:
    """Returns the note about a process that has started."""
    pid = process.process.pid
    if not process.downtimes:
        return f"{process.name} started: pid {pid}, {process.task}"
    return f"{process.name} restarted: pid {pid}, {process.task} again after {seconds(process.downtimes[-1].millis)}"


def keep_running(environment: DemoEnvironment, display: Display, *, seed: int) -> None:
    """Runs connectors, projections and writers until Ctrl-C."""
    processes = [
        *(service.connector for service in environment.services),
        *(each.process for each in environment.projections),
    ]
    for process in processes:
        process.start()
    wait_until(lambda: all(process.ready for process in processes), START_TIMEOUT, what="the start of all processes")
    writers = [service.writer(seed=seed + 1, keys=KEEP_KEYS, mix=Mix()) for service in environment.services]
    with ExitStack() as stopping:
        for writer in writers:
            stopping.callback(writer.stop)
            writer.start(rate=KEEP_RATE)
        display.say(instructions(environment))
        while all(process.ready for process in processes) and all(writer.error is None for writer in writers):
            time.sleep(KEEP_POLL_SECONDS)


def instructions(environment: DemoEnvironment) -> list[str]:
    """Returns how to connect, look around and stop."""
    topics = [service.topic for service in environment.services]
    return [
        "",
        f"Everything keeps running, now with {KEEP_RATE:.0f} transactions per second and service. In another terminal:",
        *(line for service in environment.services for line in _service(service)),
        *(line for projection in environment.projections for line in _projection(projection)),
        "",
        "the topics, as any consumer reads them",
        f"  kcat -C -b {environment.bootstrap} -X isolation.level=read_committed -t {topics[0]}",
        *(
            line
            for topic in topics
            for line in (
                f"  kafka-console-consumer.sh --bootstrap-server {environment.bootstrap} --topic {topic} \\",
                "    --isolation-level read_committed --from-beginning",
            )
        ),
        "",
        f"the files: {environment.folder} (pipelines and their logs, schemas/, topics/)",
        "",
        "Ctrl-C ends everything and removes the folder.",
    ]


def _service(service: Service) -> list[str]:
    file = shlex.quote(str(service.connector.file))
    return [
        "",
        f"the {service.NAME}, on {service.DATABASE}",
        f"  watch the events   tailrace tail {file}",
        f"  its state          tailrace status {file}",
        f"  dead letters       tailrace dlq list {file}",
        f"  the outbox         {service.client}",
    ]


def _projection(projection: OrderSummaryProjection) -> list[str]:
    return [
        "",
        f"the projection {projection.NAME}, of {projection.orders.topic} into {projection.orders.DATABASE}",
        f"  its rows           {projection.client}",
        f"  its code           {MODULE}",
    ]
