"""What lies in an answer of the server, found without decoding it. Pure.

An answer holds thousands of changes, and of each only the document is wanted whole. So the batch is cut into changes by
their lengths, and of a change that looks as inserts always do, the few fields in front of the document are read where
they lie. A change of any other form is left to the decoder; nothing depends on this but speed.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tailrace.errors import ProtocolError

DOCUMENT = 3
_BATCH = b"\x04nextBatch\0"
_TOKEN = b"\x03_id\0"
_DATA = b"\x02_data\0"
_KIND = b"\x02operationType\0\x07\0\0\0insert\0\x11clusterTime\0"
_WALL = b"\x09wallTime\0"
_BODY = b"\x03fullDocument\0"
_SPLIT = b"\x03splitEvent\0"
_AT_DATA = 4 + len(_TOKEN) + 4
_AT_TEXT = _AT_DATA + len(_DATA) + 4

_length = Struct("<i").unpack_from
_stamp = Struct("<II").unpack_from
_millis = Struct("<q").unpack_from


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
    if not change.startswith(_TOKEN, 4) or not change.startswith(_DATA, _AT_DATA):
        return None
    end = 4 + len(_TOKEN) + _length(change, 4 + len(_TOKEN))[0]
    # The text ends with a zero, the token with another; type bits between them are for the decoder.
    if _AT_TEXT + _length(change, _AT_TEXT - 4)[0] + 1 != end or not change.startswith(_KIND, end):
        return None
    at = end + len(_KIND)
    increment, seconds = _stamp(change, at)
    at += 8
    if not change.startswith(_WALL, at):
        return None
    at += len(_WALL)
    wall_ms: int = _millis(change, at)[0]
    at += 8
    if not change.startswith(_BODY, at):
        return None
    at += len(_BODY)
    behind = at + _length(change, at)[0]
    if change.find(_SPLIT, behind) >= 0:
        return None
    return Insert(change[_AT_TEXT : end - 2].decode(), (seconds, increment), wall_ms, change[at:behind])
