"""Tens of millions of small facts, put by on disk and taken back in groups that fit into memory.

A fact belongs to a name, and all facts of one name come back together: names are dealt out to buckets by their hash.
There is one file, without a name of its own: it is gone with the process, whatever ends that. Facts are tuples of
texts, numbers and bytes, so that `marshal` can write them, at the speed of C. What one bucket holds in the order it
came in, comes back in that order.
"""

from __future__ import annotations

import marshal
import tempfile
from array import array
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tailrace.errors import SourceError

BUCKETS = 512
"""A hundred million facts are 200,000 in a bucket, which take about 60 MB while they are looked at."""
PENDING = 100_000
"""Facts that wait in memory before they are written."""

Fact = tuple[Any, ...]


class Spool:
    """Facts in several `streams`, each in the same buckets."""

    def __init__(self, streams: int, *, buckets: int = BUCKETS, pending: int = PENDING) -> None:
        self._file = tempfile.TemporaryFile(prefix="tailrace-verify-")  # noqa: SIM115 - closed by `close`
        self._streams = range(streams)
        self._buckets = buckets
        self._limit = pending
        self._facts: list[list[list[Fact]]] = [[[] for _ in range(buckets)] for _ in self._streams]
        # Pairs of offset and length: of each piece that was written.
        self._pieces = [[array("Q") for _ in range(buckets)] for _ in self._streams]
        self._pending = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, stream: int, name: object, fact: Fact) -> None:
        self._facts[stream][hash(name) % self._buckets].append(fact)
        self._pending += 1
        if self._pending >= self._limit:
            self._write()

    def clear(self, stream: int) -> None:
        """Forgets what the stream holds."""
        self._write()
        self._pieces[stream] = [array("Q") for _ in range(self._buckets)]

    def buckets(self, *streams: int) -> Iterator[list[list[Fact]]]:
        """Bucket by bucket, the facts of each of `streams`. May be asked for again, also after more was added."""
        self._write()
        for number in range(self._buckets):
            yield [self._read(self._pieces[stream][number]) for stream in streams]

    def _write(self) -> None:
        try:
            for stream in self._streams:
                for number, facts in enumerate(self._facts[stream]):
                    if facts:
                        self._pieces[stream][number].extend((self._file.tell(), 0))
                        self._pieces[stream][number][-1] = self._file.write(marshal.dumps(facts))
                        facts.clear()
            self._file.flush()
        except OSError as error:
            raise SourceError(
                f"what was read cannot be put by in a temporary file: {error.strerror}",
                remedy="See that the folder for temporary files (TMPDIR) has room: about 100 bytes for each row and "
                "200 for each record. Or compare a part, with --from and --to.",
            ) from None
        self._pending = 0

    def _read(self, pieces: array[int]) -> list[Fact]:
        facts: list[Fact] = []
        for at in range(0, len(pieces), 2):
            self._file.seek(pieces[at])
            facts += marshal.loads(self._file.read(pieces[at + 1]))  # noqa: S302 - our own, from a file without a name
        self._file.seek(0, 2)
        return facts
