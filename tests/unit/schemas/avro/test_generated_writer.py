"""The generated writer accepts no value that the reference path rejects, and writes the same bytes."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.avro import FILE, FIXED, TREE, decimal, enum, field, logical, record
from helpers.avro_writers import generated_writer, reference_schema, same_bytes, try_write
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema

ADDRESS = record(field("city", "string"), field("zip", ["null", "string"], default=None), name="Address")
MOMENT = "2026-01-02T03:04:05.678Z"
UUID_TEXT = "2f1c1f5e-9d0f-4a5b-8f43-6f1d5a1f2b3c"
MILLIS = logical("long", "timestamp-millis")


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ("null", None),
        ("boolean", True),
        ("boolean", False),
        *(("long", n) for n in (0, -1, 63, 64, -65, 8191, 8192, 2**20, 2**27, 2**34, 2**63 - 1, -(2**63))),
        ("int", -(2**31)),
        ("double", 0.1),
        ("double", -0.0),
        ("double", 5),
        ("float", 0.1),
        ("float", 2**24),
        ("string", ""),
        ("string", "žluť \U0001f600\0"),
        *(("string", "é" * n) for n in (31, 32, 4095, 4096, 100_000)),
        ("bytes", "AP9/"),
        (FIXED, "AP8="),
        (enum(*(f"S{n}" for n in range(200))), "S150"),
        (decimal(9, 2), "-12.5"),
        (decimal(9, 2), 12),
        ({**FIXED, "logicalType": "decimal", "precision": 4, "scale": 1}, "-999.9"),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, UUID_TEXT),
        (logical("string", "uuid"), UUID_TEXT),
        (logical("int", "date"), "2024-02-29"),
        (logical("int", "date"), -1),
        (MILLIS, MOMENT),
        (MILLIS, 1767323045678),
        (MILLIS, "1969-12-31T23:59:59.9+02:00"),
        (logical("long", "timestamp-micros"), "2026-01-02T03:04:05.678123+00:00"),
        (logical("long", "timestamp-nanos"), MOMENT),
        (logical("long", "local-timestamp-millis"), "2026-01-02T03:04:05.678"),
        (logical("int", "time-millis"), "23:59:59.999"),
        ({"type": "array", "items": "int"}, []),
        ({"type": "array", "items": "int"}, list(range(10_000))),
        ({"type": "array", "items": {"type": "array", "items": "string"}}, [[], ["a"], ["b", "c"]]),
        ({"type": "map", "values": "int"}, {}),
        ({"type": "map", "values": {"type": "map", "values": "string"}}, {"é": {"": "x"}, "b": {}}),
        (record(), {}),
        (record(field("only", "string")), {"only": "x"}),
        (["null", "string"], None),
        (["null", "string"], "x"),
        (["string", "null"], "x"),
        (["null", "long", "double"], 5),
        (["null", "long", "double"], 5.5),
        (["float", "double"], 0.1),
        (["boolean", "int"], 1),
        (["int", "boolean"], True),
        (["null", ADDRESS, {"type": "array", "items": "string"}], {"city": "x"}),
        (["null", ADDRESS, {"type": "array", "items": "string"}], ["x"]),
        (ADDRESS, {"city": "x"}),
        (ADDRESS, {"zip": "1", "city": "x"}),
        (record(field("a", ADDRESS), field("b", "Address")), {"a": {"city": "x"}, "b": {"city": "y", "zip": None}}),
        (record(field("a", enum("A", "B")), field("b", "E")), {"a": "A", "b": "B"}),
        (TREE, {"value": 1, "left": {"value": 2, "left": None, "right": None}, "right": None}),
        (["null", "string", "int", record(field("x", "int"))], {"x": 1}),
    ],
    ids=lambda one: repr(one)[:60],
)
def test_usual_payloads_are_written_with_the_same_bytes(document: Any, value: Any) -> None:
    assert same_bytes(document, value) is not None


def test_an_event_of_usual_size_is_written() -> None:
    line = record(field("sku", "string"), field("quantity", "long"), field("price", ["null", decimal(9, 2)]), name="L")
    document = record(
        field("note", "string"),
        field("issued", MILLIS),
        field("due", logical("int", "date")),
        field("status", {**enum("open", "paid"), "name": "Status"}),
        field("rate", "double"),
        field("paid", "boolean"),
        field("reference", logical("string", "uuid")),
        field("billing", ADDRESS),
        field("shipping", ["null", "Address"], default=None),
        field("lines", {"type": "array", "items": line}),
        field("labels", {"type": "map", "values": "string"}),
    )
    value = {
        "lines": [{"sku": "a", "quantity": 1, "price": "9.99"}, {"sku": "b", "quantity": -70_000, "price": None}],
        "labels": {"a": "b", "c": "Grüße"},
        "billing": {"zip": None, "city": "Berlin"},
        "reference": UUID_TEXT,
        "paid": True,
        "rate": 0.19,
        "status": "paid",
        "due": "2026-12-16",
        "issued": MOMENT,
        "note": "x" * 200,
    }
    assert same_bytes(document, value) is not None
    assert same_bytes(document, {**value, "shipping": {"city": "x"}}) is not None


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ("null", False),
        ("null", 0),
        ("int", True),
        ("int", 2**31),
        ("int", 1.0),
        ("long", 2**63),
        ("double", True),
        ("double", 2**53 + 1),
        ("float", 1e300),
        ("boolean", 1),
        ("string", None),
        ("string", Text("x")),
        ("string", b"x"),
        (enum("A"), Text("A")),
        (enum("A"), ["A"]),
        ({"type": "array", "items": "string"}, "ab"),
        ({"type": "array", "items": "string"}, ("a", "b")),
        ({"type": "map", "values": "int"}, [["a", 1]]),
        (record(field("a", "int")), {"a": 1, "b": 2}),
        (record(field("a", "int")), {}),
        (record(field("a", "int", default=7)), {}),
        (record(field("a", "int"), field("b", ["null", "int"], default=None)), {"a": 1, "c": 1}),
        (record(field("a", "int"), field("b", ["null", "int"], default=None)), {"b": 1}),
        (record(field("a", "int"), field("b", ["null", "int"], default=None)), {"a": 1, "b": 1, "c": 1}),
        (["null", "string"], 5),
        (["int", "string"], 2**31),
        (["int", "string"], True),
        (MILLIS, "2026-01-02T03:04:05.6789Z"),
        (MILLIS, "2026-01-02T03:04:60Z"),
        (MILLIS, "2026-01-02T03:04:05.Z"),
        (MILLIS, "2026-01-02T03:04:05,678Z"),
        (MILLIS, "2026-01-02T03:04:05.1_0Z"),
        (MILLIS, "2026-01-02T03:04:05.٣Z"),
        (MILLIS, "2026-01-02T03:04:05.²Z"),
        (MILLIS, "2026-01-02T03:04:٣٣Z"),
        (MILLIS, "2026-01-02T03:04:05"),
        (MILLIS, "2026-01-02T03:04:05+2400"),
        (MILLIS, "2026-02-30T03:04:05Z"),
        (MILLIS, "2026-01-02T03:04:0"),
        (MILLIS, "+02:00"),
        (MILLIS, ""),
        (MILLIS, True),
        (logical("long", "timestamp-nanos"), "2262-04-11T23:47:59Z"),
    ],
    ids=lambda one: repr(one)[:60],
)
def test_values_that_the_reference_path_rejects_are_not_accepted(document: Any, value: Any) -> None:
    assert not reference_schema(document).is_valid(value)
    assert try_write(generated_writer(document), value) is None
    assert not CompiledAvroSchema.compile("T", Version(1), document, FILE).is_valid(value)


def test_a_cached_value_does_not_match_an_equal_value_of_another_type() -> None:
    fast = generated_writer(logical("int", "date"))
    assert fast(1) == b"\2"
    assert try_write(fast, True) is None
    assert try_write(fast, 1.0) is None


def test_a_lone_surrogate_is_not_written() -> None:
    # It has no UTF-8 encoding, and our JSON parser rejects it.
    assert try_write(generated_writer("string"), "\ud800") is None
    assert try_write(generated_writer({"type": "map", "values": "int"}), {"\ud800": 1}) is None


def test_the_second_record_of_a_union_is_left_to_the_reference_path() -> None:
    document = [record(field("x", "int"), name="A"), record(field("y", "int"), name="B")]
    assert try_write(generated_writer(document), {"y": 1}) is None
    assert CompiledAvroSchema.compile("T", Version(1), document, FILE).encode({"y": 1}) == b"\2\2"
