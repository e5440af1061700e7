"""Background work of a worker: opens stores, prunes markers, and ends the worker when it makes no progress."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.stall_detector import ProjectionStallDetector, ProjectionWatchdog, stalled
from tailrace.projections.faust.topics import connection, ensure_dead_letter_topic, require_certificates

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp
    from tailrace.projections.projection import Projection
    from tailrace.projections.reader.reader import EventReader

log = logging.getLogger("tailrace.projections")
LOOK_SECONDS = 5.0
PRUNE_SECONDS = 600.0
PRUNED_AT_ONCE = 10_000


async def prune(projection: Projection, now_ms: int) -> int:
    """Deletes markers that are older than `keep_markers`; returns how many."""
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
    """Opens the projections of an app, watches them while they run, and closes them."""

    def __init__(self, app: ProjectionApp) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._watchdog: ProjectionWatchdog | None = None
        self._stall_detector = ProjectionStallDetector(2 * LOOK_SECONDS)
        self.ends: Mapping[Partition, int] = {}
        """The ends of the partitions that this worker reads, as of the last look."""

    async def start(self) -> None:
        for projection in self._app.projections:
            await ensure_dead_letter_topic(self._app, projection.letters, projection.topics)
            await projection.open()
        if self._app.projections:
            self._task = asyncio.create_task(self._run(), name="maintenance")
            self._task.add_done_callback(self._ended)
            self._watchdog = ProjectionWatchdog(min(each.spec.settings.give_up for each in self._app.projections))
            self._watchdog.start(asyncio.get_running_loop())

    def longest_wait(self, projection: Projection) -> tuple[Partition | None, float]:
        """Returns the partition whose next record has not arrived for longest; see ProjectionStallDetector."""
        return self._stall_detector.longest(projection.workers.keys())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._watchdog is not None:
            self._watchdog.stop()
        for projection in self._app.projections:
            await projection.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._app.should_stop:
            self._app.fail(error)  # without this task nobody would notice a stall

    async def _run(self) -> None:
        pruned_at = time.monotonic()
        pruning: asyncio.Task[None] | None = None
        warned: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._app.should_stop:
                return
            reader = self._app.reader
            if reader is None:
                continue  # the app is still starting
            await self._look_at_ends(reader)
            now = time.monotonic()
            unsettled_since = reader.unsettled_since
            for projection in self._app.projections:
                bound = projection.spec.settings.give_up
                error = stalled(projection, now, unsettled_since) or self._stall_detector.stalled(
                    projection.name, projection.workers.keys(), bound
                )
                if error is not None:
                    self._app.fail(error)
                    return
                self._stall_detector.warn(projection, now, unsettled_since, warned)
            if now - pruned_at > PRUNE_SECONDS and (pruning is None or pruning.done()):
                pruned_at = now
                # A separate task: a slow database must not delay the detection of stalls.
                pruning = asyncio.create_task(self._prune(), name="prune")

    async def _look_at_ends(self, reader: EventReader) -> None:
        """Compares how far each partition was read with the end of its log."""
        workers = [worker for projection in self._app.projections for worker in projection.workers.values()]
        if not workers:
            self.ends = {}
            self._stall_detector.look(time.monotonic(), {}, {}, ())
            return
        ends: Mapping[Partition, int] | None = None
        with contextlib.suppress(TailraceError, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                ends = await reader.offsets.ends_of({worker.partition for worker in workers})
        if ends is None:
            await require_certificates(connection(self._app))  # Kafka may have got an invalid certificate
        else:
            self.ends = ends
        busy = {worker.partition for worker in workers if worker.queued or worker.busy_since is not None}
        self._stall_detector.look(time.monotonic(), reader.reached(), ends, busy)

    async def _prune(self) -> None:
        for projection in self._app.projections:
            try:
                deleted = await prune(projection, int(time.time() * 1000))
            except Exception as error:  # noqa: BLE001 - workers report an unavailable database; markers can wait
                fields: dict[str, object] = {"projection": projection.name, "error": type(error).__name__}
                log.warning("markers were not pruned", extra={"fields": fields})
            else:
                if deleted:
                    fields = {"projection": projection.name, "markers": deleted}
                    log.info("markers pruned", extra={"fields": fields})
