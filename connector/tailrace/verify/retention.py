"""What a topic has deleted, partition by partition: may the record of a row that is not there be among it? Pure.

A partition that has deleted records keeps everything since the first that is left. That alone says too little: where
events are rare the first that is left may be much younger than the last that was deleted, and an empty partition has
none. So the topic's own rule counts, too: where only age decides, nothing younger than `retention.ms` is deleted. What
a person deleted, or an earlier rule, cannot be told from what was never there; it counts as the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from tailrace.routing.partition import partition_of


class Retention(NamedTuple):
    """The topic's rule: what is older than `ms` is deleted, and what is more than `bytes`; no limit if negative."""

    ms: int
    bytes: int

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Retention:
        return cls(int(config.get("retention.ms", -1)), int(config.get("retention.bytes", -1)))

    def keeps_since(self, now_ms: int, *, emptied: bool) -> float:
        """Before which time a partition may have deleted records; inf if that may be any.

        By size it deletes only what it has beyond that size: one that is empty was emptied by age.
        """
        if self.bytes < 0 or (emptied and self.bytes > 0):
            return now_ms - self.ms if self.ms >= 0 else 0
        return inf


class Horizon(NamedTuple):
    """Since when the partitions of a topic keep everything; 0 for one that has deleted nothing.

    `by_key`: an event's key tells its partition.
    """

    since: tuple[float, ...]
    by_key: bool

    def is_beyond(self, key: bytes | None, created_ms: int) -> bool:
        """Whether the record of an event of that time may have been deleted."""
        if created_ms >= max(self.since):
            return False
        if key is None or not self.by_key:
            return True
        return created_ms < self.since[partition_of(key, len(self.since))]


@dataclass(slots=True)
class RetainedRange:
    """A topic of so many partitions, as it was when it was first looked at.

    `firsts`: of each partition that has deleted records, when the first that is left was published; inf as long as none
    was seen. `rules`: since when the topic's own rule keeps everything, for the same partitions. `by_age`: nothing but
    age decides. `vouches` is false for a topic that does not keep every event at all.
    """

    partitions: int
    firsts: dict[int, float]
    rules: dict[int, float]
    by_age: bool = True
    vouches: bool = True
    _strayed: bool = False

    @property
    def since(self) -> float:
        """Since when everything is certainly kept, whatever the partition, and whoever deleted the rest."""
        return max(self.firsts.values(), default=0) if self.vouches else inf

    @property
    def may_surprise(self) -> bool:
        """Whether more seems to be deleted than the rule says."""
        return self.vouches and any(first > self.rules[partition] for partition, first in self.firsts.items())

    def is_untold(self, partition: int) -> bool:
        """Whether it has deleted records, and none was seen yet that is left."""
        return self.firsts.get(partition) == inf

    def note(self, partition: int, first: float, keys: Iterable[bytes]) -> None:
        """The first record that is left, and the keys of some; those that lie elsewhere than they would go today tell
        that the topic once had fewer partitions."""
        self.firsts[partition] = first
        self._strayed |= any(partition_of(key, self.partitions) != partition for key in keys)

    def horizon(self, *, by_key: bool) -> Horizon:
        if not self.vouches:
            return Horizon((inf,), by_key=False)
        since = [min(self.firsts.get(each, 0), self.rules.get(each, 0)) for each in range(self.partitions)]
        if by_key and self._strayed:
            # An event may have gone to any partition. A rule of age holds for all of them; without one, only what all
            # of them have deleted is let pass.
            return Horizon((max(since) if self.by_age else min(since),), by_key=False)
        return Horizon(tuple(since), by_key)
