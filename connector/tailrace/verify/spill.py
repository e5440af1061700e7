"""On-disk hash partitions for joining more facts than fit in memory.

A fact belongs to a name. Names are assigned to buckets by a checksum that is the same in every process, so several
processes can write and others read, and all facts of a name come back together. Each file is an unnamed temporary file
that disappears with its processes. Facts are strings, numbers, bytes, or tuples of them, so that `marshal` can write
them quickly. The facts of a bucket come back in the order in which they were added.
"""

from __future__ import annotations

import marshal
import os
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Protocol
from zlib import crc32

from tailrace.errors import SourceError

BUCKETS = 512
"""With a hundred million facts a bucket has 200,000, which take about 60 MB while they are compared."""
PENDING = 60_000
"""Facts that are held in memory before they are written."""
_PLAIN = 2
"""The marshal version without object references: facts share no objects, and searching for them takes time."""

Fact = tuple[Any, ...]
Index = list[list["array[int]"]]
"""Pairs of offset and length of each written piece, by stream and bucket."""


class FactSink(Protocol):
    """Takes facts by stream and name."""

    def add(self, stream: int, name: str | bytes, fact: tuple[Any, ...]) -> None: ...
    def clear(self, stream: int) -> None: ...


@dataclass(frozen=True, slots=True)
class SpillIndex:
    """The contents of a spill file; several processes may read it at once."""

    file: int
    index: Index

    def read(self, stream: int, bucket: int) -> list[Any]:
        return [fact for piece in self.each(stream, bucket) for fact in piece]

    def each(self, stream: int, bucket: int) -> Iterator[list[Any]]:
        """Yields the pieces in the order in which they were written."""
        pieces = self.index[stream][bucket]
        for at in range(0, len(pieces), 2):
            # Written by ourselves, in an unnamed file.
            yield marshal.loads(os.pread(self.file, pieces[at + 1], pieces[at]))  # noqa: S302


class SpillFile:
    """Writes facts of several `streams` to one file, each stream into the same buckets."""

    def __init__(
        self, streams: int, *, buckets: int = BUCKETS, pending: int = PENDING, file: IO[bytes] | None = None
    ) -> None:
        self._file = temporary_file() if file is None else file
        self._streams = range(streams)
        self._buckets = buckets
        self._limit = pending
        self._facts: list[list[list[Any]]] = [[[] for _ in range(buckets)] for _ in self._streams]
        self._index: Index = [[array("Q") for _ in range(buckets)] for _ in self._streams]
        self._at = 0
        self._pending = 0

    def __enter__(self) -> SpillFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, stream: int, name: str | bytes, fact: Fact) -> None:
        key = name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")
        self._facts[stream][crc32(key) % self._buckets].append(fact)
        self.added(1)

    def open(self, stream: int) -> list[list[Any]]:
        """Returns the buckets of a stream for adding in bulk, to bucket `crc32(name) % len(buckets)`.

        The lists stay the same. Call `added` with the number of added facts at least every few thousand facts.
        """
        return self._facts[stream]

    def added(self, facts: int) -> None:
        self._pending += facts
        if self._pending >= self._limit:
            self._write()

    def clear(self, stream: int) -> None:
        """Drops all facts of a stream."""
        self._write()
        self._index[stream] = [array("Q") for _ in range(self._buckets)]

    def buckets(self, *streams: int) -> Iterator[list[list[Any]]]:
        """Yields the facts of `streams` bucket by bucket. Can be called again after more was added."""
        pieces = self.pieces()
        for number in range(self._buckets):
            yield [pieces.read(stream, number) for stream in streams]

    def pieces(self) -> SpillIndex:
        """Returns the index of everything added so far."""
        self._write()
        return SpillIndex(self._file.fileno(), self._index)

    def _write(self) -> None:
        written: list[bytes] = []
        for stream in self._streams:
            for number, facts in enumerate(self._facts[stream]):
                if facts:
                    piece = marshal.dumps(facts, _PLAIN)
                    self._index[stream][number].extend((self._at, len(piece)))
                    self._at += len(piece)
                    written.append(piece)
                    facts.clear()
        try:
            self._file.write(b"".join(written))
            self._file.flush()
        except OSError as error:
            raise SourceError(
                f"facts cannot be written to a temporary file: {error.strerror}",
                remedy="Make sure that the folder for temporary files (TMPDIR) has room: about 120 bytes per row and "
                "200 per record. Or compare a part of the outbox with --from and --to.",
            ) from None
        self._pending = 0


def temporary_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tailrace-verify-")
