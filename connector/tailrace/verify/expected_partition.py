"""Which partition a record must lie in, judged by its key. Pure.

The partitioner takes the key's hash modulo the number of partitions. A topic may have been given more partitions since:
a record that lies where its key went with fewer of them is in its place, unless a partition that there was not yet then
holds a record of an earlier position. Positions are published in their order; what is published again is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from tailrace.routing.partition import hashes
from tailrace.verify import fingerprints
from tailrace.verify.position_order import Order

REMEMBERED = 50_000
"""Keys whose hashes are remembered: most outboxes have several events of a key, near to each other."""
_POSITIVE = 0x7FFFFFFF


Key = tuple[int, bytes]
"""The hash of a key, and its label; a plain tuple, for it is made once for each key."""


class KnownKeys:
    """Hashes and labels of keys, computed once while they are remembered."""

    def __init__(self) -> None:
        self._no_key: Key = (-1, fingerprints.label(None))
        self.found: dict[bytes | None, Key] = {None: self._no_key}

    def learn(self, wanted: set[bytes | None]) -> None:
        if new := wanted - self.found.keys():
            if len(self.found) + len(new) > REMEMBERED:
                self.found.clear()
                self.found[None] = self._no_key
                new = wanted
            # Labels as `seals.label` has them.
            some = hashes(key for key in new if key is not None)
            self.found |= {key: (hash_ & _POSITIVE, crc32(key, 1).to_bytes(4, "little")) for key, hash_ in some.items()}


class Lot(NamedTuple):
    """A partition, and how many its topic has; 0 if the partitioner is not known."""

    topic: str
    partition: int
    partitions: int


Firsts = Mapping[tuple[str, int], Order]
"""The position of the first record that was seen in each partition."""


class PartitionCheck:
    """Judges records of partitions, each of which is a `Lot`."""

    def __init__(self, firsts: Firsts) -> None:
        self._firsts = firsts
        self._earliest: dict[str, list[Order]] = {}

    def is_wrong(self, lot: Lot, hash_: int, at: Order) -> bool:
        """Of a record that its key does not send there today."""
        topic, partition, partitions = lot
        earliest = self._earliest.get(topic)
        if earliest is None:
            earliest = self._earliest[topic] = self._look(topic, partitions)
        return all(hash_ % count != partition or earliest[count] < at for count in range(partition + 1, partitions))

    def _look(self, topic: str, partitions: int) -> list[Order]:
        """By number of partitions: the first position beyond them, which proves that there were more."""
        found: list[Order] = []
        earliest: Order = (1 << 80, 0)
        for partition in reversed(range(partitions)):
            earliest = min(earliest, self._firsts.get((topic, partition), earliest))
            found.append(earliest)
        return found[::-1]
