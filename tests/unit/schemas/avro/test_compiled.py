"""Avro contracts: what is written is what was in the payload, or nothing is written. Read back by fastavro's reader."""

from __future__ import annotations

import io
import itertools
import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Reason, Rejected, SchemaError
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import CompiledSchema, Reference, RegistryIds

FILE = "schemas/T/1.avsc"


def compile_schema(document: Any, **named: Any) -> CompiledAvroSchema:
    return CompiledAvroSchema.compile(
        "T", 1, document, FILE, named={name.replace("_", "."): one for name, one in named.items()}
    )


def read(document: Any, data: bytes) -> Any:
    """By another's hand; nothing may be left over."""
    source = io.BytesIO(data)
    value = fastavro.schemaless_reader(source, document, None)
    assert source.read() == b""
    return value


def written(document: Any, value: Any) -> Any:
    schema = compile_schema(document)
    assert schema.is_valid(value), schema.explain(value, 0)
    return read(document, schema.encode(value))


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def decimal(precision: int, scale: int = 0) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "logicalType": name}


def enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols)}


FIXED = {"type": "fixed", "name": "F", "size": 2}
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("document", "value", "expected"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1),
        ("double", 5, 5.0),
        ("double", 0.1, 0.1),
        ("double", 2**53, 2.0**53),
        ("float", 0.1, struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("float", 2**24, 2.0**24),
        ("string", "žluť \U0001f600", "žluť \U0001f600"),
        ("bytes", "AP9/", b"\x00\xff\x7f"),
        ("bytes", "", b""),
        (FIXED, "AP8=", b"\x00\xff"),
        (enum("A", "B"), "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "array", "items": "int"}, [], []),
        ({"type": "map", "values": "int"}, {"a": 1, "": 2}, {"a": 1, "": 2}),
        (record(field("a", "int")), {"a": 1}, {"a": 1}),
        (record(), {}, {}),
        (["null", "double"], 5, 5.0),
        (["null", "double"], None, None),
        (["string", "null"], None, None),
        (["int", "long"], 2**40, 2**40),
        (["boolean", "int"], 1, 1),
        (["int", "boolean"], True, True),
        (["float", "double"], 0.1, 0.1),
        (["float", "long"], 2**24 + 1, 2**24 + 1),
        (["null", {"type": "array", "items": ["null", "string"]}], ["a", None], ["a", None]),
        ([logical("long", "timestamp-millis"), "string"], "soon", "soon"),
        ([logical("long", "timestamp-millis"), "string"], "2026-01-02T03:04:05.678Z", MOMENT),
        (decimal(9, 2), "-12.5", Decimal("-12.50")),
        (decimal(9, 2), "0012.500", Decimal("12.50")),
        (decimal(9, 2), "9999999.99", Decimal("9999999.99")),
        (decimal(9, 2), 12, Decimal("12.00")),
        (decimal(9, 2), 12.25, Decimal("12.25")),
        (decimal(2, 2), "0.07", Decimal("0.07")),
        (decimal(3), -128, Decimal(-128)),
        (decimal(38, 2), "123456789012345678901234567890123456.78", Decimal("123456789012345678901234567890123456.78")),
        ({**FIXED, "logicalType": "decimal", "precision": 4, "scale": 1}, "-999.9", Decimal("-999.9")),
        (logical("long", "timestamp-millis"), "2026-01-02T03:04:05.678Z", MOMENT),
        (logical("long", "timestamp-millis"), "2026-01-02T05:04:05.678000+02:00", MOMENT),
        (logical("long", "timestamp-millis"), "2026-01-01T22:34:05.678-04:30", MOMENT),
        (logical("long", "timestamp-millis"), 1767323045678, MOMENT),
        (logical("long", "timestamp-micros"), "2026-01-02T03:04:05.678Z", MOMENT),
        (
            logical("long", "timestamp-millis"),
            "1969-12-31T23:59:59.999Z",
            datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        ),
        (logical("long", "local-timestamp-micros"), "2026-01-02T03:04:05.678", MOMENT.replace(tzinfo=None)),
        (logical("int", "date"), "2024-02-29", date(2024, 2, 29)),
        (logical("int", "date"), -1, date(1969, 12, 31)),
        (logical("int", "time-millis"), "23:59:59.999", time(23, 59, 59, 999000)),
        (logical("long", "time-micros"), "00:00:00.000001", time(0, 0, 0, 1)),
        (logical("long", "time-micros"), 1, time(0, 0, 0, 1)),
        (
            logical("string", "uuid"),
            "2f1c1f5e-9d0f-4a5b-8f43-6f1d5a1f2b3c",
            UUID("2f1c1f5e-9d0f-4a5b-8f43-6f1d5a1f2b3c"),
        ),
        (logical("string", "no-such-type"), "x", "x"),
        (logical("string", "timestamp-millis"), "x", "x"),
    ],
    ids=repr,
)
def test_what_fits_is_read_as_it_was_written(document: Any, value: Any, expected: Any) -> None:
    found = written(document, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ("null", False),
        ("null", 0),
        ("boolean", 0),
        ("boolean", "no"),
        ("int", 1.0),
        ("int", 1.9),
        ("int", True),
        ("int", 2**31),
        ("int", -(2**31) - 1),
        ("int", "1"),
        ("long", 2**63),
        ("long", 1.0),
        ("double", "1.5"),
        ("double", True),
        ("double", 2**53 + 1),
        ("float", 1e300),
        ("float", 2**24 + 1),
        ("float", False),
        ("string", 5),
        ("string", None),
        ("bytes", "not base64"),
        ("bytes", "QR=="),
        ("bytes", "QQ"),
        ("bytes", "QQ==\n"),
        ("bytes", "_-8="),
        ("bytes", "é"),
        (FIXED, "AA=="),
        (FIXED, "AAAA"),
        (enum("A"), "B"),
        (enum("A"), ["A"]),
        ({"type": "array", "items": "string"}, "ab"),
        ({"type": "array", "items": "int"}, {"0": 1}),
        ({"type": "map", "values": "int"}, [1]),
        ({"type": "map", "values": "int"}, {"a": None}),
        (record(field("a", "int")), {"a": 1, "b": 2}),
        (record(field("a", "int")), {}),
        (record(field("a", "int", default=7)), {}),
        (record(field("a", ["null", "int"])), {}),
        (record(field("a", ["null", "int"], default=None)), {"b": 1}),
        (record(field("a", ["null", "int"], default=None), field("c", "int")), {"b": 1, "c": 1}),
        (record(field("a", "int")), [["a", 1]]),
        (["null", "int"], "x"),
        (["int", "string"], 2**31),
        (decimal(9, 2), 12.34),
        (decimal(9, 2), "12.345"),
        (decimal(9, 2), "12345678.9"),
        (decimal(9, 2), 12345678),
        (decimal(9, 2), "1e3"),
        (decimal(9, 2), ""),
        (decimal(9, 2), "-"),
        (decimal(9, 2), ".5"),
        (decimal(9, 2), "-.5"),
        (decimal(9, 2), "5."),
        (decimal(9, 2), "+5"),
        (decimal(9, 2), " 5"),
        (decimal(9, 2), "٣"),
        (decimal(9, 2), "NaN"),
        (decimal(9, 2), True),
        (decimal(9, 2), "9" * 100_000),
        (decimal(9, 2), "0" * 100_000),
        (decimal(9, 2), [1]),
        (logical("long", "timestamp-millis"), "2026-01-02T03:04:05.6789Z"),
        (logical("long", "timestamp-millis"), -62_135_596_800_001),
        (logical("long", "timestamp-millis"), 253_402_300_800_000),
        (logical("long", "timestamp-millis"), (1 << 63) - 1),
        (logical("long", "timestamp-millis"), "0001-01-01T00:00:00+00:01"),
        (logical("long", "timestamp-micros"), "9999-12-31T23:59:59-00:01"),
        (logical("long", "timestamp-nanos"), 1 << 63),
        (logical("long", "local-timestamp-micros"), 253_402_300_800_000_000),
        (logical("int", "date"), -719_163),
        (logical("int", "date"), 2_932_897),
        (logical("long", "timestamp-millis"), "2026-01-02T03:04:05"),
        (logical("long", "timestamp-millis"), "2026-01-02 03:04:05Z"),
        (logical("long", "timestamp-millis"), "2026-02-30T03:04:05Z"),
        (logical("long", "timestamp-millis"), "2026-01-02T24:00:00Z"),
        (logical("long", "timestamp-millis"), "2026-01-02T03:04:60Z"),
        (logical("long", "timestamp-millis"), "2026-01-02T03:04:05+24:00"),
        (logical("long", "timestamp-millis"), "2026-01-02T03:04:05Z\n"),
        (logical("long", "timestamp-millis"), 1.5),
        (logical("long", "timestamp-nanos"), "9999-01-02T03:04:05Z"),
        (logical("long", "local-timestamp-millis"), "2026-01-02T03:04:05Z"),
        (logical("int", "date"), "2026-02-30"),
        (logical("int", "date"), "2026-W01-1"),
        (logical("int", "date"), 2**31),
        (logical("int", "time-millis"), "24:00:00"),
        (logical("int", "time-millis"), "12:00"),
        (logical("int", "time-millis"), 86_400_000),
        (logical("int", "time-millis"), -1),
        (logical("string", "uuid"), "2f1c1f5e9d0f4a5b8f436f1d5a1f2b3c"),
        (logical("string", "uuid"), 5),
    ],
    ids=lambda one: repr(one)[:60],
)
def test_what_would_come_out_different_is_refused_and_explained(document: Any, value: Any) -> None:
    schema = compile_schema(document)
    assert not schema.is_valid(value)
    text = schema.explain(value, 10)
    assert text.startswith("$")
    assert "expected" in text
    assert len(text) < 400
    with pytest.raises(Rejected) as caught:
        schema.encode(value)
    assert caught.value.reason is Reason.SCHEMA_VALIDATION_FAILED


def test_a_uuid_of_sixteen_bytes_is_written_as_those() -> None:
    document = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    text = "2f1c1f5e-9d0f-4a5b-8f43-6f1d5a1f2b3c"
    assert compile_schema(document).encode(text) == UUID(text).bytes


def test_a_field_whose_default_is_null_may_be_absent() -> None:
    document = record(field("a", "int"), field("b", ["null", "string"], default=None))
    assert written(document, {"a": 1}) == {"a": 1, "b": None}


def test_what_was_checked_is_what_is_written_though_another_was_checked_in_between() -> None:
    document = record(field("a", "int"))
    schema = compile_schema(document)
    one, other = {"a": 1}, {"a": 2}
    assert schema.is_valid(one)
    assert schema.is_valid(other)
    assert read(document, schema.encode(one)) == {"a": 1}
    assert read(document, schema.encode(other)) == {"a": 2}
    assert not schema.is_valid({"a": "x"})
    assert read(document, schema.encode(other)) == {"a": 2}


@pytest.mark.parametrize("name", ["first", "second"])
def test_the_bytes_are_the_same_whether_a_value_was_checked_before_or_not(name: str) -> None:
    # The generated writer takes the first of two records, and leaves the second to the careful one.
    document = [record(field("first", "int"), name="A"), record(field("second", "int"), name="B")]
    schema = compile_schema(document)
    value = {name: 1}
    fresh = schema.encode(value)
    assert schema.is_valid(value)
    assert schema.encode(value) == schema.encode(value) == fresh
    assert read(document, fresh) == value


def test_a_value_that_changed_after_it_was_written_is_checked_again() -> None:
    schema = compile_schema(record(field("a", "int")))
    value: dict[str, Any] = {"a": 1}
    assert schema.is_valid(value)
    assert schema.encode(value) == b"\x02"
    value["a"] = "x"
    with pytest.raises(Rejected, match=r"\$\.a: expected a whole number of 32 bits"):
        schema.encode(value)


TREE = record(field("value", "int"), field("left", ["null", "R"]), field("right", ["null", "R"]))


def test_a_record_may_hold_itself_as_deep_as_a_payload_may_be() -> None:
    value: Any = None
    for _ in range(128):
        value = {"value": 1, "left": value, "right": None}
    schema = compile_schema(TREE)
    assert schema.is_valid(value)
    found, depth = read(TREE, schema.encode(value)), 0
    while found is not None:
        found, depth = found["left"], depth + 1
    assert depth == 128


def expressions() -> Any:
    """Two records of the same shape that hold each other."""
    either = ["int", "Add", "Multiply"]
    add = record(
        field("left", ["int", "Add", {**record(name="Multiply"), "fields": []}]), field("right", "int"), name="Add"
    )
    add["fields"][0]["type"][2]["fields"] = [field("left", either), field("right", "int")]
    return [add]


@pytest.mark.parametrize("bottom", ["wrong", 5])
def test_alike_branches_that_hold_each_other_take_no_exponential_time(bottom: Any) -> None:
    schema = compile_schema(["int", *expressions(), "Multiply"])
    value: Any = {"left": bottom, "right": 1}
    for _ in range(100):
        value = {"left": value, "right": 1}
    # Without memory, the wrong one would take 2**100 steps.
    assert schema.is_valid(value) is (bottom == 5)
    assert ("expected" in schema.explain(value, 0)) is (bottom == "wrong")


def test_alike_branches_whose_second_field_decides_take_no_exponential_time() -> None:
    either = ["int", "A", "B"]
    b = record(field("child", either), field("kind", enum("b")), name="B")
    b["fields"][1]["type"]["name"] = "KindB"
    a = record(field("child", ["int", "A", b]), field("kind", enum("a")), name="A")
    a["fields"][1]["type"]["name"] = "KindA"
    document = ["int", a, "B"]
    value: Any = 1
    for _ in range(100):
        value = {"child": value, "kind": "b"}
    schema = compile_schema(document)
    assert schema.is_valid(value)
    assert read(document, schema.encode(value)) == value


def test_one_payload_is_never_taken_for_another_that_was_tried_before() -> None:
    document = [record(field("x", "int"), name="A"), record(field("x", "string"), name="B")]
    schema = compile_schema(document)
    # Objects are told apart by where they lie, and a later one may lie where an earlier one lay; here it surely does.
    value: dict[str, Any] = {}
    for content in (1, 2, "text"):
        value["x"] = content
        assert read(document, schema.encode(value)) == {"x": content}
    value["x"] = None
    assert not schema.is_valid(value)
    value["x"] = 3
    assert schema.is_valid(value)


def test_types_from_elsewhere_are_found_by_name() -> None:
    address = {**record(field("city", "City"), name="Address"), "namespace": "shop"}
    city = {**record(field("name", "string"), name="City"), "namespace": "shop"}
    document = {
        **record(field("to", "Address"), field("from", "shop.Address"), field("at", "City")),
        "namespace": "shop",
    }
    references = (Reference("shop.Address", "Address", 1),)
    schema = CompiledAvroSchema.compile(
        "T",
        3,
        document,
        FILE,
        named={"shop.Address": address, "shop.City": city},
        references=references,
        registered=RegistryIds(7, "g"),
    )
    value = {"to": {"city": {"name": "a"}}, "from": {"city": {"name": "b"}}, "at": {"name": "c"}}
    assert schema.is_valid(value)
    names: dict[str, Any] = {}
    fastavro.parse_schema(city, names)
    fastavro.parse_schema(address, names)
    assert read(fastavro.parse_schema(document, names), schema.encode(value)) == value
    assert (schema.version, schema.references, schema.registered) == (3, references, RegistryIds(7, "g"))


def test_a_definition_from_elsewhere_may_contain_another_that_is_given_as_well() -> None:
    city = {**record(field("name", "string"), name="City"), "namespace": "shop"}
    address = {**record(field("city", city), name="Address"), "namespace": "shop"}
    document = record(field("at", "shop.City"), field("to", "shop.Address"))
    schema = compile_schema(document, shop_Address=address, shop_City=city)
    value = {"at": {"name": "a"}, "to": {"city": {"name": "b"}}}
    assert schema.encode(value) == b"\x02a\x02b"


def test_a_type_without_a_namespace_may_stand_inside_one_that_has_one() -> None:
    bare = {**record(field("x", "int"), name="Bare"), "namespace": ""}
    document = {**record(field("a", bare), field("b", ["null", bare["name"]]), name="R"), "namespace": "shop"}
    # Inside shop.R the plain name means shop.Bare, which there is none of: the specification is strict here.
    with pytest.raises(SchemaError, match="Bare"):
        compile_schema(document)
    document["fields"] = [field("a", ["null", bare])]
    assert compile_schema(document).encode({"a": {"x": 1}}) == b"\x02\x02"


def test_a_type_may_be_written_inside_a_type() -> None:
    # fastavro's own parser cannot read this one.
    assert compile_schema({"type": {"type": "string"}}).encode("x") == b"\x02x"


def test_a_document_may_be_no_more_than_the_name_of_another() -> None:
    assert compile_schema("shop.E", shop_E={**enum("A", "B"), "namespace": "shop"}).encode("B") == b"\x02"


@pytest.mark.parametrize(
    ("document", "place", "word"),
    [
        (5, "#)", "5"),
        ({}, "#)", "not a schema"),
        ("Nowhere", "#)", "Nowhere"),
        ({"type": "money"}, "#/type)", "money"),
        (record(field("a", "int"), field("b", "Nowhere")), "#/fields/1/type)", "Nowhere"),
        (record(field("a", "int"), field("a", "int")), "#/fields/1)", "before"),
        (record(field("a b", "int")), "#/fields/0)", "name"),
        (record({"name": "a"}), "#/fields/0)", "type"),
        (record("a"), "#/fields/0)", "name"),  # type: ignore[arg-type]
        ({"type": "record", "name": "R"}, "#)", "fields"),
        ({"type": "record", "fields": []}, "#/name)", "name"),
        ({"type": "record", "name": "1x", "fields": []}, "#/name)", "1x"),
        ({"type": "record", "name": "string", "fields": []}, "#/name)", "string"),
        (record(field("a", "int", default="x")), "#/fields/0/default)", "default"),
        (record(field("a", "int", default=2**40)), "#/fields/0/default)", "default"),
        (record(field("a", ["null", "int"], default="x")), "#/fields/0/default)", "default"),
        (record(field("a", enum("A"), default="B")), "#/fields/0/default)", "default"),
        (record(field("a", FIXED, default="abc")), "#/fields/0/default)", "default"),
        (record(field("a", record(field("b", "int"), name="B"), default={})), "#/fields/0/default)", "default"),
        (record(field("a", enum("A")), field("b", enum("A"))), "#/fields/1/type)", "twice"),
        ([["null"], "int"], "#/0)", "union"),
        (["int", "int"], "#/1)", "twice"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "string"}], "#/1)", "twice"),
        ([], "#)", "no type"),
        (enum(), "#/symbols)", "symbols"),
        (enum("A", "A"), "#/symbols)", "symbols"),
        (enum("A B"), "#/symbols)", "symbols"),
        ({**enum("A"), "default": "B"}, "#/default)", "default"),
        ({"type": "fixed", "name": "F", "size": -1}, "#/size)", "size"),
        ({"type": "fixed", "name": "F", "size": True}, "#/size)", "size"),
        ({"type": "array"}, "#)", "items"),
        ({"type": "map"}, "#)", "values"),
        (logical("bytes", "decimal"), "#)", "precision"),
        (decimal(4, 5), "#/scale)", "scale"),
        ({**FIXED, "logicalType": "decimal", "precision": 5}, "#)", "2 bytes"),
    ],
    ids=lambda one: repr(one)[:60],
)
def test_an_unusable_schema_is_refused_with_file_and_place(document: Any, place: str, word: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema(document)
    assert f"{FILE} ({place}" in caught.value.what
    assert word in caught.value.what
    assert caught.value.remedy


def test_a_fault_in_a_type_from_elsewhere_names_that_type() -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema(record(field("a", "shop.E")), shop_E={**enum(), "namespace": "shop"})
    assert "shop.E" in caught.value.what


def test_a_chain_of_types_beyond_reason_is_refused() -> None:
    named = {f"T{n}": record(field("next", f"T{n + 1}"), name=f"T{n}") for n in range(2000)}
    with pytest.raises(SchemaError, match="shorter"):
        CompiledAvroSchema.compile("T", 1, "T0", FILE, named=named)


def test_a_schema_nested_beyond_reason_is_refused() -> None:
    document: Any = "int"
    for _ in range(5000):
        document = {"type": "array", "items": document}
    with pytest.raises(SchemaError, match="nested"):
        compile_schema(document)


@pytest.mark.parametrize(
    "usable",
    [
        record(field("a", {"type": "double"}, default=0)),
        record(field("a", "bytes", default="ÿ")),
        record(field("a", ["int", "null"], default=None)),
        record(field("a", {"type": "array", "items": "int"}, default=[])),
        record(field("a", {"type": "map", "values": "int"}, default={"x": 1})),
        record(field("a", record(field("b", "int", default=1), name="B"), default={})),
        record(field("a", ["null", "R"], default=None)),
        {"type": "error", "name": "Oops", "fields": []},
    ],
    ids=lambda one: repr(one)[:70],
)
def test_defaults_of_their_type_are_accepted(usable: Any) -> None:
    compile_schema(usable)


@pytest.mark.parametrize(
    ("document", "value", "text"),
    [
        ("int", "x", '$: expected a whole number of 32 bits, got "x"'),
        (
            record(field("a", {"type": "array", "items": record(field("b c".replace(" ", "_"), "int"), name="I")})),
            {"a": [{"b_c": 1}, {"b_c": "x"}]},
            '$.a[1].b_c: expected a whole number of 32 bits, got "x"',
        ),
        (
            record(field("a", "int"), field("b", "int")),
            {},
            "$: expected the fields 'a', 'b', got an object of 0 fields without",
        ),
        (record(field("a", "int")), {"a": 1, "x": 1}, "$: expected no further fields, got 'x'"),
        ({"type": "map", "values": "int"}, {"k": None}, "$.k: expected a whole number of 32 bits, got null"),
        (record(field("a", ["null", "string"])), {"a": 5}, "$.a: expected null or string, got 5"),
        (
            ["null", record(field("x", "int"), name="A"), record(field("y", "int"), name="B")],
            {"y": "?"},
            '$.y: expected a whole number of 32 bits, got "?"',
        ),
        (
            ["null", record(field("x", "int"), name="A"), record(field("y", "int"), name="B")],
            {"z": 1},
            "$: expected null or A or B, got an object of 1 field",
        ),
        (enum("A", "B"), "C", "$: expected one of 'A', 'B', got \"C\""),
    ],
)
def test_an_explanation_names_the_field_what_was_expected_and_what_came(document: Any, value: Any, text: str) -> None:
    assert compile_schema(document).explain(value, 0) == text


def test_an_explanation_never_repeats_the_payload() -> None:
    secret = "s" * 100_000
    schema = compile_schema(record(field("a", "int"), field("b", enum(*(f"S{n}" for n in range(10_000))))))
    for value in (
        {"a": secret, "b": "S1"},
        {secret: 1},
        {"a": 1, "b": "S1", secret: 1},
        {"a": 1, "b": secret},
        [secret],
    ):
        text = schema.explain(value, 100_000)
        assert "s" * 81 not in text
        assert len(text) < 600


def test_it_implements_the_protocol() -> None:
    schema: CompiledSchema = compile_schema("string")
    assert (schema.kind, schema.subject, schema.file, schema.document) == ("avro", "T", FILE, "string")


# Any schema, and any value that obeys it ------------------------------------------------------------------------------

SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    ("double", st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)),
    ("string", st.text(st.characters(exclude_categories=["Cs"]))),
]
NAMES = ["a", "b", "c", "d"]
Pair = tuple[Any, st.SearchStrategy[Any]]


_number = itertools.count()


@st.composite
def pairs(draw: st.DrawFn, depth: int = 3) -> Pair:
    """A schema and a strategy for its values, in types that JSON has as well."""
    kind = draw(st.sampled_from(["scalar", "array", "map", "record", "union"] if depth else ["scalar"]))
    if kind == "array":
        inner, values = draw(pairs(depth - 1))
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        inner, values = draw(pairs(depth - 1))
        return {"type": "map", "values": inner}, st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])), values, max_size=3
        )
    if kind == "record":
        names = draw(st.lists(st.sampled_from(NAMES), unique=True))
        parts = {name: draw(pairs(depth - 1)) for name in names}
        name = f"R{next(_number)}"
        fields = [field(one, inner) for one, (inner, _) in parts.items()]
        return record(*fields, name=name), st.fixed_dictionaries({one: values for one, (_, values) in parts.items()})
    if kind == "union":
        chosen = draw(st.lists(st.sampled_from(SCALARS), min_size=1, unique_by=lambda pair: str(pair[0])))
        if draw(st.booleans()):
            name = f"R{next(_number)}"
            inner, values = draw(pairs(depth - 1))
            chosen = [*chosen, (record(field("a", inner), name=name), st.fixed_dictionaries({"a": values}))]
        return [inner for inner, _ in chosen], st.one_of([values for _, values in chosen])
    return draw(st.sampled_from(SCALARS))


@given(st.data())
def test_any_value_that_obeys_any_schema_comes_back_equal(data: st.DataObject) -> None:
    document, values = data.draw(pairs())
    value = data.draw(values)
    assert written(document, value) == value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON, where a truth value is no number, and 32 bits may round a fraction."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return isinstance(other, float | int) and (
            one == other or math.isclose(one, other, rel_tol=1e-7, abs_tol=1e-45)
        )
    return bool(one == other)


@given(st.data())
def test_any_value_at_all_comes_back_equal_or_is_refused_with_a_reason(data: st.DataObject) -> None:
    document, _ = data.draw(pairs())
    value = data.draw(JSON)
    schema = compile_schema(document)
    if schema.is_valid(value):
        assert same(value, read(document, schema.encode(value)))
    else:
        assert "expected" in schema.explain(value, 0)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=4))
def test_any_decimal_as_text_comes_back_exactly(number: Decimal) -> None:
    assert written(decimal(14, 4), format(number, "f")) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_fraction_is_a_decimal_only_if_it_is_exact(number: float) -> None:
    schema = compile_schema(decimal(20, 3))
    if schema.is_valid(number):
        assert read(decimal(20, 3), schema.encode(number)) == Decimal(number)
    else:
        assert Fraction(number) * 1000 % 1 != 0 or abs(number) >= 10**17


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.timezones()))  # noqa: DTZ001
def test_any_moment_as_text_comes_back_as_the_same_moment(moment: datetime) -> None:
    text = moment.isoformat()
    schema = compile_schema(logical("long", "timestamp-micros"))
    if schema.is_valid(text):
        assert read(logical("long", "timestamp-micros"), schema.encode(text)) == datetime.fromisoformat(text)
    else:
        # Zones of old had offsets with seconds, which ISO 8601 has no form for.
        assert moment.utcoffset().total_seconds() % 60 != 0  # type: ignore[union-attr]


@given(st.binary())
def test_any_bytes_as_base64_come_back(data: bytes) -> None:
    import base64

    assert written("bytes", base64.b64encode(data).decode()) == data


@pytest.mark.parametrize(
    ("kind", "ends", "python"),
    [
        (logical("int", "date"), (-719_162, 2_932_896), (date.min, date.max)),
        (
            logical("long", "timestamp-millis"),
            (-62_135_596_800_000, 253_402_300_799_999),
            (datetime.min.replace(tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        ),
    ],
)
def test_the_first_and_last_moments_can_be_read(kind: Any, ends: tuple[int, int], python: tuple[Any, Any]) -> None:
    """Also inside a record, whose writer is generated."""
    assert tuple(written(kind, end) for end in ends) == python
    assert tuple(written(record(field("at", kind)), {"at": end})["at"] for end in ends) == python
    for beyond in (ends[0] - 1, ends[1] + 1):
        assert not compile_schema(record(field("at", kind))).is_valid({"at": beyond})


def test_a_fixed_decimal_of_no_bytes_is_refused() -> None:
    with pytest.raises(SchemaError, match="do not fit into 0 bytes"):
        compile_schema({"type": "fixed", "name": "F", "size": 0, "logicalType": "decimal", "precision": 1})
