"""Sets where the app's consumer reads partitions from, and starts and stops the partition workers.

The projection's own database holds the truth about its progress. Kafka's log changes independently: retention may
delete events that are not applied yet, and a topic may be deleted and re-created. Both are errors, never skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from tailrace.errors import EventsLost, TopicReplaced
from tailrace.projections.core.store import Partition

if TYPE_CHECKING:
    from tailrace.projections.projection import Projection

Start = Literal["earliest", "latest"]
Ends = Callable[[Collection[str]], Awaitable[Mapping[Partition, int]]]
"""Returns the ends of all partitions of topics."""


class StoredOffset(NamedTuple):
    """The next offset that a projection has stored for a partition, and where it starts without one."""

    stored: int | None
    start: Start


class PartitionBounds(NamedTuple):
    """The offset of a partition's first record, and the offset after its last stable record."""

    first: int
    end: int


def start_offset(partition: Partition, stored: int | None, bounds: PartitionBounds, start: Start) -> int:
    """Returns where to start reading; raises if events would be lost."""
    if stored is None:
        return bounds.first if start == "earliest" else bounds.end
    if stored < bounds.first:
        raise EventsLost(
            f"{partition} begins at offset {bounds.first}, but offset {stored} is the next to apply",
            why=f"Retention deleted {bounds.first - stored} offsets before their events were applied.",
            remedy="Replay them from the outbox, or accept the loss with `tailrace project APP --reset earliest`;"
            " then give the topic a longer retention.",
        )
    if stored > bounds.end:
        raise TopicReplaced(
            f"{partition} ends at offset {bounds.end}, but offset {stored} is the next to apply",
            why="The topic was deleted and re-created, lost records, or this is another cluster.",
            remedy="Check the broker's address. If the topic is new, start again with"
            " `tailrace project APP --reset earliest`: events that were applied before are skipped.",
        )
    return stored


class OffsetCoordinator:
    """Coordinates the projections of one app. All methods are called in the app's event loop.

    A partition that several projections read is read from the lowest of their offsets; the others skip what they have
    applied.
    """

    def __init__(self, projections: list[Projection]) -> None:
        self._projections = projections
        self._stored: dict[str, dict[Partition, int]] = {}
        self._furthest: dict[str, dict[Partition, int]] = {}

    def _readers(self, topic: str) -> list[Projection]:
        return [projection for projection in self._projections if topic in projection.topics]

    async def store_latest(self, ends: Ends) -> None:
        """Stores where projections with `start="latest"` begin, of topics that they have never read.

        It stores all partitions of a topic at once, also those of other workers: from then on a partition without an
        offset was added to the topic, and is read from its beginning.
        """
        for projection in self._projections:
            if projection.start != "latest":
                continue
            await projection.open()
            known = {partition.topic for partition in await projection.retry_store(projection.store.positions)}
            found = await ends([topic for topic in projection.topics if topic not in known])
            if found:
                await projection.retry_store(partial(projection.store.reset, found, only_missing=True))

    async def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, Sequence[StoredOffset]]:
        """Returns the stored offset of each projection that reads a partition. Nothing is read until it returns.

        A partition that was added to a known topic is read from its beginning: events written before anyone noticed
        it must not be skipped. Cancelled if the partitions are revoked meanwhile; so is `assigned`.
        """
        await self.revoked()
        for projection in self._projections:
            await projection.open()
            name = projection.name
            self._stored[name] = await projection.retry_store(projection.store.positions)
            self._furthest[name] = await projection.retry_store(projection.store.furthest)
        return {
            partition: [self._stored_offset(projection, partition) for projection in self._readers(partition.topic)]
            for partition in partitions
        }

    def _stored_offset(self, projection: Projection, partition: Partition) -> StoredOffset:
        stored = self._stored[projection.name]
        knows_topic = any(known.topic == partition.topic for known in stored)
        return StoredOffset(stored.get(partition), "earliest" if knows_topic else projection.start)

    async def assigned(self, starts: Mapping[Partition, Sequence[int]]) -> None:
        """Starts the workers at these offsets, in the order of `positions`. No record arrives before it returns."""
        for partition, offsets in starts.items():
            for projection, start in zip(self._readers(partition.topic), offsets, strict=True):
                projection.start_worker(partition, start, self._furthest[projection.name].get(partition, 0))

    async def revoked(self) -> None:
        """Stops all workers: their partitions are revoked, or the app stops."""
        await asyncio.gather(*(projection.stop_workers() for projection in self._projections))

    def progress(self) -> Mapping[Partition, int]:
        """Returns the next offset that all readers of a partition have committed."""
        least: dict[Partition, int] = {}
        for projection in self._projections:
            for partition, offset in projection.progress().items():
                least[partition] = min(offset, least.get(partition, offset))
        return least
