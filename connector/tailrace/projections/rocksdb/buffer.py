"""The reads and writes of one transaction: writes are kept in memory until the commit, and reads see them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from tailrace.projections.rocksdb.database import Place, ReadSet, RocksDatabase


class WriteBuffer:
    """A transaction's view of a database."""

    def __init__(self, database: RocksDatabase) -> None:
        self._database = database
        self._changes: dict[Place, bytes | None] = {}
        self._reads: ReadSet | None = None

    def get(self, family: str, key: bytes) -> bytes | None:
        place = (family, key)
        if place in self._changes:
            return self._changes[place]
        self._read_set.places.add(place)
        return self._database.get(family, key)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self._changes[family, key] = value

    def delete(self, family: str, key: bytes) -> None:
        self._changes[family, key] = None

    def items(self, family: str, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields keys with this prefix, from `start` on, as they are when the iteration begins."""
        start = max(prefix, start)
        self._read_set.prefixes.add((family, prefix))
        own = sorted(
            (key, 0, value)
            for (other, key), value in self._changes.items()
            if other == family and key >= start and key.startswith(prefix)
        )  # fmt: skip
        committed = ((key, 1, value) for key, value in self._database.items(family, start))
        last: bytes | None = None
        for key, _, value in heapq.merge(own, committed, key=lambda item: item[:2]):
            if not key.startswith(prefix):
                return
            if key != last and value is not None:
                yield key, value
            last = key

    @property
    def is_stale(self) -> bool:
        return self._reads is not None and self._database.is_stale(self._reads)

    def commit(self) -> None:
        self._database.commit(self._changes, self._read_set)

    def end(self) -> None:
        """Forgets everything."""
        self._changes = {}
        if self._reads is not None:
            self._database.end(self._reads)
            self._reads = None

    @property
    def _read_set(self) -> ReadSet:
        if self._reads is None:
            self._reads = self._database.begin()
        return self._reads
