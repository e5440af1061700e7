"""A projection made anew beside the old one, and put in its place once it has caught up.

The new one is filled from the topics by a worker of its own, in a consumer group of its own, while the old one goes on
serving readers and being kept up to date. When it is nearly as far, the old one is held up for a moment, and the new
one takes its place: how is the store's matter (`postgres_swap.py`, `mongo_swap.py`). Killed at any point before that is
decided, it goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from aiokafka.errors import KafkaError

from tailrace.errors import ConfigError
from tailrace.projections.core.store import CatchUp, Partition, ProjectionStore
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.projection import Projection
from tailrace.projections.rebuild.catch_up import CatchUpCheck

LOOK_SECONDS = 1.0
CATCH_UP_SECONDS = 5.0
"""How long the workers of the old one may be held up while the new one does its last steps."""
TELL_SECONDS = 5.0
log = logging.getLogger("tailrace.projections")


@runtime_checkable
class Rebuildable(Protocol):
    """A store that can hold a projection twice."""

    def shadow(self) -> ProjectionStore[Any]:
        """The store of the new one: empty, or as far as an earlier try came."""

    async def swap(self, name: str, catch_up: CatchUp) -> bool:
        """Puts the new one in the place of the old one, whole; False if `catch_up` gave up.

        The old one stands still meanwhile, at the positions that `catch_up` is called with. If it is killed, whoever
        opens the store next finds it undone or done, or finishes it.
        """


class Rebuild:
    """Of one projection. The app runs nothing else meanwhile."""

    def __init__(self, app: ProjectionApp, projection: Projection) -> None:
        store = projection.store
        if not isinstance(store, Rebuildable):
            raise ConfigError(
                f"{projection.name}: a {type(store).__name__} cannot hold a projection twice",
                remedy="Do it by hand: give it another name and another place, let it catch up, and move readers.",
            )
        if app.agents or app._app_tasks:
            raise ConfigError(
                f"{app.conf.id} has agents, tasks or timers of its own beside its projections",
                why="They would run a second time, in the group of the rebuild, and read their topics anew.",
                remedy="Move the projection into an app (a module) of its own, with the same `name`, and rebuild that.",
            )
        self._app = app
        self._old: Rebuildable = store
        self._projection = projection
        projection.store = store.shadow()
        projection.is_rebuilding = True
        if projection.spec.settings.on_replay == "rebuild":
            settings = replace(projection.spec.settings, on_replay="apply")
            projection.spec = replace(projection.spec, settings=settings)
        # All of history, wherever the old one began.
        projection.start = "earliest"
        app.projections[:] = [projection]
        # A group of its own: the workers of the old one keep their partitions.
        app.conf.id = f"{app.conf.id}.rebuild"
        self._catch_up_check = CatchUpCheck(projection.name, app.conf.id)
        app.task(self._watch)

    async def _watch(self) -> None:
        """Tries to swap whenever it is nearly level, and then ends the worker."""
        told_at = time.monotonic()
        try:
            while not (await self._is_near() and await self._swap()):
                if time.monotonic() - told_at > TELL_SECONDS:
                    told_at = time.monotonic()
                    self._tell("rebuilding")
                await asyncio.sleep(LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - told, and the worker ends
            self._app.fail(error)
            return
        self._tell("rebuilt")
        signal.raise_signal(signal.SIGTERM)

    async def _is_near(self) -> bool:
        reader = self._app.reader
        if reader.unsettled_since is not None:
            return False  # if that lasts, the worker's upkeep ends it
        try:
            ends = await reader.ends(self._projection.topics)
        except KafkaError as error:
            log.warning("Kafka does not tell where the topics end: %s", type(error).__name__)
            return False
        ours = {Partition(*tp) for tp in reader.assignment()}
        near = self._catch_up_check.is_near(ends, ours, reader.reached(), time.monotonic())
        workers = self._projection.workers.values()
        return (
            near and bool(workers) and all(worker.queued < self._projection.spec.settings.events for worker in workers)
        )

    async def _swap(self) -> bool:
        try:
            return await self._old.swap(self._projection.name, self._catch_up)
        except Exception as error:
            # Once it is finished, nobody knows whether it was put in place: a new start finds out.
            if self._projection.is_finished or not self._projection.store.is_transient(error):
                raise
            return False

    async def _catch_up(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int] | None:
        deadline = time.monotonic() + CATCH_UP_SECONDS
        wanted = self._catch_up_check.wanted(positions, self._app.reader.reached())
        while any(self._app.reader.reached().get(place, -1) < offset for place, offset in wanted.items()):
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(0.05)
        if left := sorted(positions.keys() - wanted.keys()):
            # What was applied from there is not in the new one.
            told = {"projection": self._projection.name, "partitions": ", ".join(map(str, left))}
            log.warning("left behind: read by the old one, and not there any more", extra={"fields": told})
        reached = self._app.reader.reached()
        # From here on the new one is the old one's: nothing of this worker may come behind the swap.
        await self._projection.finish()
        return reached

    def _tell(self, what: str) -> None:
        counts = {name: count for name, count in self._projection.outcomes.items() if count}
        log.info(what, extra={"fields": {"projection": self._projection.name, **counts}})
