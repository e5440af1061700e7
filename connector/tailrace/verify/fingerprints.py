"""An event, the print of its payload, and checksums of its key and type in a few bytes. Pure.

They are the same on both sides if nothing is wrong.

Nearly all rows and records of an outbox are as they should be. Their seals are compared in bulk, as keys of two
dictionaries, at the speed of C; only events with a seal that has no like are looked at one by one (`judging.py`).

    tag (1 byte)   frame (4)   digest (8)   key (4)   type (4)   the event's id

The tag is 0 for a row, and for a record that came first-hand and from the window; whatever must be looked at has
another: flags of a record, or a print that is compared with nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from struct import Struct
from typing import Any
from zlib import crc32

from tailrace.verify.compare import (
    UNKNOWN,
    AbsenceContext,
    DeadLetterFacts,
    Findings,
    Named,
    Published,
    RowStatus,
    Written,
    compare_events,
)
from tailrace.verify.value_fingerprint import Fingerprint

_HEAD = Struct("<BiqII")
_PRINT = Struct("<Biq")
HEAD = _HEAD.size
PLAIN = bytes(5)
"""What stands before the digest of JSON, on a record without flags."""
_FLAGS = 0x3F
_UNTOLD_RECORD, _UNTOLD_ROW = 0x40, 0x80
"""Of what is compared with nothing; two tags, so that they are not alike either."""
_ROW, _RECORD = 5, 3
"""How many things stand in a bucket for a row (seal, transaction, created, topic, key), a record (seal, place, offset).

Transaction and time may be numbers as text: few of them are ever looked at.
"""


NO_LABELS = bytes(8)
"""The labels of a row of which today's rules make no record: they are compared with nothing."""
_NO_KEY = (2).to_bytes(4, "little")


def label(key: bytes | None) -> bytes:
    """The checksum of a record's key or type; never UNSAID but by an accident of one in 2^32."""
    return _NO_KEY if key is None else crc32(key, 1).to_bytes(4, "little")


def of_row(name: str, print_: Fingerprint, labels: bytes = NO_LABELS) -> bytes:
    """`labels` are those of key and type."""
    tag = _UNTOLD_ROW if print_.frame == UNKNOWN else 0
    return _pack(tag, print_, labels) + name.encode("utf-8", "surrogatepass")


def of_record(name: bytes, print_: Fingerprint, flags: int, labels: bytes = NO_LABELS) -> bytes:
    tag = flags | (_UNTOLD_RECORD if print_.frame == UNKNOWN else 0)
    return _pack(tag, print_, labels) + name


def _pack(tag: int, print_: Fingerprint, labels: bytes) -> bytes:
    return _PRINT.pack(tag, *print_) + labels


def compare_bucket(
    written: list[Any],
    published: list[Any],
    others: tuple[list[DeadLetterFacts], list[Named], list[Named]],
    ground: AbsenceContext,
    found: Findings,
) -> None:
    """Adds one bucket: flat lists of rows and records, and LETTERS, WAITING and AHEAD as `judge_events` has them."""
    letters, waiting, ahead = others
    odd = _odd(written[::_ROW], published[::_RECORD])
    names = {seal[HEAD:] for seal in odd}
    names.update(_bytes(letter[0]) for letter in letters)
    rows: list[Written] = []
    records: list[Published] = []
    if names:
        rows = [_written(written, at) for at in _of(names, written[::_ROW])]
        records = [_published(published, at) for at in _of(names, published[::_RECORD])]
    settled = len(written) // _ROW - len(rows)
    found.rows += settled
    found.records += len(published) // _RECORD - len(records)
    found.fates[RowStatus.PUBLISHED] += settled
    if rows or records or letters:
        compare_events([rows, records, letters, waiting, ahead], ground, found)


def _odd(rows: list[bytes], records: list[bytes]) -> set[bytes]:
    """Seals that are on one side only, or more than once on a side."""
    some, others = dict.fromkeys(rows), dict.fromkeys(records)
    odd = set() if some.keys() == others.keys() else some.keys() ^ others.keys()
    for seals, kinds in ((rows, some), (records, others)):
        if len(seals) != len(kinds):
            odd.update(seal for seal, times in Counter(seals).items() if times > 1)
    return odd


def _of(names: set[bytes], seals: Iterable[bytes]) -> list[int]:
    return [at for at, seal in enumerate(seals) if seal[HEAD:] in names]


def _written(written: list[Any], number: int) -> Written:
    seal, transaction, created_ms, topic, key = written[number * _ROW : (number + 1) * _ROW]
    _, frame, digest, *labels = _HEAD.unpack_from(seal)
    return (_text(seal[HEAD:]), frame, digest, int(transaction), int(created_ms), topic, key, *labels)


def _published(published: list[Any], number: int) -> Published:
    seal, place, offset = published[number * _RECORD : (number + 1) * _RECORD]
    tag, frame, digest, *labels = _HEAD.unpack_from(seal)
    return (_text(seal[HEAD:]), frame, digest, tag & _FLAGS, place, offset, *labels)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
