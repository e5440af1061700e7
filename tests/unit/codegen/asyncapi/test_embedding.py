"""Schemas embedded in another document: the same values are valid, and nothing outside is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema

from helpers.fetched import suite_groups
from tailrace.codegen.asyncapi.embedding import embedded, key_of, needed_by
from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.folder import load_folder
from tailrace.schemas.json_schema import DRAFTS, CompiledJsonSchema

PLACE = "#/components/schemas/{}/schema"
FOLDERS = dict(zip(DRAFTS, ["draft2020-12", "draft2019-09", "draft7", "draft6", "draft4"], strict=True))


def document_of(compiled: CompiledSchema, registered: list[CompiledSchema]) -> dict[str, Any]:
    """Returns a self-contained document with the schema and its references, which must accept the same values."""
    by_key = {key_of(each): each for each in registered}
    needed = needed_by([compiled], by_key)
    names = {key_of(each): f"{each.subject}.v{each.version}" for each in needed}
    places = {key: PLACE.format(name) for key, name in names.items()}
    schemas = {names[key_of(each)]: {"schema": embedded(each, by_key, places)} for each in needed}
    draft = compiled.document.get("$schema", DRAFTS[0]) if isinstance(compiled.document, dict) else DRAFTS[0]
    here = {"$ref": places[key_of(compiled)]}
    return {"$schema": draft, "allOf": [here], "components": {"schemas": schemas}}


def folder_of(folder: Path, files: dict[str, str]) -> dict[str, CompiledSchema]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {compiled.subject: compiled for compiled in load_folder(folder)}


@pytest.mark.timeout(900)  # The first run fetches the suite.
@pytest.mark.parametrize("draft", DRAFTS)
def test_embedding_does_not_change_the_results_of_the_official_suite(draft: str) -> None:
    compared = 0
    for group in suite_groups(FOLDERS[draft]):
        schema = {"$schema": draft, **group["schema"]} if isinstance(group["schema"], dict) else group["schema"]
        if "$dynamicRef" in str(schema) or "$recursiveRef" in str(schema):
            continue
        try:
            alone = CompiledJsonSchema.compile("T", Version(1), schema, "schemas/T/1.json")
        except SchemaError:
            continue  # It refers to an unregistered document; test_official_suite counts these.
        inside = CompiledJsonSchema.compile("T", Version(1), document_of(alone, [alone]), "asyncapi.json")
        for case in group["tests"]:
            assert inside.is_valid(case["data"]) == alone.is_valid(case["data"]), (schema, case)
            compared += 1
    assert compared > 590


def test_references_between_files_point_into_the_document(tmp_path: Path) -> None:
    compiled_schemas = folder_of(
        tmp_path,
        {
            "Order/1.json": '{"properties": {"to": {"$ref": "../Address/1.json#/$defs/street"},'
            ' "all": {"items": {"$ref": "../Address/1.json"}}, "own": {"$ref": "#/properties/to"},'
            ' "again": {"$ref": "1.json#/properties/to"}, "who": {"$ref": "https://example.org/person#/$defs/name"},'
            ' "zip": {"$ref": "../Address/1.json#code"}}}',
            "Address/1.json": '{"type": "object", "$defs": {"street": {"$ref": "../Text/1.json"},'
            ' "a/b": {"$anchor": "code", "pattern": "^[0-9]+$"}}}',
            "Text/1.json": '{"type": "string"}',
            "Person/1.json": '{"$id": "https://example.org/person", "$defs": {"name": {"minLength": 2}}}',
            "Unused/1.json": "{}",
        },
    )
    order = compiled_schemas["Order"]
    document = document_of(order, list(compiled_schemas.values()))
    schemas = document["components"]["schemas"]
    assert set(schemas) == {"Order.v1", "Address.v1", "Text.v1", "Person.v1"}
    assert "$id" not in schemas["Person.v1"]["schema"]
    properties = schemas["Order.v1"]["schema"]["properties"]
    assert properties["to"] == {"$ref": "#/components/schemas/Address.v1/schema/$defs/street"}
    assert properties["who"] == {"$ref": "#/components/schemas/Person.v1/schema/$defs/name"}
    assert properties["zip"] == {"$ref": "#/components/schemas/Address.v1/schema/$defs/a~1b"}
    inside = CompiledJsonSchema.compile("Whole", Version(1), document, "asyncapi.json")
    good: list[Any] = [{"to": "x"}, {"all": [{}]}, {"own": "x"}, {"again": "x"}, {"who": "xy"}, {"zip": "12"}]
    bad: list[Any] = [{"to": 1}, {"all": [1]}, {"own": 1}, {"again": 1}, {"who": "x"}, {"zip": "x"}]
    assert all(order.is_valid(value) and inside.is_valid(value) for value in good)
    assert not any(order.is_valid(value) or inside.is_valid(value) for value in bad)


def test_data_that_looks_like_a_reference_is_not_changed() -> None:
    written = {"const": {"$ref": "#/a", "$id": "b"}, "properties": {"$ref": {"enum": [{"$ref": "#"}]}, "$id": True}}
    compiled = CompiledJsonSchema.compile("T", Version(1), written, "T/1.json")
    assert embedded(compiled, {}, {("T", Version(1)): "#/x"}) == written


def test_schemas_that_refer_to_each_other_are_embedded_once(tmp_path: Path) -> None:
    compiled_schemas = folder_of(
        tmp_path,
        {
            "A/1.json": '{"properties": {"b": {"$ref": "../B/1.json"}}}',
            "B/1.json": '{"properties": {"a": {"$ref": "../A/1.json"}}, "type": "object"}',
        },
    )
    document = document_of(compiled_schemas["A"], list(compiled_schemas.values()))
    alone = CompiledJsonSchema.compile("Whole", Version(1), document, "asyncapi.json")
    assert alone.is_valid({"b": {"a": {"b": {}}}})
    assert not alone.is_valid({"b": {"a": {"b": 1}}})


def test_avro_types_of_other_files_are_defined_at_their_first_use(tmp_path: Path) -> None:
    compiled_schemas = folder_of(
        tmp_path,
        {
            "Order/1.avsc": '{"type": "record", "name": "shop.Order", "fields": [{"name": "from", "type": "Address"},'
            '{"name": "to", "type": ["null", {"type": "array", "items": "shop.Address"}]},'
            '{"name": "paid", "type": {"type": {"type": "map", "values": "base.Money"}}},'
            '{"name": "cur", "type": "base.Cur"}]}',
            "Address/1.avsc": '{"type": "record", "name": "Address", "namespace": "shop", "fields": ['
            '{"name": "street", "type": "string"}, {"name": "fee", "type": "base.Money"}]}',
            "Money/1.avsc": '{"type": "record", "name": "Money", "namespace": "base", "fields": ['
            '{"name": "cur", "type": {"type": "enum", "name": "Cur", "symbols": ["EUR"]}},'
            '{"name": "more", "type": ["null", "Money"]}]}',
        },
    )
    order = compiled_schemas["Order"]
    whole = embedded(order, {key_of(each): each for each in compiled_schemas.values()}, {})
    parsed: Any = parse_schema(whole, named_schemas={})  # raises if a type is missing, or is defined twice
    assert parsed["name"] == "shop.Order"
    assert (whole["namespace"], whole["name"]) == ("shop", "Order")
    first, second, third, last = whole["fields"]
    assert first["type"]["fields"][1]["type"]["name"] == "Money"
    assert second["type"][1]["items"] == "shop.Address"
    assert third["type"]["values"] == "base.Money"
    assert last["type"] == "base.Cur"
