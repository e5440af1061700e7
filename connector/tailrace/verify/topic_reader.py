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
from operator import itemgetter
from typing import IO, Any, NamedTuple
from zlib import crc32

from tailrace.kafka.client import KafkaOptions, producer_config
from tailrace.records.formats import RecordFormat
from tailrace.routing.partition import PARTITIONERS
from tailrace.verify import fingerprints
from tailrace.verify.backend import Window
from tailrace.verify.compare import (
    AGAIN,
    AHEAD,
    LETTERS,
    OTHERS,
    OUTSIDE,
    WAITING,
    WRITTEN,
    AbsenceContext,
    Example,
    Findings,
    RecordDefect,
    check_order,
)
from tailrace.verify.expected_partition import Firsts, KnownKeys, Lot, PartitionCheck
from tailrace.verify.position_order import Order, OrderCheck, order_of
from tailrace.verify.spill import SpillFile, SpillIndex
from tailrace.verify.topic_scan import PartitionScan, Scan, ScanResult, Taken
from tailrace.verify.value_fingerprint import DIGEST_BYTES, RecordFingerprints

RECORDS, PATHS, BY_KEY, STRAYS = range(4)
"""The streams of a reader's spool: records by id, their keys and positions as they came, the same by key; and those
that lie elsewhere than their keys go today."""
PENDING = 40_000
"""Records that wait in memory before they are written."""
COLLECTED_AFTER = 200_000
_key_of = itemgetter(6)
"""Of a `Taken`."""
_STRAY = 5
"""And in STRAYS: place, the key's hash, position, id, offset."""
TYPES = 4096
"""How many checksums of types are remembered."""
_PATH = 5
"""How many things stand in PATHS for a record: place, key, position, id, offset."""


class ScanSettings(NamedTuple):
    """What a reader must know to begin."""

    kafka: KafkaOptions
    format: RecordFormat
    database: str
    window: Window


class BucketShare(NamedTuple):
    """A part of the judgement: which buckets, of the outbox's spool and of all readers'."""

    buckets: range
    outbox: SpillIndex
    readers: list[SpillIndex]
    ground: AbsenceContext


class TopicReader:
    def __init__(self, errand: ScanSettings, file: IO[bytes]) -> None:
        self._errand = errand
        self._prints = RecordFingerprints(errand.format)
        self._order_of = order_of(errand.database)
        self._spool = SpillFile(4, pending=PENDING, file=file)
        self._keys = KnownKeys()
        self._types: dict[bytes | None, bytes] = {}
        self._lots: dict[int, Lot] = {}
        self._is_placed = producer_config(errand.kafka).get("partitioner") in PARTITIONERS
        self._courses: defaultdict[int, OrderCheck] = defaultdict(partial(OrderCheck, order_of(errand.database)))

    def read(self, parts: Sequence[PartitionScan]) -> ScanResult:
        for part in parts:
            self._lots[part.place] = Lot(part.topic, part.partition, part.partitions if self._is_placed else 0)
        scan = Scan(self._errand.kafka, self._errand.window, parts)
        others = 0
        for records in scan.batches():
            own = [record for record in records if not record[3] & OTHERS]
            others += len(records) - len(own)
            self._put(own)
        return scan.told._replace(foreign=scan.told.foreign + others)

    def pieces(self) -> SpillIndex:
        """Where the records are, in buckets as those of the outbox."""
        found = self._spool.pieces()
        return SpillIndex(found.file, [found.index[RECORDS]])

    def firsts(self) -> dict[tuple[str, int], Order]:
        """The position of the first record of each partition that was read here."""
        known = ((self._lots[place], course.first) for place, course in self._courses.items())
        return {(lot.topic, lot.partition): first for lot, first in known if first is not None}

    def check_order(self, firsts: Firsts) -> Findings:
        """Of the partitions that were read here; `firsts` are those of all."""
        found = Findings()
        placing = PartitionCheck(firsts)
        for strays in self._spool.pieces().each(STRAYS, 0):
            self._judge_strays(strays, placing, found)
        turned = {place for place, course in self._courses.items() if course.has_turned}
        if turned:
            self._spool.clear(BY_KEY)
            for paths in self._spool.pieces().each(PATHS, 0):
                self._sort_out(paths, turned)
            for (records,) in self._spool.buckets(BY_KEY):
                check_order(records, found)
        return found

    def _put(self, records: list[Taken]) -> None:
        buckets, prints, is_plain = self._spool.open(RECORDS), self._prints, self._prints.is_plain
        count, plain, paths, courses = len(buckets), fingerprints.PLAIN, self._spool.open(PATHS)[0], self._courses
        self._keys.learn(set(map(_key_of, records)))
        keys, types, lots, strays = self._keys.found, self._types, self._lots, self._spool.open(STRAYS)[0]
        keys_are_plain = prints.keys_are_plain
        for event, value, headers, flags, place, offset, key, position, kind in records:
            type_label = types.get(kind) or self._type_label(kind)
            hash_, key_label = keys[key]
            if not keys_are_plain:
                key_label = fingerprints.label(prints.of_key(key))
            if is_plain and not flags and value is not None:
                digest = blake2b(value, digest_size=DIGEST_BYTES).digest()
                seal = plain + digest + key_label + type_label + event
            else:
                seal = fingerprints.of_record(event, prints.of_record(value, headers), flags, key_label + type_label)
            buckets[crc32(event) % count].extend((seal, place, offset))
            if key is not None and position is not None and not flags & (AGAIN | OUTSIDE):
                # All in one bucket: they are taken back as they came, whatever the key.
                paths.extend((place, key, position, event, offset))
                courses[place].follow(position)
                _, partition, partitions = lots[place]
                if partitions and hash_ % partitions != partition and not flags:
                    strays.extend((place, hash_, position, event, offset))
        self._spool.added(len(records))

    def _type_label(self, kind: bytes | None) -> bytes:
        if len(self._types) >= TYPES:
            self._types.clear()
        found = self._types[kind] = fingerprints.label(kind)
        return found

    def _judge_strays(self, strays: list[Any], placing: PartitionCheck, found: Findings) -> None:
        for at in range(0, len(strays), _STRAY):
            place, hash_, position, event, offset = strays[at : at + _STRAY]
            order = self._order_of(position.decode(errors="replace"))
            if order is not None and placing.is_wrong(self._lots[place], hash_, order):
                where = Example(event.decode(), place=place, offset=offset)
                found.note(found.flaws, RecordDefect.WRONG_PARTITION, where)

    def _sort_out(self, paths: list[Any], places: set[int]) -> None:
        for at in range(0, len(paths), _PATH):
            place, key, position, event, offset = paths[at : at + _PATH]
            if place in places and (order := self._order_of(position.decode(errors="replace"))) is not None:
                self._spool.add(BY_KEY, key, (place, key, *order, event.decode(), offset))


def compare_share(share: BucketShare) -> Findings:
    found = Findings()
    for number in share.buckets:
        published: list[Any] = []
        for reader in share.readers:
            published += reader.read(RECORDS, number)
        written = share.outbox.read(WRITTEN, number)
        letters, waiting, ahead = (share.outbox.read(stream, number) for stream in (LETTERS, WAITING, AHEAD))
        fingerprints.compare_bucket(written, published, (letters, waiting, ahead), share.ground, found)
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
