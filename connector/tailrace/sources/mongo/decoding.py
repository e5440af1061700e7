"""Decodes documents, also those with invalid BSON values.

A server checks the frame of a document, not its values: it accepts a UUID of three bytes, or binary data with a wrong
length, and the driver then rejects the whole response. One such value must not stop a pipeline, so such a document is
decoded field by field, and the invalid values become `Malformed`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import bson
from bson.errors import InvalidBSON

from tailrace.sources.mongo.documents import CODEC, Document, Malformed

DOCUMENT, ARRAY, BINARY, REGEX, DB_POINTER = 3, 4, 5, 11, 12
FRAMED = {DOCUMENT, ARRAY, 15}
"""The kinds whose length includes the length field itself."""
FIXED = {1: 8, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 127: 0, 255: 0}

_length = struct.Struct("<i")


def decoded(raw: bytes) -> Document:
    """Decodes the document; invalid values in it become Malformed."""
    try:
        return bson.decode(raw, CODEC)
    except InvalidBSON:
        return {name: value for kind, field in _fields(raw) for name, value in _field(kind, field).items()}


def all_decoded(raw: list[bytes]) -> list[Document]:
    """The same for several documents: one call of the driver costs less than many."""
    try:
        return bson.decode_all(b"".join(raw), CODEC)
    except InvalidBSON:
        return [decoded(each) for each in raw]


def concatenated(batch: bytes) -> Iterator[bytes]:
    """Yields the raw documents of a batch from `find_raw_batches`; each begins with its length."""
    at = 0
    while at < len(batch):
        end = at + _length.unpack_from(batch, at)[0]
        yield batch[at:end]
        at = end


def id_of(raw: bytes) -> bytes:
    """Returns the field `_id` as raw BSON; it identifies a document."""
    return next(framed(field) for _, field in _fields(raw) if field.startswith(b"_id\0", 1))


def key_of(change: bytes) -> bytes:
    """The same for the document of a change."""
    name = b"documentKey\0"
    return next(id_of(field[1 + len(name) :]) for _, field in _fields(change) if field.startswith(name, 1))


def _field(kind: int, field: bytes) -> Document:
    try:
        return bson.decode(framed(field), CODEC)
    except InvalidBSON:
        end = field.index(0, 1)
        name = field[1:end].decode(errors="surrogateescape")
        return {name: decoded(field[end + 1 :]) if kind == DOCUMENT else Malformed(field)}


def framed(field: bytes) -> bytes:
    """Returns a document with these fields."""
    return _length.pack(len(field) + 5) + field + b"\0"


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields kind and bytes of each field: kind, name, value."""
    at = 4
    while raw[at]:
        value = raw.index(0, at + 1) + 1
        end = value + _size(raw, raw[at], value)
        if end < value:
            raise ValueError("a field has a negative size")
        yield raw[at], raw[at:end]
        at = end


def _size(raw: bytes, kind: int, at: int) -> int:
    if kind in FIXED:
        return FIXED[kind]
    if kind == REGEX:
        return raw.index(0, raw.index(0, at) + 1) + 1 - at
    length: int = _length.unpack_from(raw, at)[0]
    if kind in FRAMED:
        return length
    return 4 + length + {BINARY: 1, DB_POINTER: 12}.get(kind, 0)
