"""A projection made anew beside the old one, and put in its place once it has caught up.

The new one is filled from the topics by a worker of its own, in a consumer group of its own, while the old one goes on
serving readers and being kept up to date. When it is as far as the old one, both change places in one transaction.
Killed at any point, it goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from tailrace.errors import ConfigError
from tailrace.projections.app import ProjectionApp
from tailrace.projections.projection import Projection
from tailrace.projections.store import Partition, Store

LOOK_SECONDS = 0.5
TELL_SECONDS = 5.0
log = logging.getLogger("tailrace.projections")


@runtime_checkable
class Rebuildable(Protocol):
    """A store that can hold a projection twice."""

    def beside(self) -> Store[Any]:
        """The store of the new one: empty, or as far as an earlier try came."""

    async def swap(self, name: str, reached: Mapping[Partition, int]) -> bool:
        """Puts the new one in the place of the old one, whole; False if it is not yet as far as the old one.

        `reached` is how far the new one has read: below that there is nothing left to apply, only what marks the ends
        of transactions.
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
        self._app = app
        self._old: Rebuildable = store
        self._projection = projection
        projection.store = store.beside()
        projection.is_rebuilding = True
        app.projections[:] = [projection]
        # A group of its own: the workers of the old one keep their partitions.
        app.conf.id = f"{app.conf.id}.rebuild"
        app.task(self._watch)

    async def _watch(self) -> None:
        """Tries to swap whenever there is nothing left to do, and then ends the worker."""
        told_at = time.monotonic()
        while not (self._at_rest() and await self._projection.patiently(self._swap)):
            if time.monotonic() - told_at > TELL_SECONDS:
                told_at = time.monotonic()
                self._tell("rebuilding")
            await asyncio.sleep(LOOK_SECONDS)
        self._tell("rebuilt")
        signal.raise_signal(signal.SIGTERM)

    async def _swap(self) -> bool:
        return await self._old.swap(self._projection.name, self._app.reader.reached())

    def _at_rest(self) -> bool:
        lanes = self._projection.lanes.values()
        return bool(lanes) and all(lane.busy_since is None and not lane.queued for lane in lanes)

    def _tell(self, what: str) -> None:
        counts = {name: count for name, count in self._projection.outcomes.items() if count}
        log.info(what, extra={"fields": {"projection": self._projection.name, **counts}})
