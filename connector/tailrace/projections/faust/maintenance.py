"""Background work of a worker: prunes markers, and ends the worker when it makes no progress.

The worker exits with an error if a partition makes no progress, if no records arrive although the log grows, if it lost
its partitions and got none back, or if a handler blocks the event loop. A thread watches the event loop and ends the
process itself, since nothing else can.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError

from tailrace.errors import ProjectionStalled
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.stall_detector import StallDetector
from tailrace.projections.faust.topics import connection, ensure_letters, require_certificates

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp
    from tailrace.projections.projection import Projection

log = logging.getLogger("tailrace.projections")
LOOK_SECONDS = 5.0
PRUNE_SECONDS = 600.0
PRUNED_AT_ONCE = 10_000
WARN_AFTER = 0.5
"""Of the bound: from then on the worker says that it is unhealthy."""
STALLED = 3
"""The exit code of a process whose event loop hangs."""


def slowest(workers: Iterable[PartitionWorker], now: float) -> tuple[PartitionWorker | None, float]:
    """The worker that has worked longest on what it has, and for how long."""
    found, longest = None, 0.0
    for worker in workers:
        if worker.busy_since is not None and now - worker.busy_since > longest:
            found, longest = worker, now - worker.busy_since
    return found, longest


def stalled(projection: Projection, now: float, unassigned_since: float | None) -> ProjectionStalled | None:
    """The error, if this projection stands still for longer than it may."""
    bound = projection.spec.settings.give_up
    worker, seconds = slowest(projection.workers.values(), now)
    if worker is not None and seconds > bound + max(bound, projection.spec.settings.time_limit):
        return ProjectionStalled(
            f"{projection.name}: {worker.partition} has made no progress for {seconds:.0f} s at offset {worker.next}",
            why="A handler takes very long, or the store answers neither yes nor no.",
            remedy="Look at the handler and at locks in its database; a new start goes on where this one stopped.",
        )
    if unassigned_since is not None and now - unassigned_since > bound:
        return ProjectionStalled(
            f"{projection.name}: no partitions to read for {now - unassigned_since:.0f} s",
            why="They were taken away and not given back, or Kafka does not say where they begin and end: it is away, a"
            " partition has no leader, or the group does not settle.",
            remedy="Look at the brokers and at the other members of the group; then start again.",
        )
    return None


async def prune(projection: Projection, now_ms: int) -> int:
    """Deletes markers that are older than the projection keeps them; how many."""
    keep = projection.spec.settings.keep_markers
    if keep is None:
        return 0
    before = now_ms - int(keep * 1000)
    deleted = 0
    while (count := await projection.store.prune(before, PRUNED_AT_ONCE)) > 0:
        deleted += count
        if count < PRUNED_AT_ONCE:
            break
    return deleted


class Maintenance:
    """Opens what the projections of an app need, looks after them while they run, and closes up."""

    def __init__(self, app: ProjectionApp) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._watchdog: Watchdog | None = None
        self._stall_detector = StallDetector(2 * LOOK_SECONDS)

    async def start(self) -> None:
        for projection in self._app.projections:
            await ensure_letters(self._app, projection.letters, projection.topics)
            await projection.open()
        if self._app.projections:
            self._task = asyncio.create_task(self._keep_up(), name="upkeep")
            self._task.add_done_callback(self._ended)
            self._watchdog = Watchdog(min(each.spec.settings.give_up for each in self._app.projections))
            self._watchdog.start(asyncio.get_running_loop())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._watchdog is not None:
            self._watchdog.stop()
        for projection in self._app.projections:
            await projection.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._app.should_stop:
            self._app.fail(error)  # without it nobody would notice that the worker stands still

    async def _keep_up(self) -> None:
        pruned_at = time.monotonic()
        pruning: asyncio.Task[None] | None = None
        warned: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._app.should_stop:
                return
            await self._look_at_ends()
            now = time.monotonic()
            unsettled_since = self._app.reader.unsettled_since
            for projection in self._app.projections:
                bound = projection.spec.settings.give_up
                error = stalled(projection, now, unsettled_since) or self._stall_detector.stalled(
                    projection.name, projection.workers.keys(), bound
                )
                if error is not None:
                    self._app.fail(error)
                    return
                unhealthy(projection, now, unsettled_since, self._stall_detector, warned)
            if now - pruned_at > PRUNE_SECONDS and (pruning is None or pruning.done()):
                pruned_at = now
                # Beside: a database that takes its time must not keep the worker from noticing that it stands still.
                pruning = asyncio.create_task(self._prune(), name="prune")

    async def _look_at_ends(self) -> None:
        """Compares how far each partition was read with the end of its log."""
        workers = [worker for projection in self._app.projections for worker in projection.workers.values()]
        if not workers:
            self._stall_detector.look(time.monotonic(), {}, {}, ())
            return
        ends: Mapping[Partition, int] | None = None
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                ends = await self._app.reader.ends_of({worker.partition for worker in workers})
        if ends is None:
            await require_certificates(connection(self._app))  # what keeps Kafka away may be a renewed certificate
        busy = {worker.partition for worker in workers if worker.queued or worker.busy_since is not None}
        self._stall_detector.look(time.monotonic(), self._app.reader.reached(), ends, busy)

    async def _prune(self) -> None:
        for projection in self._app.projections:
            await _prune_if_possible(projection)


def unhealthy(
    projection: Projection, now: float, unsettled_since: float | None, arrivals: StallDetector, warned: set[str]
) -> None:
    """Says once of a projection that it has stood still for half the time after which the worker ends."""
    worker, seconds = slowest(projection.workers.values(), now)
    missing, waited = arrivals.longest(projection.workers.keys())
    unsettled = now - unsettled_since if unsettled_since is not None else 0.0
    longest = max(seconds, waited, unsettled)
    if longest <= WARN_AFTER * projection.spec.settings.give_up:
        warned.discard(projection.name)
    elif projection.name not in warned:
        warned.add(projection.name)
        told: dict[str, object] = {"projection": projection.name, "seconds": round(longest)}
        partition = (
            worker.partition if worker is not None and seconds == longest else missing if waited == longest else None
        )
        if partition is not None:
            told["partition"] = str(partition)
        log.warning("unhealthy", extra={"fields": told})


async def _prune_if_possible(projection: Projection) -> None:
    try:
        deleted = await prune(projection, int(time.time() * 1000))
    except Exception as error:  # noqa: BLE001 - the workers tell of a database that is away; markers can wait
        told = {"projection": projection.name, "error": type(error).__name__}
        log.warning("markers were not pruned", extra={"fields": told})
    else:
        if deleted:
            log.info("markers pruned", extra={"fields": {"projection": projection.name, "markers": deleted}})


class Watchdog:
    """Ends the process if its event loop hangs for longer than `bound` seconds."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._seen = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._seen = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        pause = min(1.0, self._bound / 4)
        while True:
            slept_at = time.monotonic()
            if self._stop.wait(pause) or self._loop.is_closed():
                return
            if time.monotonic() - slept_at > pause + self._bound / 4:
                self._seen = time.monotonic()  # the whole process was stopped: no handler's fault
            self._loop.call_soon_threadsafe(self._beat)
            if time.monotonic() - self._seen > self._bound:
                sys.stderr.write(
                    f"ProjectionStalled: the event loop has been blocked for more than {self._bound:.0f} s\n"
                    "  why:    A handler does not give way: it computes, or waits without `await`.\n"
                    "  remedy: Use an asynchronous client in handlers, or `await asyncio.to_thread(…)`.\n"
                )
                sys.stderr.flush()
                os._exit(STALLED)

    def _beat(self) -> None:
        self._seen = time.monotonic()
