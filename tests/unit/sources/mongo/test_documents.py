"""Tests of documents.py and decoding.py: any BSON becomes a row with its values, or one with the reason why not."""

from __future__ import annotations

import base64
import json
import math
import struct
from datetime import datetime, timedelta
from decimal import Decimal, DecimalException
from typing import Any, NoReturn
from uuid import UUID

import bson
import pytest
from bson import json_util
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.event import JSONB, TEXT, UNREADABLE, Column, Row
from tailrace.sources.mongo import documents
from tailrace.sources.mongo.decoding import decoded
from tailrace.sources.mongo.documents import CODEC, STRICT, DocumentConverter, Malformed, field_text, milliseconds

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - as the driver gives them: in UTC, without saying so
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
UUID_TYPES = (3, 4)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 2**31])
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
dates = int64.map(DatetimeMS) | st.integers(FIRST_MS - 1, LAST_MS + 1).map(DatetimeMS)
object_ids = st.binary(min_size=12, max_size=12).map(ObjectId)
unsigned = st.integers(0, 2**32 - 1)
decimals = st.sampled_from(
    ["NaN", "sNaN", "Infinity", "-Infinity", "-0", "0E-6176", "9" * 34 + "E+6111", "1E-6176", "-12.30"]
).map(Decimal128) | st.binary(min_size=16, max_size=16).map(Decimal128.from_bid)
binaries = st.builds(Binary, st.binary(max_size=20), st.integers(0, 254)) | st.builds(
    Binary, st.binary(min_size=16, max_size=16), st.sampled_from(UUID_TYPES)
)
simple = (
    st.none() | st.booleans() | int32 | int64.map(Int64) | st.text() | object_ids
    | st.floats().map(lambda number: math.nan if math.isnan(number) else number)
    | decimals | dates | binaries | st.builds(Timestamp, unsigned, unsigned)
    | st.builds(Regex, names, st.lists(st.sampled_from("imsux")).map("".join)) | st.builds(Code, st.text())
    | st.just(MinKey()) | st.just(MaxKey())
)  # fmt: skip
with_parts = simple | st.builds(DBRef, names, simple) | st.builds(Code, st.text(), st.dictionaries(names, int32))
values = st.recursive(with_parts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4))


class NoForm(Exception):
    """The documented mapping has no plain JSON for a value."""


def as_documented(value: Any) -> Any:
    """Implements the table of docs/mongodb.md independently."""
    if isinstance(value, dict):
        return {name: as_documented(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_documented(each) for each in value]
    if isinstance(value, MinKey | MaxKey) or (isinstance(value, float) and not math.isfinite(value)):
        raise NoForm
    if isinstance(value, DatetimeMS):
        if not FIRST_MS <= int(value) <= LAST_MS:
            raise NoForm
        return (EPOCH + timedelta(milliseconds=int(value))).isoformat() + "Z"
    if isinstance(value, Decimal128):
        try:
            number = value.to_decimal()
        except DecimalException:
            raise NoForm from None
        if not number.is_finite():
            raise NoForm
        return number
    if isinstance(value, Binary):
        if value.subtype in UUID_TYPES and len(value) != 16:
            raise NoForm
        return str(UUID(bytes=bytes(value))) if value.subtype == 4 else base64.b64encode(value).decode()
    if isinstance(value, Regex):
        letters = {2: "i", 8: "m", 16: "s", 32: "u", 64: "x"}
        return f"/{value.pattern}/" + "".join(letter for bit, letter in letters.items() if value.flags & bit)
    if isinstance(value, Timestamp):
        return {"t": value.time, "i": value.inc}
    if isinstance(value, DBRef):
        return {"$ref": value.collection, "$id": as_documented(value.id)}
    return str(value) if isinstance(value, ObjectId | Code) else value


def same(found: Any, expected: Any) -> bool:
    """Returns whether they are equal and of the same type: to Python 1, 1.0 and True are equal."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], each) for name, each in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, Decimal):
        return isinstance(found, str) and Decimal(found).as_tuple() == expected.as_tuple()
    if isinstance(expected, Int64):
        return type(found) is int and found == expected
    return type(found) is type(expected) and found == expected


def strict(text: bytes | None) -> Any:
    def constant(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    assert text is not None
    return json.loads(text.decode(), parse_constant=constant)


def row_of(raw: bytes, **fields: Any) -> Row:
    options = {"required": ("_id", "payload"), "optional": ("topic",), "payload": "payload", **fields}
    return DocumentConverter(**options).row(decoded(raw), "7.1:1", 5)


def why(row: Row) -> str:
    assert row.columns is UNREADABLE
    return (row.values[1] or b"").decode()


@given(st.dictionaries(names, values, max_size=5) | st.lists(values, max_size=3))
def test_a_payload_has_its_values_or_a_reason(payload: Any) -> None:
    document = {"_id": 1, "payload": payload}
    raw = bson.encode(document)
    row = row_of(raw)
    assert row == row_of(raw)
    assert (row.position, row.committed_ms) == ("7.1:1", 5)
    try:
        expected = as_documented(payload)
    except NoForm:
        assert why(row)
        kept = strict(row.values[0])
        assert list(kept) == ["_id", "payload"]
    else:
        assert [column.name for column in row.columns] == ["_id", "payload", "topic"]
        assert same(strict(row.values[1]), expected)


@given(values)
def test_a_field_is_its_json_text_without_quotes(value: Any) -> None:
    row = row_of(bson.encode({"_id": value, "payload": {}}))
    try:
        expected = as_documented(value)
    except NoForm:
        assert why(row)
        return
    found = row.values[0]
    if value is None:
        assert found is None
    elif isinstance(value, Binary) and value.subtype != 4:
        assert found == bytes(value)
    elif isinstance(expected, Decimal):
        assert Decimal((found or b"").decode()).as_tuple() == expected.as_tuple()
    elif isinstance(expected, str):
        assert found == expected.encode()
    else:
        assert same(strict(found), expected)


own_names = names.filter(lambda name: not name.startswith("$"))
"""Not names of extended JSON, which its reader would take for values."""
well_formed = st.recursive(
    simple.filter(lambda value: not isinstance(value, Decimal128 | Binary))
    | st.binary() | st.uuids().map(Binary.from_uuid),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(own_names, inner, max_size=3),
)  # fmt: skip


@given(st.dictionaries(own_names, well_formed, max_size=5))
def test_an_unreadable_row_keeps_the_whole_document(document: dict[str, Any]) -> None:
    raw = bson.encode({**document, "payload": MinKey()})
    kept = json_util.loads((row_of(raw, required=(), optional=()).values[0] or b"").decode(), json_options=STRICT)
    assert bson.encode(kept) == raw


@pytest.mark.parametrize(
    "payload",
    [
        {"a": [{"b": math.inf}], "c": None},
        {"a": DBRef("c", math.nan)},
        {"a": [DBRef("c", 1, None, {"more": {"x": -math.inf}})]},
    ],
)
def test_numbers_without_a_json_form_are_not_null(payload: Any) -> None:
    assert "which JSON does not have" in why(row_of(bson.encode({"_id": 1, "payload": payload})))


def test_a_uuid_must_have_16_bytes() -> None:
    """Written without the driver's check, one of three bytes is ordinary binary data."""
    assert field_text(Binary(b"abc", 4)) == b"abc"
    assert field_text(Binary(b"a" * 16, 4)) == b"61616161-6161-6161-6161-616161616161"


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**53 + 1])
def test_an_int64_keeps_every_digit(number: int) -> None:
    row = row_of(bson.encode({"_id": Int64(number), "payload": {"n": Int64(number)}}))
    assert row.values[:2] == (str(number).encode(), b'{"n":%d}' % number)


@pytest.mark.parametrize("depth", [100, 180])
@pytest.mark.parametrize("innermost", [1, math.nan])
def test_documents_as_deep_as_the_server_accepts_are_read(depth: int, innermost: float) -> None:
    """The manual says 100 levels; the server accepts 180."""
    nested: Any = innermost
    for level in range(depth - 2):
        nested = {"a": nested} if level % 2 else [nested]
    row = row_of(bson.encode({"_id": 1, "payload": {"a": nested}}))
    if innermost == 1:
        assert (row.values[1] or b"").count(b"{") == depth // 2
    else:
        assert "nan" in why(row)


# The following is encoded by hand, because the driver refuses to. MongoDB 6.0 accepts all of it.


def framed(*fields: bytes) -> bytes:
    return struct.pack("<i", sum(map(len, fields)) + 5) + b"".join(fields) + b"\0"


def field(kind: int, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + name + b"\0" + value


def text(name: bytes, value: bytes) -> bytes:
    return field(2, name, struct.pack("<i", len(value) + 1) + value + b"\0")


def binary(name: bytes, subtype: int, value: bytes) -> bytes:
    return field(5, name, struct.pack("<i", len(value)) + bytes([subtype]) + value)


def nested(name: bytes, *fields: bytes) -> bytes:
    return field(3, name, framed(*fields))


ID, BODY = text(b"_id", b"x"), nested(b"payload", text(b"a", b"b"))
ODD_DECIMAL = bytes.fromhex("972c8f55ecbfbf03023cef0742fcd142")
"""More digits than a Decimal128 can have: the driver raises when it formats it."""
SHORT_UUID = binary(b"u", 4, b"abc")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([text(b"_id", b"\xff"), BODY], "not valid UTF-8"),
        ([ID, text(b"payload", b"\xff")], "not valid UTF-8"),
        ([ID, nested(b"payload", text(b"a", b"\xff"))], "not valid UTF-8"),
        ([ID, nested(b"payload", text(b"\xff", b"a"))], "not valid UTF-8"),
        ([ID, nested(b"payload", field(11, b"a", b"\xff\0i\0"))], "not valid UTF-8"),
        ([ID, BODY, text(b"\xff", b"a further field, whose name would be a header's")], "not valid UTF-8"),
        ([ID, nested(b"payload", field(19, b"a", ODD_DECIMAL))], "34 digits"),
        ([ID, BODY, field(19, b"a", ODD_DECIMAL), text(b"b", b"\xff")], "34 digits"),
        ([ID, BODY, SHORT_UUID], "not proper BSON"),
        ([ID, nested(b"payload", SHORT_UUID)], "not proper BSON"),
        ([ID, nested(b"payload", field(4, b"a", framed(binary(b"0", 3, b"abc"))))], "not proper BSON"),
        ([ID, binary(b"payload", 2, b"\x09\0\0\0ab")], "not proper BSON"),
        ([SHORT_UUID[:1] + b"_id" + SHORT_UUID[2:], BODY], "not proper BSON"),
    ],
)
def test_malformed_bson_is_unreadable_and_kept(fields: list[bytes], says: str) -> None:
    row = row_of(framed(*fields))
    assert says in why(row)
    assert {"_id", "payload"} <= strict(row.values[0]).keys()


def test_the_bytes_of_malformed_values_are_kept() -> None:
    row = row_of(framed(ID, nested(b"payload", text(b"a", b"b"), SHORT_UUID)))
    kept = strict(row.values[0])
    assert kept["_id"] == "x"
    assert kept["payload"]["a"] == "b"
    assert base64.b64decode(kept["payload"]["u"]["$binary"]["base64"]) == SHORT_UUID


def test_a_malformed_value_in_an_ignored_field_is_ignored() -> None:
    row = row_of(framed(ID, BODY, SHORT_UUID), ignored=frozenset({"u"}))
    assert row.values == (b"x", b'{"a":"b"}', None)


@given(st.dictionaries(names.filter(lambda name: name != "u"), well_formed | st.builds(DBRef, names, int32)))
def test_a_malformed_value_does_not_affect_other_fields(document: dict[str, Any]) -> None:
    plain = bson.encode(document)
    broken = decoded(framed(plain[4:-1], SHORT_UUID))
    last = broken.pop("u")
    assert isinstance(last, Malformed)
    assert last.raw == SHORT_UUID
    assert bson.encode(broken, codec_options=CODEC) == plain


def test_a_field_of_each_type_can_be_skipped() -> None:
    """Also those that no driver writes any more: undefined, symbol, pointer."""
    old = [
        field(6, b"a", b""),
        field(14, b"b", text(b"", b"sym")[2:]),
        field(12, b"c", text(b"", b"shop")[2:] + b"i" * 12),
    ]
    new = bson.encode({"d": Code("f", {"x": 1}), "e": Regex("a", "i"), "f": [1], "g": Timestamp(1, 2), "h": b"x"})
    found = decoded(framed(*old, new[4:-1], SHORT_UUID))
    assert list(found) == ["a", "b", "c", "d", "e", "f", "g", "h", "u"]
    assert (found["a"], found["b"], found["f"]) == (None, "sym", [1])


class TestRows:
    def test_columns_are_required_then_optional_then_other_fields(self) -> None:
        rows = DocumentConverter(("_id", "payload"), ("topic",), "payload", frozenset({"status"}))
        row = rows.row({"status": "new", "tenant": "eu", "payload": "raw", "_id": 1, "n": 2}, "p", 1)
        expected = ["_id", "payload", "topic", "tenant", "n"]
        assert row.columns == tuple(Column(name, TEXT) for name in expected)
        assert row.values == (b"1", b"raw", None, b"eu", b"2")
        assert type(row) is Row

    def test_documents_of_one_shape_share_their_columns(self) -> None:
        rows = DocumentConverter(("_id",), ("payload",), "payload")
        first, second = (rows.row({"_id": number, "tenant": "eu"}, "p", 1) for number in (1, 2))
        assert first.columns is second.columns

    def test_the_cache_of_shapes_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(documents, "SHAPES", 10)
        rows = DocumentConverter(("_id",), ("payload",), "payload")
        for number in range(100):
            row = rows.row({"_id": 1, f"field{number}": "x"}, "p", 1)
            assert row.columns[-1].name == f"field{number}"
            assert len(rows._shapes) <= 10

    @pytest.mark.parametrize("missing", ["_id", "payload"])
    def test_a_required_field_may_be_null_but_not_missing(self, missing: str) -> None:
        document = {"_id": "1", "payload": {}}
        assert row_of(bson.encode({**document, missing: None})).values[("_id", "payload").index(missing)] is None
        del document[missing]
        row = row_of(bson.encode(document))
        assert why(row) == f"the document has no field '{missing}'"
        assert strict(row.values[0]) == document

    @pytest.mark.parametrize("payload", ['{"a": 1}', "not JSON", ""])
    def test_a_text_as_payload_is_published_byte_for_byte(self, payload: str) -> None:
        assert row_of(bson.encode({"_id": 1, "payload": payload})).values[1] == payload.encode()

    @pytest.mark.parametrize("subtype", [0, 2, 5, 128])
    def test_binary_data_as_payload_is_published_byte_for_byte(self, subtype: int) -> None:
        assert row_of(bson.encode({"_id": 1, "payload": Binary(b"\xff\0", subtype)})).values[1] == b"\xff\0"

    def test_binary_data_of_any_subtype(self) -> None:
        """Also the last one, which the driver reads but cannot write."""
        assert row_of(framed(ID, BODY, binary(b"u", 255, b"abc"))).values[-1] == b"abc"

    @pytest.mark.parametrize("payload", [5, 1.5, True, ObjectId(), DatetimeMS(5), Code("x"), DBRef("a", 1)])
    def test_a_scalar_is_not_a_payload(self, payload: Any) -> None:
        assert "the payload is a bare" in why(row_of(bson.encode({"_id": 1, "payload": payload})))


@given(st.none() | st.text() | int64 | dates | object_ids)
def test_the_fast_paths_give_the_same_text_as_the_general_one(value: Any) -> None:
    """Each common type has a fast path; None is no text."""
    value = bson.decode(bson.encode({"v": value}), CODEC)["v"]
    row = row_of(bson.encode({"_id": value, "payload": {}}))
    if row.columns is not UNREADABLE and value is not None:
        assert row.values[0] == field_text(value)


@pytest.mark.parametrize(("given_ms", "expected"), [(5, 5), (2**60, 2**60), (-1, -1)])
def test_milliseconds_of_any_date(given_ms: int, expected: int) -> None:
    date = bson.decode(bson.encode({"at": DatetimeMS(given_ms)}), CODEC)["at"]
    assert milliseconds(date) == expected


@pytest.mark.parametrize("value", [None, 5, "2026-01-01", Timestamp(1, 1)])
def test_values_other_than_dates_have_no_milliseconds(value: Any) -> None:
    assert milliseconds(value) is None


def test_a_reference_to_a_malformed_decimal_is_kept_with_the_reason() -> None:
    impossible = Decimal128.from_bid(b"\xff" * 14 + b"\x41\x30")
    row = row_of(bson.encode({"_id": 1, "payload": {"to": DBRef("orders", impossible)}}))
    assert "more than 34 digits" in why(row)
    assert strict(row.values[0])["payload"]["to"]["$ref"] == "orders"


@pytest.mark.parametrize(
    ("payload", "type_oid"), [({"a": 1}, JSONB), ([1], JSONB), ('{"a": 1, "a": 2}', TEXT), (b"{}", TEXT), (None, TEXT)]
)
def test_only_json_written_by_the_converter_is_known_to_have_unique_keys(payload: Any, type_oid: int) -> None:
    columns = row_of(bson.encode({"_id": 1, "payload": payload})).columns
    assert [column.type_oid for column in columns] == [TEXT, type_oid, TEXT]


def test_fields_about_delivery_are_left_out_of_an_unreadable_document() -> None:
    """They change when the document is marked, and `verify` finds its dead letter by the hash of the document."""
    documents = DocumentConverter(("event_id",), (), "payload", frozenset({"_id", "status", "last_error"}))
    pending = documents.row({"_id": 7, "payload": {}, "status": "pending"}, "p", 1)
    failed = documents.row({"_id": 7, "payload": {}, "status": "failed", "last_error": "no id"}, "p", 1)
    assert pending.columns is UNREADABLE
    assert pending.values == failed.values
    assert b"status" not in (pending.values[0] or b"")
    assert b"_id" in (pending.values[0] or b"")
