"""Compiled Avro schemas: a payload is written as exactly the value that it is, or rejected with a reason."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from helpers.avro import (
    FILE,
    FIXED,
    MOMENT,
    TREE,
    compile_schema,
    decimal,
    enum,
    field,
    logical,
    read,
    record,
    written,
)
from tailrace.errors import Reason, Rejected
from tailrace.schemas.compiled import CompiledSchema


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
def test_valid_values_are_read_back_unchanged(document: Any, value: Any, expected: Any) -> None:
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
def test_values_that_would_change_are_rejected_with_an_explanation(document: Any, value: Any) -> None:
    schema = compile_schema(document)
    assert not schema.is_valid(value)
    text = schema.explain(value, 10)
    assert text.startswith("$")
    assert "expected" in text
    assert len(text) < 400
    with pytest.raises(Rejected) as caught:
        schema.encode(value)
    assert caught.value.reason is Reason.SCHEMA_VALIDATION_FAILED


def test_a_fixed_uuid_is_written_as_sixteen_bytes() -> None:
    document = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    text = "2f1c1f5e-9d0f-4a5b-8f43-6f1d5a1f2b3c"
    assert compile_schema(document).encode(text) == UUID(text).bytes


def test_a_field_whose_default_is_null_may_be_absent() -> None:
    document = record(field("a", "int"), field("b", ["null", "string"], default=None))
    assert written(document, {"a": 1}) == {"a": 1, "b": None}


def test_a_value_is_encoded_correctly_after_another_was_validated() -> None:
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
def test_the_bytes_do_not_depend_on_an_earlier_validation(name: str) -> None:
    # The generated writer writes the first of two records and leaves the second to the reference path.
    document = [record(field("first", "int"), name="A"), record(field("second", "int"), name="B")]
    schema = compile_schema(document)
    value = {name: 1}
    fresh = schema.encode(value)
    assert schema.is_valid(value)
    assert schema.encode(value) == schema.encode(value) == fresh
    assert read(document, fresh) == value


def test_a_value_that_changed_after_encoding_is_validated_again() -> None:
    schema = compile_schema(record(field("a", "int")))
    value: dict[str, Any] = {"a": 1}
    assert schema.is_valid(value)
    assert schema.encode(value) == b"\x02"
    value["a"] = "x"
    with pytest.raises(Rejected, match=r"\$\.a: expected a whole number of 32 bits"):
        schema.encode(value)


def test_a_record_may_contain_itself_as_deeply_as_a_payload_allows() -> None:
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
    """Two records of the same shape that contain each other."""
    either = ["int", "Add", "Multiply"]
    add = record(
        field("left", ["int", "Add", {**record(name="Multiply"), "fields": []}]), field("right", "int"), name="Add"
    )
    add["fields"][0]["type"][2]["fields"] = [field("left", either), field("right", "int")]
    return [add]


@pytest.mark.parametrize("bottom", ["wrong", 5])
def test_similar_branches_that_contain_each_other_take_linear_time(bottom: Any) -> None:
    schema = compile_schema(["int", *expressions(), "Multiply"])
    value: Any = {"left": bottom, "right": 1}
    for _ in range(100):
        value = {"left": value, "right": 1}
    # Without the memory of failed branches, an invalid value would take 2**100 steps.
    assert schema.is_valid(value) is (bottom == 5)
    assert ("expected" in schema.explain(value, 0)) is (bottom == "wrong")


def test_similar_branches_that_differ_in_the_second_field_take_linear_time() -> None:
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


def test_the_memory_of_failed_branches_is_cleared_between_payloads() -> None:
    document = [record(field("x", "int"), name="A"), record(field("x", "string"), name="B")]
    schema = compile_schema(document)
    # Objects are identified by their address, and here a later object has the address of an earlier one.
    value: dict[str, Any] = {}
    for content in (1, 2, "text"):
        value["x"] = content
        assert read(document, schema.encode(value)) == {"x": content}
    value["x"] = None
    assert not schema.is_valid(value)
    value["x"] = 3
    assert schema.is_valid(value)


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
            "$: expected the fields 'a', 'b', got an object of 0 fields without them",
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
def test_an_explanation_names_the_field_the_expected_type_and_the_value(document: Any, value: Any, text: str) -> None:
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
