"""The generated writer with hostile names, large schemas and deep values."""

from __future__ import annotations

import types
from typing import Any

import pytest

from helpers.avro import FILE, TREE, enum, field, record
from helpers.avro_writers import generated_writer, same_bytes, top_type, try_write
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.avro.generated_writer import MAX_TYPES, Write, generate

HOSTILE_NAMES = [
    "'] + [__import__('os').abort()] + ['",
    '"""\nimport os; os.abort()\n"""',
    "a\n raise SystemExit",
    "{__import__('os').abort()}",
    "\\x27\\",
    "ünïcode \U0001f600\u2028",
    "",
]
OWN_NAMES = [
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


def test_names_and_symbols_never_become_source_code() -> None:
    # The compiler refuses such names, so they are inserted after it.
    of = top_type(record(field("a", "int"), field("b", enum("A")), field("c", ["null", "int"], default=None)))
    for name in HOSTILE_NAMES:
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


def test_the_source_code_contains_no_names_of_the_schema() -> None:
    inner = record(field("secret_field", ["null", enum("SECRET_SYMBOL")], default=None), name="SecretRecord")
    document = record(field("a", inner), field("b", "SecretRecord"), name="secret_name")
    fast = generated_writer({**document, "namespace": "secret_space"})
    assert len(codes(fast)) == 2
    for code in codes(fast):
        assert "secret" not in repr((code.co_names, code.co_varnames, code.co_consts, code.co_name)).lower()


def test_names_that_the_source_code_uses_can_be_field_names() -> None:
    document = record(*(field(name, record(field(name, "int"), name=f"R_{name}")) for name in OWN_NAMES))
    assert same_bytes(document, {name: {name: 1} for name in OWN_NAMES}) == b"\2" * len(OWN_NAMES)


def test_a_schema_with_thousands_of_fields_is_left_to_the_reference_path() -> None:
    names = [f"f{n}" for n in range(5000)]
    document = record(*(field(name, "int") for name in names))
    assert generate(top_type(document)) is None
    compiled = CompiledAvroSchema.compile("T", Version(1), document, FILE)
    assert compiled.encode(dict.fromkeys(names, 1)) == b"\2" * 5000


def test_the_largest_supported_schema_is_written() -> None:
    names = [f"f{n}" for n in range(MAX_TYPES - 1)]
    assert same_bytes(record(*(field(name, "string") for name in names)), dict.fromkeys(names, "x")) is not None
    assert generate(top_type(record(*(field(name, "string") for name in [*names, "one_more"])))) is None


@pytest.mark.parametrize("nullable", [False, True])
def test_containers_may_be_nested_as_deeply_as_a_schema_allows(nullable: bool) -> None:
    document: Any = "int"
    value: Any = 1
    for level in range(60):
        inner = ["null", document] if nullable else document
        document, value = (
            ({"type": "array", "items": inner}, [value, value] if level < 3 else [value]),
            ({"type": "map", "values": inner}, {"k": value}),
            (record(field("a", inner), name=f"R{level}"), {"a": value}),
        )[level % 3]
    assert same_bytes(document, value) is not None


def test_a_record_may_contain_itself_as_deeply_as_a_payload_allows() -> None:
    value: Any = None
    for _ in range(128):
        value = {"value": 1, "left": value, "right": None}
    assert same_bytes(TREE, value) is not None
    for _ in range(5000):
        value = {"value": 1, "left": value, "right": None}
    assert try_write(generated_writer(TREE), value) is None


def test_the_longest_chain_of_types_is_written() -> None:
    named = {f"T{n}": record(field("next", f"T{n + 1}"), name=f"T{n}") for n in range(120)}
    named["T120"] = record(field("end", "int"), name="T120")
    value: Any = {"end": 1}
    for _ in range(120):
        value = {"next": value}
    assert CompiledAvroSchema.compile("T", Version(1), "T0", FILE, named=named).encode(value) == b"\2"
