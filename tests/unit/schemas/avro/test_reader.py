"""Reading Avro: valid bytes give the value that was written, and other bytes are rejected."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.avro.reader import NotAvroError, reader

FILE = "registry/schemas/ids/7"
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Tree"], "default": None}],
}


def logical(kind: str, of: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": of, **more}


def there_and_back(document: Any, value: Any, **named: Any) -> Any:
    written = CompiledAvroSchema.compile("T", Version(1), document, FILE, named=named).encode(value)
    return reader(document, FILE, named)(written)


@pytest.mark.parametrize(
    ("document", "payload", "expected"),
    [
        ("string", "žluť", "žluť"),
        (["null", "long"], None, None),
        ({"type": "array", "items": {"type": "map", "values": "double"}}, [{"a": 1.5}, {}], [{"a": 1.5}, {}]),
        ("bytes", "AAE=", b"\0\1"),
        (logical("int", "date"), "2026-01-02", date(2026, 1, 2)),
        (logical("int", "time-millis"), "03:04:05.678", time(3, 4, 5, 678000)),
        (
            logical("long", "timestamp-micros"),
            "2026-01-02T03:04:05.678901Z",
            datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        ),
        (logical("long", "local-timestamp-millis"), "2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        (logical("long", "timestamp-nanos"), 17, 17),
        (logical("bytes", "decimal", precision=9, scale=2), "12.50", Decimal("12.50")),
        (logical("fixed", "decimal", name="D", size=4, precision=5, scale=1), "-1.5", Decimal("-1.5")),
        (logical("string", "uuid"), str(UUID(int=7)), UUID(int=7)),
        (logical("int", "no-such-type"), 7, 7),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ],
)
def test_a_value_is_read_back(document: Any, payload: Any, expected: Any) -> None:
    found = there_and_back(document, payload)
    assert (found, type(found)) == (expected, type(expected))


def test_recursive_records_and_referenced_types_are_read() -> None:
    tree = {"n": 1, "next": {"n": 2, "next": None}}
    assert there_and_back(TREE, tree) == tree
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    # A type without a namespace inside one with a namespace. fastavro's own parser would read it as shop.Note.
    price = {
        "type": "record",
        "name": "shop.Price",
        "fields": [
            {"name": "gross", "type": "Money"},
            {"name": "note", "type": {"type": "record", "name": "Note", "namespace": "", "fields": []}},
            {"name": "net", "type": "shop.Money"},
        ],
    }
    value = {"gross": {"cents": 5}, "note": {}, "net": {"cents": 4}}
    assert there_and_back(price, value, **{"shop.Money": money}) == value


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\x02", b"\x02\x00\x00", b"\xff" * 12])
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(NotAvroError):
        reader(TREE, FILE, {})(data)


def test_an_endlessly_nested_value_is_rejected() -> None:
    """fastavro's compiled reader would crash the process."""
    with pytest.raises(NotAvroError, match="RecursionError"):
        reader(TREE, FILE, {})(b"\x02\x02" * 200_000)


def test_an_unusable_schema_is_reported_with_its_place() -> None:
    with pytest.raises(SchemaError, match=r"schemas/ids/7 .*there is no type \"Nothing\""):
        reader({"type": "array", "items": "Nothing"}, FILE, {})
