"""What lies in an answer of the server, found without decoding it. Pure.

An answer holds thousands of changes, and of each only the document is wanted whole. So the batch is cut into changes by
their lengths, and of a change that looks as inserts always do, the few fields in front of the document are read where
they lie. A change of any other form is left to the decoder; nothing depends on this but speed.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from tailrace.errors import ProtocolError

DOCUMENT = 3
_BATCH = b"\x04nextBatch\0"
_SPLIT = b"\x03splitEvent\0"
# How an insert begins: a token that is nothing but a text, so behind the zero that ends the text comes the token's own
# end; then the fields in the order in which servers send them.
_ID, _DATA, _TIME, _WALL, _DOCUMENT = (
    b"\x03_id\0",
    b"\x02_data\0",
    b"\0\0\x02operationType\0\x07\0\0\0insert\0\x11clusterTime\0",
    b"\x09wallTime\0",
    b"\x03fullDocument\0",
)
_TOKEN_AT = 4 + len(_ID) + 4 + len(_DATA) + 4

_length = Struct("<i").unpack_from
_token_head = Struct(f"<4x{len(_ID)}s4x{len(_DATA)}si").unpack_from
_insert_head = Struct(f"<{len(_TIME)}sII{len(_WALL)}sq{len(_DOCUMENT)}si").unpack_from
_HEAD_SIZE = len(_TIME) + 8 + len(_WALL) + 8 + len(_DOCUMENT)
"""Up to the document, whose first four bytes are its size."""
_USUAL = (_ID, _DATA, _TIME, _WALL, _DOCUMENT)
_new_insert = tuple.__new__


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
    try:
        name, data, length = _token_head(change)
        token_end = _TOKEN_AT + length - 1
        time, increment, seconds, wall, wall_ms, document, size = _insert_head(change, token_end)
    except struct_error:
        return None  # too short for an insert
    if (name, data, time, wall, document) != _USUAL:
        return None
    token = change[_TOKEN_AT:token_end]
    begin = token_end + _HEAD_SIZE
    end = begin + size
    if not token.isalnum() or end > len(change) or change.find(_SPLIT, end) >= 0:
        return None
    return _new_insert(Insert, (token.decode(), (seconds, increment), wall_ms, change[begin:end]))
