"""The generated writer beside the careful one: it accepts nothing that the other refuses, and writes the same bytes."""

from __future__ import annotations

import base64
import json
import types
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.avro import (
    FILE,
    FIXED,
    JSON,
    TREE,
    decimal,
    enum,
    field,
    logical,
    pairs,
    read,
    record,
    same,
)
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.avro.generated import MAX_TYPES, Write, generate, varint
from tailrace.schemas.avro.schema import Type, compile_document
from tailrace.schemas.avro.typed import typed
from tailrace.schemas.strict_json import parse


def top(document: Any) -> Type:
    return compile_document(document, FILE, {}).top


def generated(document: Any) -> Write:
    fast = generate(top(document))
    assert fast is not None
    return fast


def careful(document: Any) -> CompiledAvroSchema:
    with patch("tailrace.schemas.avro.compiled.generate", lambda _: None):
        return CompiledAvroSchema.compile("T", 1, document, FILE)


def written(fast: Write, value: Any) -> bytes | None:
    """None if the generated writer leaves the value to the careful way."""
    try:
        return fast(value)
    except Exception:  # noqa: BLE001 - that is how it says so
        return None


def typed_agrees(document: Any, value: Any) -> bytes | None:
    """The same for what is read into types first: what it wrote of the value as a field, as the careful one does."""
    around = record(field("whole", document), name="Around")
    look = typed(top(around))
    try:
        text = json.dumps({"whole": value}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None
    data = look(text, True) if look else None
    if look is None or data is None:
        return None
    slow, parsed = careful(around), parse(text)
    assert slow.is_valid(parsed), slow.explain(parsed, 0)
    assert slow.encode(parsed) == data
    for one in (text, json.dumps(parsed).encode(), json.dumps(parsed, indent=1).encode()):
        assert look(one, False) in (data, None)
    return data


def agree(document: Any, value: Any) -> bytes | None:
    """What the generated writer wrote, which is what the careful one writes; None if it did not."""
    typed_agrees(document, value)
    data = written(generated(document), value)
    if data is not None:
        slow = careful(document)
        assert slow.is_valid(value), slow.explain(value, 0)
        assert slow.encode(value) == data
    return data


# What it is for: it takes what usual payloads hold --------------------------------------------------------------------

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
def test_what_usual_payloads_hold_is_written_with_the_same_bytes(document: Any, value: Any) -> None:
    assert agree(document, value) is not None


def test_an_event_of_real_size_is_written_by_it() -> None:
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
    assert agree(document, value) is not None
    assert agree(document, {**value, "shipping": {"city": "x"}}) is not None


# What it must not do --------------------------------------------------------------------------------------------------


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
def test_what_the_careful_way_refuses_is_not_accepted(document: Any, value: Any) -> None:
    assert not careful(document).is_valid(value)
    assert written(generated(document), value) is None
    assert not CompiledAvroSchema.compile("T", 1, document, FILE).is_valid(value)


def test_what_was_remembered_is_not_taken_for_what_only_equals_it() -> None:
    fast = generated(logical("int", "date"))
    assert fast(1) == b"\2"
    assert written(fast, True) is None
    assert written(fast, 1.0) is None


def test_half_of_a_character_is_left_alone() -> None:
    # UTF-8 has no bytes for it. No JSON parser of ours lets it through.
    assert written(generated("string"), "\ud800") is None
    assert written(generated({"type": "map", "values": "int"}), {"\ud800": 1}) is None


def test_a_second_branch_is_for_the_careful_way_which_accepts_it() -> None:
    document = [record(field("x", "int"), name="A"), record(field("y", "int"), name="B")]
    assert written(generated(document), {"y": 1}) is None
    assert CompiledAvroSchema.compile("T", 1, document, FILE).encode({"y": 1}) == b"\2\2"


# Any schema and any value ---------------------------------------------------------------------------------------------

ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))) | st.just(UTC)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=ZONES)  # noqa: DTZ001
ALMOST_MOMENT = st.text(st.sampled_from("0123456789-:.TZ+²٣_ "), max_size=30)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (MILLIS, MOMENTS.map(lambda one: one.isoformat(timespec="milliseconds").replace("+00:00", "Z"))),
    (logical("long", "timestamp-micros"), MOMENTS.map(datetime.isoformat)),
    (logical("long", "timestamp-nanos"), MOMENTS.map(datetime.isoformat)),
    (logical("long", "local-timestamp-micros"), st.datetimes().map(datetime.isoformat)),
    (logical("int", "date"), st.dates().map(str) | st.integers(-(2**31), 2**31 - 1)),
    (logical("int", "time-millis"), st.integers(0, 86_399_999)),
    (logical("string", "uuid"), st.uuids().map(str)),
    ("bytes", st.binary().map(lambda data: base64.b64encode(data).decode())),
    (decimal(12, 2), st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: str(Decimal(n).scaleb(-2)))),
]


@st.composite
def documents(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema and its values: any shape of JSON types, and a record of leaves that may be null, absent or repeated."""
    if draw(st.booleans()):
        return draw(pairs())
    fields, required, optional = [], {}, {}
    for index in range(draw(st.integers(0, 4))):
        kind, values = draw(st.sampled_from(LEAVES) | pairs(depth=1))
        form = draw(st.sampled_from(["plain", "nullable", "absent", "list", "map"]))
        name = f"f{index}"
        if form in ("nullable", "absent") and not isinstance(kind, list) and kind != "null":
            more = {"default": None} if form == "absent" else {}
            fields.append(field(name, draw(st.permutations(["null", kind])), **more))
            (optional if more else required)[name] = values | st.none()
            continue
        if form == "list":
            kind, values = {"type": "array", "items": kind}, st.lists(values, max_size=3)
        elif form == "map":
            kind, values = {"type": "map", "values": kind}, st.dictionaries(st.text("ab"), values, max_size=3)
        fields.append(field(name, kind))
        required[name] = values
    return record(*fields, name="Leaves"), st.fixed_dictionaries(required, optional=optional)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container inside, with every key or index of it."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A value with one thing in it replaced, removed or added."""
    whole = [deepcopy(value)]
    holder, key = draw(st.sampled_from(list(places(whole))))
    how = draw(st.sampled_from(["replace", "nudge", "remove", "add"]))
    if how == "remove" and holder is not whole:
        del holder[key]
    elif how == "add" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["a", "f1", "f9"]))] = draw(JSON)
    elif how == "nudge" and type(holder[key]) in (int, bool, float, str):
        one = holder[key]
        holder[key] = draw(st.sampled_from([bool(one), f"{one}", f"{one}0", f"{one}Z", str(one)[:-1], 2**31, 2**63]))
    else:
        holder[key] = draw(JSON | ALMOST_MOMENT)
    return whole[0]


def has_union(schema: Any) -> bool:
    if isinstance(schema, dict):
        parts = [schema.get("items"), schema.get("values"), schema.get("type")]
        return any(map(has_union, [*parts, *(part["type"] for part in schema.get("fields", []))]))
    return isinstance(schema, list)


@given(st.data())
def test_any_value_that_obeys_any_schema_is_written_and_read_back(data: st.DataObject) -> None:
    document, values = data.draw(pairs())
    value = data.draw(values)
    found = agree(document, value)
    if found is not None:
        assert same(value, read(document, found))
    else:
        assert has_union(document)  # whose first branch was not the right one


@given(st.data())
def test_any_value_that_obeys_any_schema_is_written_alike(data: st.DataObject) -> None:
    document, values = data.draw(documents())
    value = data.draw(values)
    assert agree(document, value) is not None or has_union(document) or not careful(document).is_valid(value)


@given(st.data())
def test_any_value_that_almost_obeys_any_schema_is_written_alike_or_left_alone(data: st.DataObject) -> None:
    document, values = data.draw(documents())
    agree(document, data.draw(changed(data.draw(values))))


@given(st.data())
def test_any_value_at_all_is_written_alike_or_left_alone(data: st.DataObject) -> None:
    document, _ = data.draw(documents())
    agree(document, data.draw(JSON))


@given(st.sampled_from(["millis", "micros", "nanos"]), ALMOST_MOMENT | MOMENTS.map(datetime.isoformat))
@example("millis", "2026-01-02T03:04:05.678Z")
def test_any_text_is_the_same_moment_or_none(unit: str, text: str) -> None:
    document = logical("long", f"timestamp-{unit}")
    if agree(document, text) is None:
        assert not careful(document).is_valid(text)


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-70_000, 70_000))
def test_any_integer_is_read_back(number: int) -> None:
    assert read("long", varint(number)) == number


# Schemas that mean harm -----------------------------------------------------------------------------------------------

HARMFUL = [
    "'] + [__import__('os').abort()] + ['",
    '"""\nimport os; os.abort()\n"""',
    "a\n raise SystemExit",
    "{__import__('os').abort()}",
    "\\x27\\",
    "ünïcode \U0001f600\u2028",
    "",
]
OURS = [
    "out",
    "v0",
    "v1",
    "n",
    "c6",
    "write",
    "join",
    "varint",
    "SMALL",
    "Unsure",
    "type",
    "len",
    "class",
    "__import__",
]


def codes(fast: Write) -> list[types.CodeType]:
    return [
        one.__code__
        for one in fast.__globals__.values()  # type: ignore[attr-defined]
        if isinstance(one, types.FunctionType) and not str(one.__module__).startswith("tailrace.")
    ]


def test_names_and_symbols_are_data_and_never_source() -> None:
    # Our compiler refuses such names; here they are put behind its back.
    of = top(record(field("a", "int"), field("b", enum("A")), field("c", ["null", "int"], default=None)))
    for name in HARMFUL:
        of.writer["fields"][0]["name"] = name
        of.writer["fields"][2]["name"] = name + "?"
        of.optional = frozenset({name + "?"})
        of.parts[1].writer["symbols"][0] = name
        fast = generate(of)
        assert fast is not None
        assert fast({name: 5, "b": name}) == b"\x0a\0\0"
        assert fast({name: 5, "b": name, name + "?": 1}) == b"\x0a\0\2\2"
        for code in codes(fast):
            texts = {*code.co_names, *code.co_varnames, *(one for one in code.co_consts if isinstance(one, str))}
            assert all(one.isascii() and one.isidentifier() for one in texts)


def test_the_source_holds_no_word_of_the_schema() -> None:
    inner = record(field("secret_field", ["null", enum("SECRET_SYMBOL")], default=None), name="SecretRecord")
    document = record(field("a", inner), field("b", "SecretRecord"), name="secret_name")
    fast = generated({**document, "namespace": "secret_space"})
    assert len(codes(fast)) == 2
    for code in codes(fast):
        assert "secret" not in repr((code.co_names, code.co_varnames, code.co_consts, code.co_name)).lower()


def test_names_that_the_source_uses_itself_are_only_keys() -> None:
    document = record(*(field(name, record(field(name, "int"), name=f"R_{name}")) for name in OURS))
    assert agree(document, {name: {name: 1} for name in OURS}) == b"\2" * len(OURS)


def test_a_schema_of_thousands_of_fields_is_left_to_the_careful_way() -> None:
    names = [f"f{n}" for n in range(5000)]
    document = record(*(field(name, "int") for name in names))
    assert generate(top(document)) is None
    compiled = CompiledAvroSchema.compile("T", 1, document, FILE)
    assert compiled.encode(dict.fromkeys(names, 1)) == b"\2" * 5000


def test_the_largest_schema_it_takes_is_written() -> None:
    names = [f"f{n}" for n in range(MAX_TYPES - 1)]
    assert agree(record(*(field(name, "string") for name in names)), dict.fromkeys(names, "x")) is not None
    assert generate(top(record(*(field(name, "string") for name in [*names, "one_more"])))) is None


@pytest.mark.parametrize("nullable", [False, True])
def test_arrays_maps_and_records_may_be_nested_as_deep_as_a_schema_may(nullable: bool) -> None:
    document: Any = "int"
    value: Any = 1
    for level in range(60):
        inner = ["null", document] if nullable else document
        document, value = (
            ({"type": "array", "items": inner}, [value, value] if level < 3 else [value]),
            ({"type": "map", "values": inner}, {"k": value}),
            (record(field("a", inner), name=f"R{level}"), {"a": value}),
        )[level % 3]
    assert agree(document, value) is not None


def test_a_record_may_hold_itself_as_deep_as_a_payload_may_be() -> None:
    value: Any = None
    for _ in range(128):
        value = {"value": 1, "left": value, "right": None}
    assert agree(TREE, value) is not None
    for _ in range(5000):
        value = {"value": 1, "left": value, "right": None}
    assert written(generated(TREE), value) is None


def test_a_chain_of_types_as_long_as_may_be_compiled_is_written_or_left_alone() -> None:
    named = {f"T{n}": record(field("next", f"T{n + 1}"), name=f"T{n}") for n in range(120)}
    named["T120"] = record(field("end", "int"), name="T120")
    value: Any = {"end": 1}
    for _ in range(120):
        value = {"next": value}
    assert CompiledAvroSchema.compile("T", 1, "T0", FILE, named=named).encode(value) == b"\2"
