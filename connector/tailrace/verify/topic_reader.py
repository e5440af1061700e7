"""Reads topics for a comparison: spills records, watches their order, and compares a share of the buckets.

One process may do it all, or several share the partitions (`workers.py`). A reader has its own spill file and keeps its
partitions, so it can check the order within them alone. That is cheap as long as positions in a partition never go
back, because then those of no key do. Keys and positions are spilled as they come and sorted out only for partitions in
which a position went back.
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
from tailrace.verify.backend import AbsenceContext, Window
from tailrace.verify.compare import compare_bucket
from tailrace.verify.findings import (
    AGAIN,
    AHEAD,
    DEAD_LETTERS,
    OTHERS,
    OUTSIDE,
    WAITING,
    WRITTEN,
    Example,
    Findings,
    RecordDefect,
)
from tailrace.verify.fingerprints import DIGEST_BYTES, PLAIN, RecordFingerprinter, checksum, pack_record
from tailrace.verify.placement import (
    Firsts,
    KnownKeys,
    Order,
    OrderCheck,
    PartitionCheck,
    PartitionInfo,
    check_order,
    order_of,
)
from tailrace.verify.spill import SpillFile, SpillIndex
from tailrace.verify.topic_scan import PartitionScan, Scan, ScanResult, Taken

RECORDS, PATHS, BY_KEY, MISPLACED = range(4)
"""The streams of a reader's spill file: records by id, their keys and positions as they came, the same by key, and
records that lie elsewhere than their key goes today.
"""
PENDING = 40_000
"""Records that are held in memory before they are written."""
COLLECTED_AFTER = 200_000
_key_of = itemgetter(6)
"""The key in a `Taken`."""
_MISPLACED = 5
"""Items per record in MISPLACED: place, hash of the key, position, id, offset."""
TYPES = 4096
"""Limit of cached type checksums."""
_PATH = 5
"""Items per record in PATHS: place, key, position, id, offset."""


class ScanSettings(NamedTuple):
    """The parameters of a reader process."""

    kafka: KafkaOptions
    format: RecordFormat
    database: str
    window: Window


class BucketShare(NamedTuple):
    """The buckets that one process compares, from the spill files of the outbox and of all readers."""

    buckets: range
    outbox: SpillIndex
    readers: list[SpillIndex]
    context: AbsenceContext


class TopicReader:
    def __init__(self, settings: ScanSettings, file: IO[bytes]) -> None:
        self._settings = settings
        self._fingerprinter = RecordFingerprinter(settings.format)
        self._order_of = order_of(settings.database)
        self._spill = SpillFile(4, pending=PENDING, file=file)
        self._keys = KnownKeys()
        self._types: dict[bytes | None, bytes] = {}
        self._partitions: dict[int, PartitionInfo] = {}
        self._is_placed = producer_config(settings.kafka).get("partitioner") in PARTITIONERS
        self._orders: defaultdict[int, OrderCheck] = defaultdict(partial(OrderCheck, order_of(settings.database)))

    def read(self, parts: Sequence[PartitionScan]) -> ScanResult:
        for part in parts:
            self._partitions[part.place] = PartitionInfo(
                part.topic, part.partition, part.partitions if self._is_placed else 0
            )
        scan = Scan(self._settings.kafka, self._settings.window, parts)
        others = 0
        for records in scan.batches():
            own = [record for record in records if not record[3] & OTHERS]
            others += len(records) - len(own)
            self._put(own)
        return scan.result._replace(foreign=scan.result.foreign + others)

    def pieces(self) -> SpillIndex:
        """Returns the index of the records, in the same buckets as those of the outbox."""
        found = self._spill.pieces()
        return SpillIndex(found.file, [found.index[RECORDS]])

    def firsts(self) -> dict[tuple[str, int], Order]:
        """Returns the position of the first record of each partition read here."""
        known = ((self._partitions[place], order.first) for place, order in self._orders.items())
        return {(info.topic, info.partition): first for info, first in known if first is not None}

    def check_order(self, firsts: Firsts) -> Findings:
        """Checks the partitions read here. `firsts` are the first positions of all partitions."""
        found = Findings()
        check = PartitionCheck(firsts)
        for misplaced in self._spill.pieces().each(MISPLACED, 0):
            self._check_misplaced(misplaced, check, found)
        turned = {place for place, order in self._orders.items() if order.went_back}
        if turned:
            self._spill.clear(BY_KEY)
            for paths in self._spill.pieces().each(PATHS, 0):
                self._sort_out(paths, turned)
            for (records,) in self._spill.buckets(BY_KEY):
                check_order(records, found)
        return found

    def _put(self, records: list[Taken]) -> None:
        buckets, fingerprinter, is_plain = self._spill.open(RECORDS), self._fingerprinter, self._fingerprinter.is_plain
        count, plain, paths, orders = len(buckets), PLAIN, self._spill.open(PATHS)[0], self._orders
        self._keys.learn(set(map(_key_of, records)))
        keys, types, infos, misplaced = self._keys.found, self._types, self._partitions, self._spill.open(MISPLACED)[0]
        keys_are_plain = fingerprinter.keys_are_plain
        for event, value, headers, flags, place, offset, key, position, kind in records:
            type_checksum = types.get(kind) or self._type_checksum(kind)
            hash_, key_checksum = keys[key]
            if not keys_are_plain:
                key_checksum = checksum(fingerprinter.of_key(key))
            if is_plain and not flags and value is not None:
                digest = blake2b(value, digest_size=DIGEST_BYTES).digest()
                packed = plain + digest + key_checksum + type_checksum + event
            else:
                packed = pack_record(
                    event, fingerprinter.of_record(value, headers), flags, key_checksum + type_checksum
                )
            buckets[crc32(event) % count].extend((packed, place, offset))
            if key is not None and position is not None and not flags & (AGAIN | OUTSIDE):
                # All in one bucket, so that they come back in the order of the partition.
                paths.extend((place, key, position, event, offset))
                orders[place].follow(position)
                _, partition, partitions = infos[place]
                if partitions and hash_ % partitions != partition and not flags:
                    misplaced.extend((place, hash_, position, event, offset))
        self._spill.added(len(records))

    def _type_checksum(self, kind: bytes | None) -> bytes:
        if len(self._types) >= TYPES:
            self._types.clear()
        found = self._types[kind] = checksum(kind)
        return found

    def _check_misplaced(self, misplaced: list[Any], check: PartitionCheck, found: Findings) -> None:
        for at in range(0, len(misplaced), _MISPLACED):
            place, hash_, position, event, offset = misplaced[at : at + _MISPLACED]
            order = self._order_of(position.decode(errors="replace"))
            if order is not None and check.is_wrong(self._partitions[place], hash_, order):
                where = Example(event.decode(), place=place, offset=offset)
                found.note(found.defects, RecordDefect.WRONG_PARTITION, where)

    def _sort_out(self, paths: list[Any], places: set[int]) -> None:
        for at in range(0, len(paths), _PATH):
            place, key, position, event, offset = paths[at : at + _PATH]
            if place in places and (order := self._order_of(position.decode(errors="replace"))) is not None:
                self._spill.add(BY_KEY, key, (place, key, *order, event.decode(), offset))


def compare_share(share: BucketShare) -> Findings:
    found = Findings()
    for number in share.buckets:
        published: list[Any] = []
        for reader in share.readers:
            published += reader.read(RECORDS, number)
        written = share.outbox.read(WRITTEN, number)
        letters, waiting, ahead = (share.outbox.read(stream, number) for stream in (DEAD_LETTERS, WAITING, AHEAD))
        compare_bucket(written, published, (letters, waiting, ahead), share.context, found)
    return found


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Makes garbage collection rare, for loops that create many short-lived objects without reference cycles."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
