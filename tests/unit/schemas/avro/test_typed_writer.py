"""`encode_text` of an Avro schema: which payloads it handles. `test_generated` compares the bytes."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.avro import FILE, TREE, enum, field, logical, record
from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import EncodeText, SchemaSet
from tailrace.schemas.strict_json import parse
from tailrace.schemas.validation import PayloadValidator

ADDRESS = record(field("city", "string"), field("zip", ["null", "string"], default=None), name="Address")
ORDER = record(
    field("id", logical("string", "uuid")),
    field("placed", logical("long", "timestamp-millis")),
    field("due", logical("int", "date")),
    field("total", "long"),
    field("count", "int"),
    field("rate", "double"),
    field("weight", "float"),
    field("paid", "boolean"),
    field("status", enum("open", "closed")),
    field("billing", ADDRESS),
    field("shipping", ["null", "Address"], default=None),
    field("lines", {"type": "array", "items": record(field("sku", "string"), field("n", "int"), name="Line")}),
    field("labels", {"type": "map", "values": "string"}),
    name="Order",
)
VALUE: dict[str, Any] = {
    "id": "2f1c1f5e-9d0f-4a5b-8f43-6f1d5a1f2b3c",
    "placed": "2026-01-02T03:04:05.678Z",
    "due": "2026-02-28",
    "total": 2**40,
    "count": -3,
    "rate": 0.19,
    "weight": 2,
    "paid": True,
    "status": "closed",
    "billing": {"city": "Köln", "zip": None},
    "shipping": {"city": "Berlin", "zip": "10115"},
    "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
    "labels": {"x": "y"},
}

SEPARATORS = st.sampled_from([(", ", ": "), (",", ":"), (",\n", " :\t")])
PIECES = [
    *(bytes([byte]) for byte in b' \t\n\0\x0b\x7f,:{}[]"\\0159.eE-+tnZ\x80\xc0\xff'),
    b"", b"00", b"1.", b"-0", b"1e400", b"null", b"true", b"NaN", b'"a":1,', b"9223372036854775808", b"\xef\xbb\xbf",
]  # fmt: skip


def schema(document: Any = ORDER) -> CompiledAvroSchema:
    return CompiledAvroSchema.compile("Order", Version(1), document, FILE)


def direct(of: CompiledAvroSchema) -> EncodeText:
    assert of.encode_text is not None
    return of.encode_text


@pytest.mark.parametrize("rewritten", [True, False])
@pytest.mark.parametrize("change", [{}, {"shipping": None}, {"lines": [], "labels": {}}, {"rate": 5}])
def test_usual_payloads_are_encoded_in_any_order_of_their_keys(change: dict[str, Any], rewritten: bool) -> None:
    value = {**VALUE, **change}
    order = schema()
    expected = order.write(value)
    for items in (value, dict(reversed(value.items()))):
        assert direct(order)(json.dumps(items, ensure_ascii=False).encode(), rewritten) == expected
    escaped = direct(order)(json.dumps(value).encode(), rewritten)
    assert escaped == (expected if rewritten else None)


def test_a_field_with_a_null_default_may_be_absent() -> None:
    value = {name: one for name, one in VALUE.items() if name != "shipping"}
    assert direct(schema())(json.dumps(value).encode(), True) == schema().write(value)


@pytest.mark.parametrize(
    "change",
    [
        {"total": 2**63}, {"total": 1.0}, {"total": True}, {"total": "1"}, {"count": 2**31}, {"rate": 2**53 + 1},
        {"rate": "0.1"}, {"weight": 2**24 + 1}, {"paid": 1}, {"status": "lost"}, {"status": 1}, {"due": "2026-02-30"},
        {"placed": "2026-01-02"}, {"id": "x"}, {"billing": None}, {"billing": []}, {"lines": {}}, {"labels": []},
        {"lines": [{"sku": "a"}]}, {"lines": [None]}, {"labels": {"x": 1}}, {"more": 1}, {"billing": {"zip": "1"}},
    ],
)  # fmt: skip
def test_invalid_payloads_are_not_encoded(change: dict[str, Any]) -> None:
    order = schema()
    text = json.dumps({**VALUE, **change}).encode()
    assert not order.is_valid(json.loads(text))
    assert direct(order)(text, True) is None


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b"\xff", b'{"id": 1', json.dumps(VALUE).encode() + b" x"])
def test_invalid_texts_are_not_encoded(text: bytes) -> None:
    assert direct(schema())(text, False) is None


@given(st.data())
def test_every_encoded_text_is_valid_on_the_reference_path(data: st.DataObject) -> None:
    """Texts with changed, missing and added bytes are encoded only if the reference path gives the same bytes."""
    text = bytearray(json.dumps(VALUE, ensure_ascii=False, separators=data.draw(SEPARATORS)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        text[start : start + data.draw(st.integers(0, 3))] = data.draw(st.sampled_from(PIECES))
    with patch("tailrace.schemas.avro.compiled.generate", lambda _: None):
        careful = schema()
    found = direct(schema())(bytes(text), False)
    if found is not None:
        value = parse(bytes(text))
        assert careful.is_valid(value)
        assert found == careful.encode(value)


def test_a_repeated_key_is_detected() -> None:
    document = record(field("a", "string"), field("b", ["null", "string"], default=None), name="R")
    look = direct(schema(document))
    assert look(b'{"a": "1", "b": "2"}', False) is not None
    assert look(b'{"a": "1", "a": "2"}', False) is None
    assert look(b'{"a": "1", "b": null, "b": "2"}', False) is None
    # Colons inside a dropped value, or escaped ones, do not hide the colon of the repeated key.
    assert look(b'{"a": ":", "a": "::"}', False) is None
    assert look(rb'{"a": "1", "a": "\u003a"}', False) is None


def test_a_nul_is_still_a_poison_message() -> None:
    document = record(field("a", "string"), name="R")
    validator = PayloadValidator(SchemaSet.of([schema(document)]), max_bytes=1000)
    event = OutboxEvent("1", "Order", "o", None, rb'{"a": "\u0000"}', None, "0/1:0", 0, [], keys_unique=True)
    with pytest.raises(Rejected) as rejected:
        validator.validate(event, "t")
    assert rejected.value.reason is Reason.POISON_MESSAGE


@pytest.mark.parametrize(
    "document", ["string", TREE, record(name="Nothing"), record(field("a", ["string", "int"]), name="R")]
)
def test_schemas_without_typed_writer_have_no_encode_text(document: Any) -> None:
    assert schema(document).encode_text is None
