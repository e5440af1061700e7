"""What the projections of an app tell its consumer: where to read on, how far they are, and when to begin and to end.

A partition that several projections read is read from where the furthest behind of them is; the others pass over what
they have done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

from tailrace.projections.store import Partition

if TYPE_CHECKING:
    from tailrace.projections.projection import Projection


class ProjectionGuide:
    """Of one app; it looks at the app's list of projections as it is at the time."""

    def __init__(self, projections: list[Projection]) -> None:
        self._projections = projections
        self._stored: dict[str, dict[Partition, int]] = {}

    def _readers(self, topic: str) -> list[Projection]:
        return [projection for projection in self._projections if topic in projection.topics]

    def owns(self, topic: str) -> bool:
        return bool(self._readers(topic))

    def start_of(self, partition: Partition) -> Literal["earliest", "latest"]:
        starts = {projection.start for projection in self._readers(partition.topic)}
        return "latest" if starts == {"latest"} else "earliest"

    async def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int | None]:
        """The stored next offsets; None where a projection has none yet."""
        await self.revoked()
        for projection in self._projections:
            await projection.open()
        names = [projection.name for projection in self._projections]
        found = await asyncio.gather(*(each.patiently(each.store.positions) for each in self._projections))
        self._stored = dict(zip(names, found, strict=True))
        return {partition: self._least(partition) for partition in partitions}

    def _least(self, partition: Partition) -> int | None:
        stored = [self._stored[projection.name].get(partition) for projection in self._readers(partition.topic)]
        known = [offset for offset in stored if offset is not None]
        return min(known) if known and len(known) == len(stored) else None

    async def assigned(self, starts: Mapping[Partition, int]) -> None:
        """Opens the lanes: reading begins at `starts`."""
        await self.revoked()
        for partition, start in starts.items():
            for projection in self._readers(partition.topic):
                stored = self._stored.get(projection.name, {}).get(partition)
                projection.open_lane(partition, start if stored is None else max(start, stored))

    async def revoked(self) -> None:
        """Ends all lanes."""
        await asyncio.gather(*(projection.close_lanes() for projection in self._projections))

    def progress(self) -> Mapping[Partition, int]:
        """How far all readers of each partition have come."""
        least: dict[Partition, int] = {}
        for projection in self._projections:
            for partition, offset in projection.progress().items():
                least[partition] = min(offset, least.get(partition, offset))
        return least
