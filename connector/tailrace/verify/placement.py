"""Checks where records lie: in commit order within a key, and in the partition of their key. Pure.

The header `position` is converted to numbers that sort like commits. `0/1A2B3C8:4` is the fourth row of the transaction
that committed at that LSN, `0/1A2B3C8:t4` the fourth row of the initial table read. In MongoDB `1773403200.7:2` is the
second change of that cluster time; sixteen hexadecimal digits instead of the number mean a document of the initial
read, and those have no order.

The partition of a key is its hash modulo the number of partitions. Partitions may have been added to a topic: a record
that lies where its key went before is correct, unless one of the newer partitions holds a record with an earlier
position. Positions are published in their order, and replayed records are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from tailrace.routing.partition import hashes
from tailrace.verify.findings import Example, Findings, Ordered, RecordDefect
from tailrace.verify.fingerprints import checksum

Order = tuple[int, int]
_STREAM = 1 << 40
"""Added to the number of a streamed row, which is later than all rows of the initial read."""
_HASH_DIGITS = 16


def postgres_order(position: str) -> Order | None:
    """Returns None if the text is not a position in a Postgres log."""
    commit, _, number = position.partition(":")
    try:
        lsn = _lsn(commit)
        return (lsn, int(number[1:])) if number[:1] == "t" else (lsn, _STREAM + int(number))
    except ValueError:
        return None


def mongo_order(position: str) -> Order | None:
    """Returns None if the text is not a position in a MongoDB log."""
    commit, _, number = position.partition(":")
    try:
        time = _cluster_time(commit)
        return (time, 0) if len(number) == _HASH_DIGITS else (time, _STREAM + int(number))
    except ValueError:
        return None


def order_of(database: str) -> Callable[[str], Order | None]:
    return mongo_order if database == "mongo" else postgres_order


class OrderCheck:
    """Notices whether the positions of one partition ever went back. Ignores what is not a position."""

    def __init__(self, order_of: Callable[[str], Order | None]) -> None:
        self.went_back = False
        self.first: Order | None = None
        self._order_of = order_of
        self._highest: Order = (-1, -1)
        self._commit = b""
        self._major = -1

    def follow(self, position: bytes) -> None:
        commit, _, number = position.partition(b":")
        # Within a transaction only the number grows. The parser handles everything that is not a plain number.
        if commit == self._commit and number.isdigit() and len(number) < _HASH_DIGITS:
            order = (self._major, _STREAM + int(number))
        else:
            found = self._order_of(position.decode(errors="replace"))
            if found is None:
                return
            self._commit, self._major, order = commit, found[0], found
        if self.first is None:
            self.first = order
        if order < self._highest:
            self.went_back = True
        else:
            self._highest = order


@lru_cache(maxsize=64)  # events of one transaction share it
def _lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


@lru_cache(maxsize=64)
def _cluster_time(text: str) -> int:
    seconds, increment = text.split(".")
    return int(seconds) << 32 | int(increment)


REMEMBERED = 50_000
"""Number of keys whose hashes are remembered. Events of one key are often near each other."""
_POSITIVE = 0x7FFFFFFF
Key = tuple[int, bytes]
"""Hash and checksum of a key. A plain tuple, because one is made per key."""


class KnownKeys:
    """Caches hashes and checksums of keys."""

    def __init__(self) -> None:
        self._no_key: Key = (-1, checksum(None))
        self.found: dict[bytes | None, Key] = {None: self._no_key}

    def learn(self, wanted: set[bytes | None]) -> None:
        if new := wanted - self.found.keys():
            if len(self.found) + len(new) > REMEMBERED:
                self.found.clear()
                self.found[None] = self._no_key
                new = wanted
            # The same as `checksum`, inlined.
            some = hashes(key for key in new if key is not None)
            self.found |= {key: (hash_ & _POSITIVE, crc32(key, 1).to_bytes(4, "little")) for key, hash_ in some.items()}


class PartitionInfo(NamedTuple):
    """A partition and the number of partitions of its topic; 0 if the partitioner is not known."""

    topic: str
    partition: int
    partitions: int


Firsts = Mapping[tuple[str, int], Order]
"""The position of the first record in each partition."""


class PartitionCheck:
    """Checks whether records lie in the partition of their key."""

    def __init__(self, firsts: Firsts) -> None:
        self._firsts = firsts
        self._earliest: dict[str, list[Order]] = {}

    def is_wrong(self, info: PartitionInfo, hash_: int, at: Order) -> bool:
        """Decides about a record that lies elsewhere than its key goes today."""
        topic, partition, partitions = info
        earliest = self._earliest.get(topic)
        if earliest is None:
            earliest = self._earliest[topic] = self._look(topic, partitions)
        return all(hash_ % count != partition or earliest[count] < at for count in range(partition + 1, partitions))

    def _look(self, topic: str, partitions: int) -> list[Order]:
        """Returns, by number of partitions, the first position beyond them, which proves that there were more."""
        found: list[Order] = []
        earliest: Order = (1 << 80, 0)
        for partition in reversed(range(partitions)):
            earliest = min(earliest, self._firsts.get((topic, partition), earliest))
            found.append(earliest)
        return found[::-1]


def check_order(records: Iterable[Ordered], found: Findings) -> None:
    """Adds a defect for each record of an ORDER bucket whose position is lower than an earlier one of its key.

    A record that comes twice is reported as a duplicate only.
    """
    latest: dict[tuple[int, bytes], tuple[int, int]] = {}
    seen: set[tuple[int, str]] = set()
    for place, key, major, minor, event, offset in records:
        if (place, event) in seen:
            continue
        seen.add((place, event))
        position = (major, minor)
        before = latest.get((place, key))
        if before is not None and position < before:
            found.note(found.defects, RecordDefect.OUT_OF_ORDER, Example(event, place=place, offset=offset))
        else:
            latest[place, key] = position
