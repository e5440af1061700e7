"""What the projections of an app tell its consumer: where to read on, how far they are, and when to begin and to end.

A partition that several projections read is read from where the furthest behind of them is; the others pass over what
they have done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace.projections.core.store import Partition
from tailrace.projections.faust.start_offsets import StoredOffset

if TYPE_CHECKING:
    from tailrace.projections.projection import Projection


class OffsetCoordinator:
    """Of one app; it looks at the app's list of projections as it is at the time."""

    def __init__(self, projections: list[Projection]) -> None:
        self._projections = projections
        self._stored: dict[str, dict[Partition, int]] = {}
        self._furthest: dict[str, dict[Partition, int]] = {}

    def _readers(self, topic: str) -> list[Projection]:
        return [projection for projection in self._projections if topic in projection.topics]

    def owns(self, topic: str) -> bool:
        return bool(self._readers(topic))

    async def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, Sequence[StoredOffset]]:
        """Where each reader stands.

        A partition that was added to a topic it has read before is read from its beginning: what was written there
        before anybody noticed must not be left out.
        """
        await self.revoked()
        for projection in self._projections:
            await projection.open()
            name = projection.name
            self._stored[name] = await projection.retry_store(projection.store.positions)
            self._furthest[name] = await projection.retry_store(projection.store.furthest)
        return {
            partition: [self._place(projection, partition) for projection in self._readers(partition.topic)]
            for partition in partitions
        }

    def _place(self, projection: Projection, partition: Partition) -> StoredOffset:
        stored = self._stored[projection.name]
        knows_topic = any(known.topic == partition.topic for known in stored)
        return StoredOffset(stored.get(partition), "earliest" if knows_topic else projection.start)

    async def assigned(self, starts: Mapping[Partition, Sequence[int]]) -> None:
        """Opens the workers."""
        await self.revoked()
        for partition, offsets in starts.items():
            for projection, start in zip(self._readers(partition.topic), offsets, strict=True):
                projection.start_worker(partition, start, self._furthest[projection.name].get(partition, 0))

    async def revoked(self) -> None:
        """Ends all workers."""
        await asyncio.gather(*(projection.stop_workers() for projection in self._projections))

    def progress(self) -> Mapping[Partition, int]:
        """How far all readers of each partition have come."""
        least: dict[Partition, int] = {}
        for projection in self._projections:
            for partition, offset in projection.progress().items():
                least[partition] = min(offset, least.get(partition, offset))
        return least
