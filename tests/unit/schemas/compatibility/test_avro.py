"""Compatibility of Avro schemas: the rules of schema resolution, checked with another implementation."""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.schemas.compatibility.avro import avro_problems
from tailrace.schemas.compatibility.document import Document, Problem

Json = Any


def problems(writer: Json, reader: Json) -> tuple[Problem, ...]:
    return avro_problems(Document(reader), Document(writer), "the new version", "version 1")


def places(writer: Json, reader: Json) -> list[str]:
    return [problem.place for problem in problems(writer, reader)]


def record(*fields: Json, name: str = "Order", **more: Json) -> Json:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, of: Json = "int", **more: Json) -> Json:
    return {"name": name, "type": of, **more}


def enum(*symbols: str, name: str = "Kind", **more: Json) -> Json:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "Id", **more: Json) -> Json:
    return {"type": "fixed", "name": name, "size": size, **more}


def decimal(precision: int, scale: int, of: Json = "bytes") -> Json:
    more = {"logicalType": "decimal", "precision": precision, "scale": scale}
    return {**of, **more} if isinstance(of, dict) else {"type": of, **more}


def linked(value: Json, name: str = "Node") -> Json:
    return record(field("value", value), field("next", ["null", name]), name=name)


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PROMOTED = {("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")}
PROMOTED |= {("float", "double"), ("string", "bytes"), ("bytes", "string")}


@pytest.mark.parametrize("writer", PRIMITIVES)
@pytest.mark.parametrize("reader", PRIMITIVES)
def test_primitives_may_only_become_wider(writer: str, reader: str) -> None:
    fits = writer == reader or (writer, reader) in PROMOTED
    assert places(writer, reader) == ([] if fits else ["#"])
    assert places(record(field("a", writer)), record(field("a", reader))) == ([] if fits else ["#/fields/a"])


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}

# An old and a new schema; the places where the new one cannot read the old one, and vice versa.
CASES: dict[str, tuple[Json, Json, list[str], list[str]]] = {
    "the same": (record(field("a")), record(field("a")), [], []),
    "shorthands": ("int", {"type": {"type": "int"}}, [], []),
    "field without default": (record(), record(field("a")), ["#/fields/a"], []),
    "field with default": (record(), record(field("a", default=0)), [], []),
    "null is a default": (record(), record(field("a", ["null", "int"], default=None)), [], []),
    "field renamed": (record(field("a")), record(field("b")), ["#/fields/b"], ["#/fields/a"]),
    "field renamed with alias": (record(field("a")), record(field("b", aliases=["a"])), [], ["#/fields/a"]),
    "the name goes before the alias": (
        record(field("a", "string"), field("b")),
        record(field("b", aliases=["a"])),
        [],
        ["#/fields/a"],
    ),
    "field order": (record(field("a"), field("b")), record(field("b"), field("a")), [], []),
    "record renamed": (record(), record(name="Purchase"), ["#"], ["#"]),
    "record renamed with alias": (record(), record(name="Purchase", aliases=["Order"]), [], ["#"]),
    "alias in a namespace": (
        record(namespace="shop"),
        record(name="Purchase", namespace="shop", aliases=["Order"]),
        [],
        ["#"],
    ),
    "alias of another namespace": (
        record(namespace="shop"),
        record(name="Purchase", namespace="other", aliases=["Order"]),
        ["#"],
        ["#"],
    ),
    "namespaces do not count": (record(namespace="a"), record(name="b.Order"), [], []),
    "symbol added": (enum("A"), enum("A", "B"), [], ["#/symbols"]),
    "symbol added with default": (enum("A", default="A"), enum("A", "B", default="A"), [], []),
    "a default of the writer does not help": (enum("A", "B", default="A"), enum("A"), ["#/symbols"], []),
    "enum renamed": (enum("A"), enum("A", name="Other"), ["#"], ["#"]),
    "enum to string": (enum("A"), "string", ["#"], ["#"]),
    "array items": ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [], ["#/items"]),
    "map values": ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, [], ["#/values"]),
    "array to map": ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, ["#"], ["#"]),
    "made optional": (record(field("a")), record(field("a", ["null", "int"])), [], ["#/fields/a"]),
    "union widened": (["null", "int"], ["null", "int", "string"], [], ["#"]),
    "union of promoted": (["null", "int"], ["null", "long"], [], ["#"]),
    "inside a union": (
        ["null", record(field("a"))],
        ["null", record(field("a"), field("b"))],
        ["#/1/fields/b"],
        [],
    ),
    "a union of one": (["int"], "int", [], []),
    "fixed size": (fixed(4), fixed(8), ["#/size"], ["#/size"]),
    "fixed name": (fixed(4), fixed(4, name="Key"), ["#"], ["#"]),
    "fixed alias": (fixed(4), fixed(4, name="Key", aliases=["Id"]), [], ["#"]),
    "decimal scale": (decimal(4, 2), decimal(4, 1), ["#"], ["#"]),
    "decimal precision": (decimal(4, 2), decimal(6, 2), ["#"], ["#"]),
    "decimal, scale unsaid": (decimal(4, 0), {"type": "bytes", "logicalType": "decimal", "precision": 4}, [], []),
    "fixed decimal": (decimal(4, 2, fixed(8)), decimal(4, 1, fixed(8)), ["#"], ["#"]),
    "decimal and its base": (decimal(4, 2), "bytes", [], []),
    "bytes and fixed decimal": (decimal(4, 2), decimal(4, 2, fixed(8)), ["#"], ["#"]),
    "logical types are their base": (MILLIS, {"type": "long", "logicalType": "timestamp-micros"}, [], []),
    "date to long": ({"type": "int", "logicalType": "date"}, MILLIS, [], ["#"]),
    "recursive, widened": (linked("int"), linked("long"), [], ["#/fields/value"]),
    "recursive, changed": (linked("int"), linked("string"), ["#/fields/value"], ["#/fields/value"]),
    "a name used twice": (
        record(field("a", fixed(2)), field("b", "Id")),
        record(field("a", fixed(2)), field("b", ["null", "Id"])),
        [],
        ["#/fields/b"],
    ),
    "a name of a namespace": (
        record(field("a", fixed(2)), field("b", "Id"), namespace="shop"),
        record(field("b", fixed(2)), field("a", "shop.Id"), namespace="shop"),
        [],
        [],
    ),
    "deep": (
        record(field("a", {"type": "array", "items": ["null", record(field("b"), name="Line")]})),
        record(field("a", {"type": "array", "items": ["null", record(field("b", "string"), name="Line")]})),
        ["#/fields/a/items/1/fields/b"],
        ["#/fields/a/items/1/fields/b"],
    ),
}


@pytest.mark.parametrize(("old", "new", "backward", "forward"), CASES.values(), ids=CASES.keys())
def test_every_rule_in_both_directions(old: Json, new: Json, backward: list[str], forward: list[str]) -> None:
    assert places(old, new) == backward
    assert places(new, old) == forward


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (record(), record(field("a")), "has no default in the new version, and version 1 does not write it"),
        ("string", "int", "is int in the new version, but string in version 1"),
        (enum("A", "B"), enum("A"), "lack B in the new version, which version 1 has, and there is no default for them"),
        (record(), record(name="X"), "is called X in the new version, but Order in version 1, and has no alias for it"),
        (["null", "int"], ["int"], "has no type in the new version that reads null, which version 1 writes"),
        (fixed(1), fixed(2), "is 2 in the new version, but 1 in version 1"),
    ],
)
def test_a_problem_is_a_sentence(old: Json, new: Json, says: str) -> None:
    assert [problem.what for problem in problems(old, new)] == [says]


def test_braces_in_names_are_kept() -> None:
    (problem,) = problems(record(field("{x}")), record(field("{reader}", "string", aliases=["{x}"])))
    assert problem == Problem("#/fields/{reader}", "is string in the new version, but int in version 1")


def test_named_types_of_other_schemas_are_known() -> None:
    def document(city: str) -> Document:
        address = record(field("city", city), name="Address", namespace="shop")
        return Document(record(field("to", "Address"), namespace="shop"), resources={"Address": address})

    assert avro_problems(document("bytes"), document("string"), "R", "W") == ()
    (problem,) = avro_problems(document("int"), document("string"), "R", "W")
    assert problem.place == "#/fields/to/fields/city"


def test_a_recursive_assumption_that_fails_is_not_reused() -> None:
    def order(space: str, value: str) -> Json:
        inner = record(field("a", {"type": "array", "items": f"{space}.A"}), name=f"{space}.B")
        return record(field("b", inner), field("v", value), name=f"{space}.A")

    old = record(field("x", order("w", "int")), field("y", "w.B"))
    new = record(field("x", [order("p", "string"), record(name="q.A")]), field("y", "p.B"))
    # x is read by q.A, but y contains the A whose v cannot be read.
    assert places(old, new) == ["#/fields/x/0/fields/v"]
    assert places(record(*old["fields"][:1]), record(*new["fields"][:1])) == []


@pytest.mark.parametrize(
    "broken",
    [
        5,
        None,
        "Unknown",
        {},
        {"type": "record", "name": "R"},
        {"type": "record", "fields": []},
        record({"name": "a"}),
        record(5),
        record(field("a"), field("a", "string")),
        {"type": "enum", "name": "E"},
        {"type": "fixed", "name": "F", "size": "4"},
        {"type": "array"},
        {"type": {"type": {"type": 5}}},
    ],
    ids=repr,
)
def test_an_invalid_schema_is_a_problem(broken: Json) -> None:
    assert len(problems(broken, broken)) == 1
    assert len(problems(record(field("a", broken)), record(field("a", "int")))) == 1


def chain(levels: int, leaf: str) -> Json:
    """Every record uses the next one twice, in unions: a naive comparison takes exponential time."""
    names = [f"R{level}" for level in range(levels)]
    schema: Json = record(field("v", leaf), name="Leaf")
    for name in names:
        inner = schema["name"]
        schema = record(field("a", ["null", schema]), field("b", ["null", inner]), field("c", inner), name=name)
    return schema


def deep(levels: int, leaf: str) -> Json:
    schema: Json = leaf
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (chain(25, "int"), chain(25, "string")),
        (deep(5000, "int"), deep(5000, "string")),
        ({"type": "map", "values": deep(300, "int")}, {"type": "map", "values": deep(300, "int")}),
        ([f"R{i}" for i in range(500)], "int"),
    ],
    ids=["doubling", "deep", "deep and the same", "unknown names"],
)
def test_the_work_is_bounded_for_every_schema(old: Json, new: Json) -> None:
    started = time.monotonic()
    assert problems(old, new)
    assert time.monotonic() - started < 30


def test_a_large_union_of_records_is_compared_completely() -> None:
    def large(of: str) -> Json:
        return [record(*(field(f"f{j}", of) for j in range(20)), name=f"R{i}") for i in range(100)]

    assert problems(large("int"), large("long")) == ()
    assert len(problems(large("long"), large("int"))) == 2000


# Compatible data can be read by another implementation.

SIMPLE = st.sampled_from(PRIMITIVES)


@st.composite
def types(draw: st.DrawFn, names: Callable[[], int], depth: int = 2) -> Json:
    kind = draw(st.sampled_from(["simple", "record", "array", "map", "union", "enum", "fixed", "decimal", "linked"]))
    if kind == "simple" or depth == 0:
        return draw(SIMPLE)
    inner = types(names, depth - 1)
    if kind == "record":
        fields = draw(st.lists(inner, max_size=3))
        return record(*(field(f"f{at}", each) for at, each in enumerate(fields)), name=f"R{names()}")
    if kind == "array":
        return {"type": "array", "items": draw(inner)}
    if kind == "map":
        return {"type": "map", "values": draw(inner)}
    if kind == "union":
        return ["null", draw(inner.filter(lambda each: each != "null" and not isinstance(each, list)))]
    if kind == "enum":
        return enum(*draw(st.lists(st.sampled_from("ABCD"), min_size=1, unique=True)), name=f"E{names()}")
    if kind == "fixed":
        return fixed(draw(st.integers(1, 3)), name=f"F{names()}")
    return decimal(6, 2) if kind == "decimal" else linked(draw(SIMPLE), name=f"L{names()}")


def nodes(schema: Json) -> list[Any]:
    """Returns all types and fields."""
    inside = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return ([schema] if isinstance(schema, dict) else []) + [each for part in inside for each in nodes(part)]


def changed(draw: st.DrawFn, node: Json) -> None:
    """Makes one realistic change, compatible or not."""
    if "fields" in node:
        change = draw(st.sampled_from(["add", "add with default", "remove", "turn round", "rename", "alias"]))
        if change.startswith("add"):
            node["fields"].append(
                field(f"new{len(node['fields'])}", "int", **({"default": 7} if "default" in change else {}))
            )
        elif change == "remove":
            del node["fields"][-1:]
        elif change == "turn round":
            node["fields"].reverse()
        elif change == "alias" and "value" not in str(node):
            node |= {"name": f"{node['name']}b", "aliases": [node["name"]]}
        elif node["fields"]:
            first = node["fields"][0]
            first |= {"name": "renamed", "aliases": [first["name"]]}
    elif "symbols" in node:
        symbols = draw(st.lists(st.sampled_from("ABCD"), min_size=1, unique=True))
        node.pop("default", None)
        node |= {"symbols": symbols} | draw(st.sampled_from([{}, {"default": symbols[0]}]))
    elif "size" in node:
        node["size"] = draw(st.integers(1, 3))
    elif "scale" in node:
        node["scale"] = draw(st.integers(1, 3))
    else:
        inside = next(key for key in ("items", "values", "type") if key in node)
        if isinstance(node[inside], str) and node[inside] in PRIMITIVES and "default" not in node:
            node[inside] = draw(
                SIMPLE | st.sampled_from([["null", node[inside]]] if node[inside] != "null" else SIMPLES)
            )


SIMPLES: list[Json] = ["int", ["null", "string"]]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Json, Json]:
    number = count().__next__
    fields = draw(st.lists(types(number), min_size=1, max_size=4))
    one = record(*(field(f"top{at}", each) for at, each in enumerate(fields)))
    other = copy.deepcopy(one)
    for _ in range(draw(st.integers(1, 3))):
        changed(draw, draw(st.sampled_from(nodes(other))))
    return (one, other) if draw(st.booleans()) else (other, one)


def values(schema: Json, named: dict[str, Json], depth: int = 3) -> st.SearchStrategy[Any]:
    if isinstance(schema, str) and schema in named:
        return values(named[schema], named, depth)
    if isinstance(schema, list):
        return st.none() if depth <= 0 else st.one_of([values(each, named, depth - 1) for each in schema])
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        fields = {each["name"]: values(each["type"], named, depth) for each in schema["fields"]}
        return st.fixed_dictionaries(fields)
    if kind == "array":
        return st.lists(values(schema["items"], named, depth - 1), max_size=2)
    if kind == "map":
        return st.dictionaries(st.text("xy", max_size=2), values(schema["values"], named, depth - 1), max_size=2)
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    if isinstance(schema, dict) and "scale" in schema:
        return st.decimals(-9, 9, places=schema["scale"])
    plain: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        # Only bytes that are valid UTF-8 can be promoted to text.
        "bytes": st.text(max_size=5).map(str.encode),
        "string": st.text(max_size=5),
    }
    return plain[kind]


def read(value: Any, writer: Json, reader: Json) -> Any:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(copy.deepcopy(writer)), value)
    stream.seek(0)
    return fastavro.schemaless_reader(
        stream, fastavro.parse_schema(copy.deepcopy(writer)), fastavro.parse_schema(copy.deepcopy(reader))
    )


def test_many_random_pairs_are_compatible() -> None:
    compatible = refused = 0

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(pairs())
    def tally(pair: tuple[Json, Json]) -> None:
        nonlocal compatible, refused
        found = problems(*pair)
        compatible += not found and pair[0] != pair[1]
        refused += bool(found)

    tally()
    assert compatible > 50
    assert refused > 50


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_compatible_schema_can_read_the_data(data: st.DataObject) -> None:
    writer, reader = data.draw(pairs())
    if problems(writer, reader):
        return
    named = {node["name"]: node for node in nodes(writer) if "name" in node and "type" in node}
    value = data.draw(values(writer, {name: node for name, node in named.items() if node["type"] in ("record",)}))
    result = read(value, writer, reader)
    assert isinstance(result, dict)
    assert result.keys() == {each["name"] for each in reader["fields"]}
