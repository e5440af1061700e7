"""Splits a raw batch into changes, and reads plain inserts without decoding them.

A batch has thousands of changes, and only the document of each is needed. So the batch is split by the lengths of the
changes, and for a change in the usual form of an insert, the few fields before the document are read at fixed
offsets. Any other change is left to the decoder; this is only an optimisation.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Any

from tailrace.errors import ProtocolError

DOCUMENT = 3
_BATCH = b"\x04nextBatch\0"
_SPLIT = b"\x03splitEvent\0"
# The start of an insert: a token that is a single text, then the fields in the order in which servers send them.
_ID, _DATA, _TIME, _WALL, _DOCUMENT = (
    b"\x03_id\0",
    b"\x02_data\0",
    b"\0\0\x02operationType\0\x07\0\0\0insert\0\x11clusterTime\0",
    b"\x09wallTime\0",
    b"\x03fullDocument\0",
)
_USUAL = (_ID, _DATA, _TIME, _WALL, _DOCUMENT)
_TOKEN_AT = 4 + len(_ID) + 4 + len(_DATA) + 4
_HEAD_SIZE = _TOKEN_AT + len(_TIME) + 8 + len(_WALL) + 8 + len(_DOCUMENT)
"""Bytes before the document and its size, without the token."""
LENGTHS = 64
"""How many token lengths are cached: ids of one kind have one or a few."""

_length = Struct("<i").unpack_from
_heads: dict[int, Callable[[bytes], tuple[Any, ...]]] = {}

Insert = tuple[bytes, int, int, int, bytes]
"""An insert: the text of its token, cluster time (seconds, increment), the server's clock in milliseconds, and the raw
document. Not a class, because one is made for every event."""


def documents_of(array: bytes) -> list[bytes]:
    """Returns the raw documents of a BSON array."""
    found: list[bytes] = []
    at, index, length = 4, array.index, _length
    try:
        while array[at] == DOCUMENT:
            begin = index(0, at + 1) + 1
            at = begin + length(array, begin)[0]
            if at <= begin:
                raise _malformed()
            found.append(array[begin:at])
    except (IndexError, ValueError, struct_error):
        raise _malformed() from None
    return found


def _malformed() -> ProtocolError:
    return ProtocolError(
        "a batch of changes is not valid BSON",
        remedy="Start again. If that fails again, report the server's version.",
    )


def split_batch(cursor: bytes) -> tuple[bytes, bytes]:
    """Returns the array of changes in a `cursor` document, and a document with its id and token."""
    if not cursor.startswith(_BATCH, 4):
        raise ProtocolError(
            "the response to getMore does not begin with its batch", remedy="Report the server's version."
        )
    begin = 4 + len(_BATCH)
    try:
        end = begin + _length(cursor, begin)[0]
    except struct_error:
        raise _malformed() from None
    rest = cursor[end:]
    return cursor[begin:end], (4 + len(rest)).to_bytes(4, "little") + rest


def insert_of(change: bytes) -> Insert | None:
    """Returns the insert if the change has the usual form; None leaves it to the decoder."""
    try:
        length = _length(change, _TOKEN_AT - 4)[0] - 1
        read = _heads.get(length) or _head(length)
        name, data, token, time, increment, seconds, wall, wall_ms, document, size = read(change)
    except struct_error:
        return None  # too short for an insert
    if (name, data, time, wall, document) != _USUAL:
        return None
    begin = _HEAD_SIZE + length
    end = begin + size
    if not token.isalnum() or end > len(change) or change.find(_SPLIT, end) >= 0:
        return None
    return token, seconds, increment, wall_ms, change[begin:end]


def _head(length: int) -> Callable[[bytes], tuple[Any, ...]]:
    """Returns the reader of the fields before the document, for tokens of this length."""
    if not 0 < length < 1 << 16:
        raise struct_error
    if len(_heads) >= LENGTHS:
        _heads.clear()
    sizes = f"{len(_ID)}s4x{len(_DATA)}s4x{length}s{len(_TIME)}sII{len(_WALL)}sq{len(_DOCUMENT)}si"
    read = _heads[length] = Struct(f"<4x{sizes}").unpack_from
    return read
