"""When a projection that is made anew may take the place of the old one, and when it never could. Pure.

The old one is held up while the new one does its last steps, so that is begun only if it can succeed: this process
reads every partition that there is, and has read what was there when it began. The old one's positions are waited for,
but not those that nothing reads any more: of a topic that the projection has left, or of a partition that is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tailrace.errors import ProjectionStalled
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.offset_coordinator import PartitionBounds, start_offset

PATIENCE_SECONDS = 60.0
"""Longer than a group misses a member that was killed, and than partitions that were added are unknown to it."""
NAMED = 5


class CatchUpCheck:
    """Of one rebuild; `group` is its own, not the projection's."""

    def __init__(self, projection: str, group: str) -> None:
        self._projection = projection
        self._group = group
        self._ends: Mapping[Partition, int] = {}
        self._first: dict[Partition, int] = {}
        self._wanted: Mapping[Partition, int] = {}
        self._hopeless_since: float | None = None

    def is_near(
        self, ends: Mapping[Partition, int], ours: Collection[Partition], reached: Mapping[Partition, int], now: float
    ) -> bool:
        """Whether the last steps may be tried; raises if something has been in their way for too long.

        `ends` are those of all partitions that the projection's topics have, `ours` are given to this process.
        """
        self._ends = ends
        # Lower than before: the topic was made anew.
        self._first = {place: min(end, self._first.get(place, end)) for place, end in ends.items()}
        others = sorted(place for place in ends if place not in ours)
        beyond = sorted(place for place, offset in self._wanted.items() if offset > ends.get(place, offset))
        if not others and not beyond:
            self._hopeless_since = None
            return bool(ends) and all(reached.get(place, -1) >= end for place, end in self._first.items())
        if self._hopeless_since is None:
            self._hopeless_since = now
        if now - self._hopeless_since > PATIENCE_SECONDS:
            if others:
                raise self._shared(others)
            for place in beyond:
                start_offset(place, self._wanted[place], PartitionBounds(0, ends[place]), "earliest")
        return False

    def wanted(self, positions: Mapping[Partition, int], reached: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Those positions of the old one that are to be waited for."""
        # What is being read is there, whatever Kafka said of it a moment ago.
        self._wanted = {place: offset for place, offset in positions.items() if place in self._ends or place in reached}
        return self._wanted

    def _shared(self, others: list[Partition]) -> ProjectionStalled:
        named = ", ".join(map(str, others[:NAMED])) + (", …" if len(others) > NAMED else "")
        return ProjectionStalled(
            f"{self._projection}: the rebuild is not given all partitions to read: {named}",
            why=f"The group {self._group} has other members, most likely another `--rebuild`. What reads only a part"
            " cannot tell when all of it has caught up.",
            remedy="End all rebuilds of this projection but one, or start one again: it goes on where they were."
            " The old projection is as it was.",
        )
