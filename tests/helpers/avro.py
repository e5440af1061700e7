"""Avro schemas for tests: shorthands, strategies, and a writer whose bytes fastavro reads back."""

from __future__ import annotations

import io
import itertools
import math
from datetime import UTC, datetime
from typing import Any

import fastavro
from hypothesis import strategies as st

from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema

FILE = "schemas/T/1.avsc"


def compile_schema(document: Any, **named: Any) -> CompiledAvroSchema:
    return CompiledAvroSchema.compile(
        "T", Version(1), document, FILE, named={name.replace("_", "."): one for name, one in named.items()}
    )


def read(document: Any, data: bytes) -> Any:
    """Reads the bytes with fastavro; none may be left over."""
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


TREE = record(field("value", "int"), field("left", ["null", "R"]), field("right", ["null", "R"]))

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
