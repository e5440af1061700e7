"""What lies in an answer of the server, found without decoding it. Pure.

An answer holds thousands of changes, and of each only the document is wanted whole. So the batch is cut into changes by
their lengths, and of a change that looks as inserts always do, the few fields in front of the document are read where
they lie. A change of any other form is left to the decoder; nothing depends on this but speed.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from tailrace.errors import ProtocolError

DOCUMENT = 3
_BATCH = b"\x04nextBatch\0"
_SPLIT = b"\x03splitEvent\0"
_INSERT = re.compile(
    # Four dots are a length. The token is nothing but its text: behind the zero that ends it comes its own end.
    rb"....\x03_id\0....\x02_data\0....([0-9A-F]+)\0\0"
    rb"\x02operationType\0\x07\0\0\0insert\0\x11clusterTime\0(.{8})\x09wallTime\0(.{8})\x03fullDocument\0",
    re.DOTALL,
).match

_length = Struct("<i").unpack_from
_stamp = Struct("<II").unpack
_millis = Struct("<q").unpack


class Insert(NamedTuple):
    """An insert: its token (nothing but the text), cluster time, the server's clock, and the document, raw."""

    token: str
    time: tuple[int, int]
    wall_ms: int
    document: bytes


def documents_of(array: bytes) -> list[bytes]:
    """The documents of a BSON array, raw and in order."""
    found: list[bytes] = []
    at, index, length = 4, array.index, _length
    while array[at] == DOCUMENT:
        begin = index(0, at + 1) + 1
        at = begin + length(array, begin)[0]
        found.append(array[begin:at])
    return found


def parted(cursor: bytes) -> tuple[list[bytes], bytes]:
    """The changes of a `cursor` document, and a document of its other fields: its id, and the token behind them all."""
    if not cursor.startswith(_BATCH, 4):
        raise ProtocolError(
            "the answer to getMore does not begin with its batch", remedy="Report the server's version."
        )
    begin = 4 + len(_BATCH)
    end = begin + _length(cursor, begin)[0]
    rest = cursor[end:]
    return documents_of(cursor[begin:end]), (4 + len(rest)).to_bytes(4, "little") + rest


def insert_of(change: bytes) -> Insert | None:
    """The insert that a change is, if it has the usual form; None leaves it to the decoder."""
    found = _INSERT(change)
    if found is None:
        return None
    begin = found.end()
    end = begin + _length(change, begin)[0]
    if change.find(_SPLIT, end) >= 0:
        return None
    token, stamp, wall = found.groups()
    increment, seconds = _stamp(stamp)
    return Insert(token.decode(), (seconds, increment), _millis(wall)[0], change[begin:end])
