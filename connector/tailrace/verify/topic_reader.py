"""Who reads topics for a comparison: puts records by, watches their order, and takes part in the judgement.

One process may do it all, or several share partitions (`crew.py`): a reader has a spool of its own and keeps a
partition for good, so that order within partitions is its own affair. That is cheap as long as the positions in a
partition never go back: then those of no key do. What tells of keys is put by as it comes, and only sorted out for
partitions in which a position has gone back.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import IO, Any, NamedTuple
from zlib import crc32

from tailrace.kafka.client import KafkaOptions
from tailrace.verify import seals
from tailrace.verify.judging import (
    AGAIN,
    AHEAD,
    LETTERS,
    WAITING,
    WRITTEN,
    Findings,
    Ground,
    judge_order,
)
from tailrace.verify.outbox import Window
from tailrace.verify.positions import Course, order_of
from tailrace.verify.prints import DIGEST_BYTES, RecordPrints
from tailrace.verify.scanning import Part, Scan, Taken, Told
from tailrace.verify.spool import Pieces, Spool
from tailrace.wire.formats import Format

RECORDS, PATHS, BY_KEY = range(3)
"""The streams of a reader's spool: records by id, their keys and positions as they came, the same by key."""
PENDING = 40_000
"""Records that wait in memory before they are written."""
COLLECTED_AFTER = 200_000
_PATH = 5
"""How many things stand in PATHS for a record: place, key, position, id, offset."""


class Errand(NamedTuple):
    """What a reader must know to begin."""

    kafka: KafkaOptions
    format: Format
    database: str
    window: Window


class Share(NamedTuple):
    """A part of the judgement: which buckets, of the outbox's spool and of all readers'."""

    buckets: range
    outbox: Pieces
    readers: list[Pieces]
    ground: Ground


class TopicReader:
    def __init__(self, errand: Errand, file: IO[bytes]) -> None:
        self._errand = errand
        self._prints = RecordPrints(errand.format)
        self._order_of = order_of(errand.database)
        self._spool = Spool(3, pending=PENDING, file=file)
        self._courses: defaultdict[int, Course] = defaultdict(partial(Course, order_of(errand.database)))

    def read(self, parts: Sequence[Part]) -> Told:
        scan = Scan(self._errand.kafka, self._errand.window, parts)
        for records in scan.batches():
            self._put(records)
        return scan.told

    def pieces(self) -> Pieces:
        """Where the records are, in buckets as those of the outbox."""
        found = self._spool.pieces()
        return Pieces(found.file, [found.index[RECORDS]])

    def judge_order(self) -> Findings:
        """Of the partitions that were read here."""
        found = Findings()
        turned = {place for place, course in self._courses.items() if course.has_turned}
        if turned:
            self._spool.clear(BY_KEY)
            for paths in self._spool.pieces().each(PATHS, 0):
                self._sort_out(paths, turned)
            for (records,) in self._spool.buckets(BY_KEY):
                judge_order(records, found)
        return found

    def _put(self, records: list[Taken]) -> None:
        buckets, prints, is_plain = self._spool.open(RECORDS), self._prints, self._prints.is_plain
        count, plain, paths, courses = len(buckets), seals.PLAIN, self._spool.open(PATHS)[0], self._courses
        for event, value, headers, flags, place, offset, key, position in records:
            if is_plain and not flags and value is not None:
                seal = plain + blake2b(value, digest_size=DIGEST_BYTES).digest() + event
            else:
                seal = seals.of_record(event, prints.of_record(value, headers), flags)
            buckets[crc32(event) % count].extend((seal, place, offset))
            if key is not None and position is not None and not flags & AGAIN:
                # All in one bucket: they are taken back as they came, whatever the key.
                paths.extend((place, key, position, event, offset))
                courses[place].follow(position)
        self._spool.added(len(records))

    def _sort_out(self, paths: list[Any], places: set[int]) -> None:
        for at in range(0, len(paths), _PATH):
            place, key, position, event, offset = paths[at : at + _PATH]
            if place in places and (order := self._order_of(position.decode(errors="replace"))) is not None:
                self._spool.add(BY_KEY, key, (place, key, *order, event.decode(), offset))


def judge_share(share: Share) -> Findings:
    found = Findings()
    for number in share.buckets:
        published: list[Any] = []
        for reader in share.readers:
            published += reader.read(RECORDS, number)
        written = share.outbox.read(WRITTEN, number)
        letters, waiting, ahead = (share.outbox.read(stream, number) for stream in (LETTERS, WAITING, AHEAD))
        seals.judge_bucket(written, published, (letters, waiting, ahead), share.ground, found)
    return found


@contextmanager
def seldom_collected() -> Iterator[None]:
    """For loops over very many things that live for a moment, and do not refer to themselves.

    Python would look for such circles after every 700 of them, and find none.
    """
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
