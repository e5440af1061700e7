"""Converts BSON documents to rows: each field becomes a column, each value a text.

Consumers get plain JSON, not Extended JSON: no `$oid`, no `$date`. The mapping is documented in docs/mongodb.md: an
ObjectId is its hexadecimal text, a date an RFC 3339 text in UTC, a Decimal128 and a UUID are texts, an int64 is a
number with all its digits, other binary data is Base64. A value without a plain JSON form (NaN, infinity, MinKey) or
invalid BSON makes the document unreadable: it becomes a row with the reason, and is dead-lettered.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from datetime import datetime
from decimal import DecimalException
from operator import itemgetter
from types import NoneType
from typing import Any
from uuid import UUID

import orjson
from bson import json_util
from bson.binary import UUID_SUBTYPE, Binary, UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from tailrace.event import JSONB, TEXT, UNREADABLE, Column, Columns, Row
from tailrace.sources.mongo.options import MongoOptions

Document = dict[str, Any]

CODEC: CodecOptions[Document] = CodecOptions(
    document_class=dict,
    # A date out of Python's range, or a text that is not UTF-8, must not fail the whole response.
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="surrogateescape",
    # A UUID stays binary data until it is converted, so it can be sent back unchanged.
    uuid_representation=UuidRepresentation.UNSPECIFIED,
)
STRICT = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
)
DATES = orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z
PAYLOADS = frozenset({str, NoneType})
"""The types of a payload besides documents and arrays, which are written as JSON, and binary data."""
SHAPES = 256
"""How many sets of fields are cached; documents of one service have a handful."""
WIDTH = 200
"""Sets with more fields are not cached, so that memory is bounded;"""
NAMES_CHARS = 16_384
"""nor sets whose names have more characters in total."""
REFLAGS = {2: "i", 4: "l", 8: "m", 16: "s", 32: "u", 64: "x"}

NOT_TEXT = "a text in it is not valid UTF-8"
UUID_BYTES = 16

_new_row = tuple.__new__
_null = re.compile(b"null").search
"""Takes half the time of `in`."""


class Malformed:
    """An invalid BSON value: the bytes of its field."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class UnmappableError(ValueError):
    """A value without a plain JSON form."""


_Shape = tuple[Columns, Columns, Callable[[Document], tuple[Any, ...]]]
"""For a set of fields: the columns, the columns if the payload is our JSON, and the getter of the values."""


class DocumentConverter:
    """Makes rows of documents. `required` fields must be present, `optional` may be; others become further columns."""

    def __init__(
        self, required: tuple[str, ...], optional: tuple[str, ...], payload: str, ignored: frozenset[str] = frozenset()
    ) -> None:
        self._required = required
        self._fields = required + optional
        self._payload = payload
        self._known = ignored.union(self._fields)
        self._marked = ignored - {"_id", *self._fields}
        self._shapes: dict[tuple[str, ...], _Shape] = {}

    @classmethod
    def of(cls, options: MongoOptions) -> DocumentConverter:
        return cls(options.required, options.optional, options.payload, options.ignored)

    def row(self, document: Document, position: str, committed_ms: int) -> Row:
        """Returns the row of `document`; never fails."""
        try:
            names = tuple(document)
            columns, written, pick = self._shapes.get(names) or self._remember(names)
            text = _TEXT.get
            values = tuple([v.encode() if type(v) is str else text(type(v), field_text)(v) for v in pick(document)])
            payload = document.get(self._payload)
            kind = type(payload)
            if kind is dict or kind is list:
                return _new_row(Row, (written, values, position, committed_ms))
            if kind not in PAYLOADS and not isinstance(payload, bytes):
                raise UnmappableError(
                    f"the payload is a bare {kind.__name__}: expected a document, an array, a text or binary data"
                )
            return _new_row(Row, (columns, values, position, committed_ms))
        except UnmappableError as error:
            return unreadable(self._as_inserted(document), str(error), position, committed_ms)
        except UnicodeEncodeError:
            return unreadable(self._as_inserted(document), NOT_TEXT, position, committed_ms)

    def _as_inserted(self, document: Document) -> Document:
        """Leaves out fields that delivery marks change: the dead letter is found by the hash of the document."""
        return {name: value for name, value in document.items() if name not in self._marked}

    def _remember(self, names: tuple[str, ...]) -> _Shape:
        """Returns the plan for documents with these fields; raises UnmappableError if one is missing."""
        for name in self._required:
            if name not in names:
                raise UnmappableError(f"the document has no field {name!r}")
        further = tuple(name for name in names if name not in self._known)
        for name in further:
            name.encode()  # raises if it cannot be the name of a header
        wanted = self._fields + further
        whole = len(wanted) > 1 and set(wanted) <= set(names)
        # Returns a tuple for several fields; a missing field is None.
        pick = itemgetter(*wanted) if whole else lambda document: tuple(map(document.get, wanted))
        columns = tuple(Column(name, TEXT) for name in wanted)
        written = tuple(Column(name, JSONB if name == self._payload else TEXT) for name in wanted)
        # The same object for the same columns in any order: later steps compare it by identity.
        for known, known_written, _ in self._shapes.values():
            if known == columns:
                columns, written = known, known_written
        shape = columns, written, pick
        if len(self._shapes) >= SHAPES:
            self._shapes.clear()
        if len(names) <= WIDTH and sum(map(len, names)) <= NAMES_CHARS:
            self._shapes[names] = shape
        return shape


def unreadable(document: Document, why: str, position: str, committed_ms: int) -> Row:
    """Returns a row with the document as Extended JSON and the reason why it is not an event."""
    kept = json_util.dumps(_tellable(document), json_options=STRICT)
    return Row(UNREADABLE, (kept.encode(errors="backslashreplace"), why.encode()), position, committed_ms)


def field_text(value: object) -> bytes:
    """Returns a value as JSON, but a text without quotes and binary data unchanged."""
    if isinstance(value, bytes):
        return _uuid(value).encode() if _is_uuid(value) else bytes(value)
    text = json_text(value)
    if text.startswith(b'"'):
        unquoted: str = orjson.loads(text)
        return unquoted.encode()
    return text


def json_text(value: object) -> bytes:
    """Returns the plain JSON of a value; raises UnmappableError if it has none."""
    try:
        text = orjson.dumps(value, _plain, DATES)
    except orjson.JSONEncodeError as error:
        # UnmappableError is wrapped; any other error is a text that is not UTF-8.
        if isinstance(error.__cause__, UnmappableError):
            raise error.__cause__ from None
        raise UnmappableError(NOT_TEXT) from None
    if _null(text):
        _require_finite(value)  # orjson would silently write null
    # A copy: orjson's results keep a buffer of at least a kilobyte. Thousands of them are spread over memory, which
    # takes more time than the serialization.
    return text[:-1] + text[-1:]


def _require_finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UnmappableError(f"a number in it is {value}, which JSON does not have")
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _require_finite(each)


def _plain(value: object) -> object:
    convert = _PLAIN.get(type(value))
    if convert is not None:
        return convert(value)
    if isinstance(value, bytes):
        return _uuid(value) if _is_uuid(value) else base64.b64encode(value).decode()
    raise UnmappableError(f"a value in it is a {type(value).__name__}, which JSON does not have")


def _is_uuid(value: bytes) -> bool:
    return isinstance(value, Binary) and value.subtype == UUID_SUBTYPE and len(value) == UUID_BYTES


def _uuid(value: bytes) -> str:
    return str(UUID(bytes=bytes(value)))


def _decimal(value: Decimal128) -> str:
    try:
        finite = value.to_decimal().is_finite()
    except DecimalException:
        raise UnmappableError("a decimal in it has more than 34 digits, which none can have") from None
    if not finite:
        raise UnmappableError(f"a decimal in it is {value}, which JSON does not have")
    return str(value)


def _far_date(value: DatetimeMS) -> str:
    raise UnmappableError(f"a date in it, {int(value)} ms from 1970, is outside the years 1 to 9999")


def _regex(value: Regex[Any]) -> str:
    return f"/{value.pattern}/{''.join(letter for bit, letter in REFLAGS.items() if value.flags & bit)}"


def _reference(value: DBRef) -> Document:
    plain = dict(value.as_doc())
    _require_finite(plain)
    return plain


def _malformed(_: Malformed) -> str:
    raise UnmappableError("a value in it is not proper BSON")


def _not_json(value: object) -> object:
    raise UnmappableError(f"a value in it is a {type(value).__name__}, which JSON does not have")


_PLAIN: dict[type, Callable[[Any], object]] = {
    ObjectId: str,
    Decimal128: _decimal,
    DatetimeMS: _far_date,
    Timestamp: lambda value: {"t": value.time, "i": value.inc},
    Regex: _regex,
    DBRef: _reference,
    Malformed: _malformed,
    MinKey: _not_json,
    MaxKey: _not_json,
}


_TEXT: dict[type, Callable[[Any], bytes | None]] = {
    NoneType: lambda _: None,
    dict: json_text,
    list: json_text,
    int: lambda value: b"%d" % value,
    datetime: lambda value: orjson.dumps(value, option=DATES)[1:-1],
    ObjectId: lambda value: str(value).encode(),
}
"""Fast conversions for the usual types; `field_text` gives the same results."""


def _tellable(value: object) -> object:
    """The same, with values that Extended JSON cannot represent as binary data."""
    if isinstance(value, dict):
        return {name: _tellable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_tellable(each) for each in value]
    if isinstance(value, Malformed):
        return Binary(value.raw)
    if isinstance(value, DBRef):
        return _tellable(dict(value.as_doc()))
    if isinstance(value, Decimal128):
        try:
            str(value)
        except DecimalException:
            return Binary(value.bid)
    return value


def created_ms(document: Document, timestamp: str | None) -> int | None:
    """Returns the time of a document from the field `timestamp`, else from its ObjectId; None if it has neither."""
    when = milliseconds(document.get(timestamp)) if timestamp else None
    made = document.get("_id")
    if when is None and isinstance(made, ObjectId):
        return int(made.generation_time.timestamp() * 1000)
    return when


def milliseconds(value: object) -> int | None:
    """Returns a BSON date as Unix milliseconds; None for other values."""
    if isinstance(value, datetime):
        return int(DatetimeMS(value))
    return int(value) if isinstance(value, DatetimeMS) else None
