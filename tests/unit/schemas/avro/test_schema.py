"""Avro schema documents: types from other files, defaults, and schemas that cannot be used."""

from __future__ import annotations

from typing import Any

import fastavro
import pytest

from helpers.avro import (
    FILE,
    FIXED,
    compile_schema,
    decimal,
    enum,
    field,
    logical,
    read,
    record,
)
from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import Reference, RegistryIds


def test_types_of_other_files_are_found_by_name() -> None:
    address = {**record(field("city", "City"), name="Address"), "namespace": "shop"}
    city = {**record(field("name", "string"), name="City"), "namespace": "shop"}
    document = {
        **record(field("to", "Address"), field("from", "shop.Address"), field("at", "City")),
        "namespace": "shop",
    }
    references = (Reference("shop.Address", "Address", Version(1)),)
    schema = CompiledAvroSchema.compile(
        "T",
        Version(3),
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
    assert (schema.version, schema.references, schema.registered) == (Version(3), references, RegistryIds(7, "g"))


def test_a_type_of_another_file_may_contain_a_type_that_is_also_given() -> None:
    city = {**record(field("name", "string"), name="City"), "namespace": "shop"}
    address = {**record(field("city", city), name="Address"), "namespace": "shop"}
    document = record(field("at", "shop.City"), field("to", "shop.Address"))
    schema = compile_schema(document, shop_Address=address, shop_City=city)
    value = {"at": {"name": "a"}, "to": {"city": {"name": "b"}}}
    assert schema.encode(value) == b"\x02a\x02b"


def test_a_type_without_namespace_may_be_inside_one_with_a_namespace() -> None:
    bare = {**record(field("x", "int"), name="Bare"), "namespace": ""}
    document = {**record(field("a", bare), field("b", ["null", bare["name"]]), name="R"), "namespace": "shop"}
    # Inside shop.R the plain name means shop.Bare, which does not exist.
    with pytest.raises(SchemaError, match="Bare"):
        compile_schema(document)
    document["fields"] = [field("a", ["null", bare])]
    assert compile_schema(document).encode({"a": {"x": 1}}) == b"\x02\x02"


def test_a_type_may_be_wrapped_in_another_type_object() -> None:
    # fastavro's own parser cannot read this.
    assert compile_schema({"type": {"type": "string"}}).encode("x") == b"\x02x"


def test_a_document_may_be_only_the_name_of_another() -> None:
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


def test_an_error_in_a_type_of_another_file_names_that_type() -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema(record(field("a", "shop.E")), shop_E={**enum(), "namespace": "shop"})
    assert "shop.E" in caught.value.what


def test_a_too_long_chain_of_types_is_refused() -> None:
    named = {f"T{n}": record(field("next", f"T{n + 1}"), name=f"T{n}") for n in range(2000)}
    with pytest.raises(SchemaError, match="shorter"):
        CompiledAvroSchema.compile("T", Version(1), "T0", FILE, named=named)


def test_a_too_deeply_nested_schema_is_refused() -> None:
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
