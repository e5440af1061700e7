"""Decides when the shadow copy of a rebuild has caught up enough to try the swap, and when it never can. Pure.

The old projection is blocked during the swap, so the swap is tried only if it can succeed: this process reads all
partitions, and has read everything up to the ends that it first saw. The copy must reach the old projection's
positions, except those that nobody reads any more: of a topic that the projection left, or of a deleted partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tailrace.errors import ProjectionStalled
from tailrace.projections.core.store import Partition
from tailrace.projections.reader.offset_coordinator import PartitionBounds, start_offset

PATIENCE_SECONDS = 60.0
"""Longer than a group takes to drop a killed member, and than it takes to find new partitions."""
SHOWN_PARTITIONS = 5


class CatchUpCheck:
    """The state of one rebuild; `group` is the rebuild's consumer group, not the projection's."""

    def __init__(self, projection: str, group: str) -> None:
        self._projection = projection
        self._group = group
        self._ends: Mapping[Partition, int] = {}
        self._first: dict[Partition, int] = {}
        self._required: Mapping[Partition, int] = {}
        self._obstructed_since: float | None = None

    def is_close(
        self, ends: Mapping[Partition, int], ours: Collection[Partition], reached: Mapping[Partition, int], now: float
    ) -> bool:
        """Whether the swap may be tried; raises if something has prevented it for too long.

        `ends` are the ends of all partitions of the projection's topics; `ours` are assigned to this process.
        """
        self._ends = ends
        # An end may be lower than before: the topic was re-created.
        self._first = {partition: min(end, self._first.get(partition, end)) for partition, end in ends.items()}
        others = sorted(partition for partition in ends if partition not in ours)
        beyond = sorted(each for each, offset in self._required.items() if offset > ends.get(each, offset))
        if not others and not beyond:
            self._obstructed_since = None
            return bool(ends) and all(reached.get(partition, -1) >= end for partition, end in self._first.items())
        if self._obstructed_since is None:
            self._obstructed_since = now
        if now - self._obstructed_since > PATIENCE_SECONDS:
            if others:
                raise self._shared(others)
            for each in beyond:
                start_offset(each, self._required[each], PartitionBounds(0, ends[each]), "earliest")
        return False

    def required(self, positions: Mapping[Partition, int], reached: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Returns the positions of the old projection that the copy must reach."""
        # A partition that is being read exists, even if Kafka did not list it a moment ago.
        self._required = {
            partition: offset
            for partition, offset in positions.items()
            if partition in self._ends or partition in reached
        }
        return self._required

    def _shared(self, others: list[Partition]) -> ProjectionStalled:
        named = ", ".join(map(str, others[:SHOWN_PARTITIONS])) + (", …" if len(others) > SHOWN_PARTITIONS else "")
        return ProjectionStalled(
            f"{self._projection}: the rebuild is not assigned all partitions: {named}",
            why=f"The group {self._group} has other members, most likely another `--rebuild`. A rebuild that reads"
            " only some partitions cannot know when all have caught up.",
            remedy="Stop all rebuilds of this projection but one, or start one again: it continues where they were."
            " The old projection is unchanged.",
        )
