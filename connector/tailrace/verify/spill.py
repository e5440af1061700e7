"""Tens of millions of small facts, put by on disk and taken back in groups that fit into memory.

A fact belongs to a name, and all facts of one name come back together: names are dealt out to buckets by a checksum,
the same in every process, so that several may put by, and others take back. There is one file, without a name of its
own: it is gone with its processes, whatever ends them. Facts are texts, numbers and bytes, or tuples of them, so that
`marshal` can write them, at the speed of C. What one bucket holds in the order it came in, comes back in that order.
"""

from __future__ import annotations

import marshal
import os
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any
from zlib import crc32

from tailrace.errors import SourceError

BUCKETS = 512
"""A hundred million facts are 200,000 in a bucket, which take about 60 MB while they are looked at."""
PENDING = 60_000
"""Facts that wait in memory before they are written."""
_PLAIN = 2
"""The version of marshal that looks for no object twice: facts have none in common, and looking takes its time."""

Fact = tuple[Any, ...]
Index = list[list["array[int]"]]
"""By stream and bucket, pairs of offset and length: of each piece that was written."""


@dataclass(frozen=True, slots=True)
class SpillIndex:
    """What stands in a spool's file; several processes may look at it at once."""

    file: int
    index: Index

    def read(self, stream: int, bucket: int) -> list[Any]:
        return [fact for piece in self.each(stream, bucket) for fact in piece]

    def each(self, stream: int, bucket: int) -> Iterator[list[Any]]:
        """Piece by piece, in the order in which they were written."""
        pieces = self.index[stream][bucket]
        for at in range(0, len(pieces), 2):
            # Our own, from a file without a name.
            yield marshal.loads(os.pread(self.file, pieces[at + 1], pieces[at]))  # noqa: S302


class SpillFile:
    """Facts in several `streams`, each in the same buckets."""

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
        """The buckets of a stream, for whoever adds to them in bulk: to number `crc32(name) % len(buckets)`.

        They stay the same lists; `added` says how many facts were put there, at least after each few thousand.
        """
        return self._facts[stream]

    def added(self, facts: int) -> None:
        self._pending += facts
        if self._pending >= self._limit:
            self._write()

    def clear(self, stream: int) -> None:
        """Forgets what the stream holds."""
        self._write()
        self._index[stream] = [array("Q") for _ in range(self._buckets)]

    def buckets(self, *streams: int) -> Iterator[list[list[Any]]]:
        """Bucket by bucket, the facts of each of `streams`. May be asked for again, also after more was added."""
        pieces = self.pieces()
        for number in range(self._buckets):
            yield [pieces.read(stream, number) for stream in streams]

    def pieces(self) -> SpillIndex:
        """All that was added so far."""
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
                f"what was read cannot be put by in a temporary file: {error.strerror}",
                remedy="See that the folder for temporary files (TMPDIR) has room: about 120 bytes for each row and "
                "200 for each record. Or compare a part, with --from and --to.",
            ) from None
        self._pending = 0


def temporary_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tailrace-verify-")
