"""Rebuilds a projection into a shadow copy, and swaps it in once it has caught up.

A separate worker with its own consumer group fills the copy from the topics, while the old projection stays in use and
up to date. When the copy has nearly caught up, the old projection is blocked for a moment and the store swaps both
(`postgres/swap.py`, `mongo/swap.py`). If the rebuild is killed before the swap is decided, a new start continues it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from tailrace.errors import ConfigError, KafkaUnavailable
from tailrace.projections.core.store import CatchUp, Partition, ProjectionStore
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.projection import Projection
from tailrace.projections.reader.connection import group_of
from tailrace.projections.reader.reader import EventReader
from tailrace.projections.rebuild.catch_up import CatchUpCheck

LOOK_SECONDS = 1.0
CATCH_UP_SECONDS = 5.0
"""How long the old projection's workers may be blocked while the copy catches up."""
LOG_SECONDS = 5.0
log = logging.getLogger("tailrace.projections")


@runtime_checkable
class Rebuildable(Protocol):
    """A store that supports a shadow copy of its projection."""

    def shadow(self) -> ProjectionStore[Any]:
        """Returns the store of the copy: empty, or with what an earlier, unfinished rebuild has written."""

    async def swap(self, name: str, catch_up: CatchUp) -> bool:
        """Replaces the old projection by the copy; returns False if `catch_up` gave up.

        The old projection is blocked at the positions that `catch_up` is called with. If the process is killed, the
        swap has not happened, or it is complete, or the next process that opens the store completes it.
        """


class Rebuild:
    """The rebuild of one projection. The app runs nothing else."""

    def __init__(self, app: ProjectionApp, projection: Projection) -> None:
        store = projection.store
        if not isinstance(store, Rebuildable):
            raise ConfigError(
                f"{projection.name}: a {type(store).__name__} does not support rebuilds",
                remedy="Start a projection with another name and another database, let it catch up, and move readers.",
            )
        if app.agents or app._app_tasks:
            raise ConfigError(
                f"{app.conf.id} has agents, tasks or timers besides its projections",
                why="They would run a second time, in the rebuild's group, and read their topics again.",
                remedy="Move the projection into a separate app (module) with the same `name`, and rebuild that.",
            )
        self._app = app
        self._old: Rebuildable = store
        self._projection = projection
        projection.store = store.shadow()
        projection.is_rebuilding = True
        if projection.spec.settings.on_replay == "rebuild":
            settings = replace(projection.spec.settings, on_replay="apply")
            projection.spec = replace(projection.spec, settings=settings)
        # From the beginning, even if the old one started with the latest.
        projection.start = "earliest"
        app.projections[:] = [projection]
        # A separate group: the old projection's workers keep their partitions.
        app.conf.id = f"{app.conf.id}.rebuild"
        self._catch_up_check = CatchUpCheck(projection.name, group_of(app.conf.id))
        app.task(self._watch)

    async def _watch(self) -> None:
        """Tries to swap whenever the copy has nearly caught up; ends the worker after the swap."""
        logged_at = time.monotonic()
        try:
            while not (await self._is_close() and await self._swap()):
                if time.monotonic() - logged_at > LOG_SECONDS:
                    logged_at = time.monotonic()
                    self._log("rebuilding")
                await asyncio.sleep(LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - it ends the worker
            self._app.fail(error)
            return
        self._log("rebuilt")
        signal.raise_signal(signal.SIGTERM)

    @property
    def _reader(self) -> EventReader:
        if self._app.reader is None:
            raise RuntimeError("the app has not started")
        return self._app.reader

    async def _is_close(self) -> bool:
        reader = self._reader
        if reader.unsettled_since is not None:
            return False  # if that lasts, maintenance ends the worker
        try:
            ends = await reader.offsets.ends(self._projection.topics)
        except KafkaUnavailable as error:
            log.warning("Kafka does not return the ends of the topics: %s", error.what)
            return False
        close = self._catch_up_check.is_close(ends, reader.assignment(), reader.reached(), time.monotonic())
        workers = self._projection.workers.values()
        return (
            close and bool(workers) and all(worker.queued < self._projection.spec.settings.events for worker in workers)
        )

    async def _swap(self) -> bool:
        try:
            return await self._old.swap(self._projection.name, self._catch_up)
        except Exception as error:
            # Once it is finished, it is unknown whether the swap was decided: the next start finds out.
            if self._projection.is_finished or not self._projection.store.is_transient(error):
                raise
            return False

    async def _catch_up(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int] | None:
        deadline = time.monotonic() + CATCH_UP_SECONDS
        required = self._catch_up_check.required(positions, self._reader.reached())
        while any(self._reader.reached().get(each, -1) < offset for each, offset in required.items()):
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(0.05)
        if left := sorted(positions.keys() - required.keys()):
            # Events from there are not in the copy.
            fields = {"projection": self._projection.name, "partitions": ", ".join(map(str, left))}
            log.warning("partitions that the old projection has read do not exist any more", extra={"fields": fields})
        reached = self._reader.reached()
        # From here on this worker must not write: the copy is about to become the projection.
        await self._projection.finish()
        return reached

    def _log(self, message: str) -> None:
        counts = {name: count for name, count in self._projection.metrics.outcomes.items() if count}
        log.info(message, extra={"fields": {"projection": self._projection.name, **counts}})
