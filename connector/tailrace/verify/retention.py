"""Decides whether the record of a row may have been deleted by the retention of its topic. Pure.

A partition that has deleted records keeps everything since its first remaining record. That alone is not enough: if
events are rare, the first remaining record may be much younger than the last deleted one, and an empty partition has
none. So the retention settings count as well: if only age decides, nothing younger than `retention.ms` is deleted.
Records that a person or an earlier retention setting deleted cannot be distinguished from records that never existed,
and count as the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from tailrace.routing.partition import partition_of


class Retention(NamedTuple):
    """The retention settings of a topic: maximum age and maximum size; negative means no limit."""

    ms: int
    bytes: int

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Retention:
        return cls(int(config.get("retention.ms", -1)), int(config.get("retention.bytes", -1)))

    def keeps_since(self, now_ms: int, *, emptied: bool) -> float:
        """Returns the time before which a partition may have deleted records; inf if it may have deleted any.

        Deletion by size leaves records up to that size, so an empty partition was emptied by age.
        """
        if self.bytes < 0 or (emptied and self.bytes > 0):
            return now_ms - self.ms if self.ms >= 0 else 0
        return inf


class Horizon(NamedTuple):
    """The time since which each partition of a topic keeps everything; 0 if it has deleted nothing.

    `by_key`: the key of an event determines its partition.
    """

    since: tuple[float, ...]
    by_key: bool

    def is_beyond(self, key: bytes | None, created_ms: int) -> bool:
        """Returns whether the record of an event created at that time may have been deleted."""
        if created_ms >= max(self.since):
            return False
        if key is None or not self.by_key:
            return True
        return created_ms < self.since[partition_of(key, len(self.since))]


@dataclass(slots=True)
class RetainedRange:
    """The offsets that a topic held when it was first examined.

    `firsts`: when the first remaining record was published, for each partition that has deleted records; inf until one
    was read. `rules`: the time since which the retention settings keep everything, for the same partitions. `by_age`:
    only age decides. `keeps_all` is false for a topic that does not keep every event, such as a compacted one.
    """

    partitions: int
    firsts: dict[int, float]
    rules: dict[int, float]
    by_age: bool = True
    keeps_all: bool = True
    _repartitioned: bool = False

    @property
    def since(self) -> float:
        """The time since which everything is certainly kept, in every partition, regardless of who deleted the rest."""
        return max(self.firsts.values(), default=0) if self.keeps_all else inf

    @property
    def is_unexplained(self) -> bool:
        """Whether more seems to be deleted than the retention settings explain."""
        return self.keeps_all and any(first > self.rules[partition] for partition, first in self.firsts.items())

    def is_unread(self, partition: int) -> bool:
        """Returns whether the partition has deleted records and no remaining record was read yet."""
        return self.firsts.get(partition) == inf

    def note(self, partition: int, first: float, keys: Iterable[bytes]) -> None:
        """Notes the first remaining record and the keys of some records.

        A key that lies elsewhere than it would go today shows that the topic once had fewer partitions.
        """
        self.firsts[partition] = first
        self._repartitioned |= any(partition_of(key, self.partitions) != partition for key in keys)

    def horizon(self, *, by_key: bool) -> Horizon:
        if not self.keeps_all:
            return Horizon((inf,), by_key=False)
        since = [min(self.firsts.get(each, 0), self.rules.get(each, 0)) for each in range(self.partitions)]
        if by_key and self._repartitioned:
            # An event may have gone to any partition. If age decides, the same rule holds for all of them; otherwise
            # only what all of them have deleted counts as deleted.
            return Horizon((max(since) if self.by_age else min(since),), by_key=False)
        return Horizon(tuple(since), by_key)
