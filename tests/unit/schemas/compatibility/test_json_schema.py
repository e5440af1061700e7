"""Compatibility of JSON Schemas: every keyword in both directions, references, sentences and bounded work."""

from __future__ import annotations

import copy
import time
from typing import Any

import jsonschema_rs
import pytest

from tailrace.schemas.compatibility.document import Document, Problem
from tailrace.schemas.compatibility.json_schema import json_problems
from tailrace.schemas.json_schema import DRAFTS

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"

TEXT, WHOLE, NUMBER, NULL = ({"type": kind} for kind in ("string", "integer", "number", "null"))


def thing(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {**thing(*required, **properties), "additionalProperties": False}


def problems(writer: Any, reader: Any, *, strict: bool = False) -> tuple[Problem, ...]:
    return json_problems(Document(reader), Document(writer), "the new version", "version 1", strict=strict)


def places(writer: Any, reader: Any, *, strict: bool = False) -> list[str]:
    return sorted({problem.place for problem in problems(writer, reader, strict=strict)})


def kinds(*names: str) -> list[Any]:
    return [thing("kind", kind={"const": name}, **{name: TEXT}) for name in names]


def tree(value: Any) -> dict[str, Any]:
    node = thing(value=value, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


# An old and a new schema; the places where the new one rejects what the old one allows, and vice versa.
CASES: dict[str, tuple[Any, Any, list[str], list[str]]] = {
    "type widened": (WHOLE, NUMBER, [], ["#/type"]),
    "type added": (TEXT, {"type": ["string", "null"]}, [], ["#/type"]),
    "type changed": (TEXT, WHOLE, ["#/type"], ["#/type"]),
    "type dropped": (TEXT, {}, [], ["#/type"]),
    "true and false": (True, False, ["#"], []),
    "whole multiples are integers": ({"type": "number", "multipleOf": 2}, WHOLE, [], ["#/multipleOf"]),
    "enum value added": ({"enum": ["a"]}, {"enum": ["a", "b"]}, [], ["#/enum"]),
    "enum to const": ({"enum": ["a", "b"]}, {"const": "a"}, ["#/const"], []),
    "enum to type": ({"enum": ["a", "b"]}, TEXT, [], ["#/enum"]),
    "enum values with a length": ({"enum": ["a", "bc"]}, {**TEXT, "maxLength": 1}, ["#/maxLength"], ["#/enum"]),
    "true is not 1": ({"enum": [1]}, {"enum": [True]}, ["#/enum"], ["#/enum"]),
    "1 is 1.0": ({"enum": [1]}, {"enum": [1.0]}, [], []),
    "both booleans": ({"type": "boolean"}, {"enum": [True, False]}, [], []),
    "an object listed": ({"const": {"a": 1}}, thing("a", a=WHOLE), [], ["#/const"]),
    "an object listed that does not fit": ({"const": {"a": 1}}, thing(a=TEXT), ["#/properties/a/type"], ["#/const"]),
    "an array listed": ({"const": [1, 2]}, {"items": WHOLE, "uniqueItems": True}, [], ["#/const"]),
    "minimum raised": ({**WHOLE, "minimum": 1}, {**WHOLE, "minimum": 2}, ["#/minimum"], []),
    "maximum added": (NUMBER, {**NUMBER, "maximum": 2}, ["#/maximum"], []),
    "exclusive, of integers": ({**WHOLE, "exclusiveMinimum": 0}, {**WHOLE, "minimum": 1}, [], []),
    "exclusive, of numbers": (
        {**NUMBER, "exclusiveMinimum": 0},
        {**NUMBER, "minimum": 1},
        ["#/minimum"],
        [],
    ),
    "exclusive maximum": ({**NUMBER, "maximum": 1}, {**NUMBER, "exclusiveMaximum": 1}, ["#/exclusiveMaximum"], []),
    "draft 4 exclusive": (
        {"$schema": DRAFT_4, **NUMBER, "minimum": 0, "exclusiveMinimum": True},
        {**NUMBER, "exclusiveMinimum": 0},
        [],
        [],
    ),
    "draft 4 knows no const": ({"$schema": DRAFT_4, "const": 1}, {"const": 1}, ["#/const"], []),
    "multipleOf": ({**WHOLE, "multipleOf": 4}, {**WHOLE, "multipleOf": 2}, [], ["#/multipleOf"]),
    "decimal multipleOf": ({**NUMBER, "multipleOf": 0.3}, {**NUMBER, "multipleOf": 0.1}, [], ["#/multipleOf"]),
    "minLength": ({**TEXT, "minLength": 1}, {**TEXT, "minLength": 2}, ["#/minLength"], []),
    "maxLength": ({**TEXT, "maxLength": 5}, TEXT, [], ["#/maxLength"]),
    "pattern changed": ({**TEXT, "pattern": "^a"}, {**TEXT, "pattern": "^b"}, ["#/pattern"], ["#/pattern"]),
    "format added": (TEXT, {**TEXT, "format": "uuid"}, ["#/format"], []),
    "property widened": (thing(a=WHOLE), thing(a=NUMBER), [], ["#/properties/a/type"]),
    "optional property added": (thing(a=TEXT), thing(a=TEXT, b=WHOLE), [], []),
    "required property added": (thing(a=TEXT), thing("b", a=TEXT, b=WHOLE), ["#/properties/b"], []),
    "required without a schema": (thing(), {"required": ["b"]}, ["#/required"], ["#/type"]),
    "added to a closed object": (closed(a=TEXT), closed(a=TEXT, b=WHOLE), [], ["#/additionalProperties"]),
    "closed": (thing(a=TEXT), closed(a=TEXT), ["#/additionalProperties"], []),
    "named of a map": (
        {"additionalProperties": TEXT},
        {"properties": {"a": WHOLE}, "additionalProperties": TEXT},
        ["#/additionalProperties/type", "#/properties/a/type"],
        ["#/additionalProperties/type"],
    ),
    "map values": (
        {"additionalProperties": WHOLE},
        {"additionalProperties": NUMBER},
        [],
        ["#/additionalProperties/type"],
    ),
    "pattern properties widened": (
        {"patternProperties": {"^x": WHOLE}, "additionalProperties": False},
        {"patternProperties": {"^x": NUMBER}, "additionalProperties": False},
        [],
        ["#/patternProperties/^x/type"],
    ),
    "a name that matches a pattern": (
        closed(xa=TEXT),
        {"patternProperties": {"^x": WHOLE}},
        ["#/patternProperties/^x/type"],
        ["#/additionalProperties", "#/properties/xa/type", "#/type"],
    ),
    "property names": (
        {"propertyNames": {"maxLength": 3}},
        {"propertyNames": {"maxLength": 2}},
        ["#/propertyNames/maxLength"],
        [],
    ),
    "property names of a closed object": (
        closed(ab=TEXT, abc=TEXT),
        {"propertyNames": {"maxLength": 2}},
        ["#/propertyNames/maxLength"],
        ["#/additionalProperties", "#/properties/ab/type", "#/type"],
    ),
    "minProperties": (thing("a"), {**thing("a"), "minProperties": 1}, [], []),
    "maxProperties": (closed(a=TEXT, b=TEXT), {**closed(a=TEXT, b=TEXT), "maxProperties": 1}, ["#/maxProperties"], []),
    "dependentRequired": (
        thing(a=TEXT, b=TEXT),
        {**thing(a=TEXT, b=TEXT), "dependentRequired": {"a": ["b"]}},
        ["#/dependentRequired/a"],
        [],
    ),
    "dependencies are dependentRequired": (
        {"$schema": DRAFT_7, **thing(a=TEXT, b=TEXT), "dependencies": {"a": ["b"]}},
        {**thing(a=TEXT, b=TEXT), "dependentRequired": {"a": ["b"]}},
        [],
        [],
    ),
    "dependentSchemas": (
        {**thing(a=TEXT, b={}), "dependentSchemas": {"a": {"properties": {"b": WHOLE}}}},
        {**thing(a=TEXT, b={}), "dependentSchemas": {"a": {"properties": {"b": NUMBER}}}},
        [],
        ["#/dependentSchemas/a/properties/b/type"],
    ),
    "items": ({"items": WHOLE}, {"items": NUMBER}, [], ["#/items/type"]),
    "tuples of two drafts": (
        {"$schema": DRAFT_7, "items": [WHOLE, TEXT], "additionalItems": False},
        {"prefixItems": [NUMBER, TEXT], "items": False},
        [],
        ["#/items/0/type"],
    ),
    "prefix against items": (
        {"prefixItems": [WHOLE], "items": TEXT},
        {"items": TEXT},
        ["#/items/type"],
        ["#/items", "#/prefixItems/0/type"],
    ),
    "additionalItems": (
        {"$schema": DRAFT_7, "items": [TEXT]},
        {"$schema": DRAFT_7, "items": [TEXT], "additionalItems": False},
        ["#/additionalItems"],
        [],
    ),
    "minItems": ({"minItems": 1}, {"minItems": 2}, ["#/minItems"], []),
    "maxItems": ({"maxItems": 1}, {}, [], ["#/maxItems"]),
    "uniqueItems": ({"uniqueItems": True}, {}, [], ["#/uniqueItems"]),
    "uniqueItems of one": ({"maxItems": 1}, {"maxItems": 1, "uniqueItems": True}, [], []),
    "contains": ({"contains": WHOLE}, {"contains": NUMBER}, [], ["#/contains"]),
    "contains of all items": ({"items": WHOLE, "minItems": 1}, {"contains": NUMBER}, [], ["#/items/type"]),
    "maxContains": (
        {"contains": TEXT, "maxContains": 2},
        {"contains": TEXT, "maxContains": 3},
        [],
        ["#/maxContains"],
    ),
    "allOf joined": ({"allOf": [thing(a=TEXT), thing("b")]}, thing("b", a=TEXT), [], []),
    "anyOf widened": ({"anyOf": [TEXT, NULL]}, {"anyOf": [TEXT, NULL, WHOLE]}, [], ["#/anyOf"]),
    "anyOf of types": ({"type": ["string", "null"]}, {"anyOf": [NULL, TEXT]}, [], []),
    "inside the one alternative": (
        {"anyOf": [NULL, thing(a=WHOLE)]},
        {"anyOf": [NULL, thing(a=NUMBER)]},
        [],
        ["#/anyOf/1/properties/a/type"],
    ),
    "oneOf with a new kind": ({"oneOf": kinds("a", "b")}, {"oneOf": kinds("a", "b", "c")}, [], ["#/oneOf"]),
    "oneOf that overlaps": ({"oneOf": [WHOLE, TEXT]}, {"oneOf": [WHOLE, TEXT, NUMBER]}, ["#/oneOf"], ["#/oneOf"]),
    "oneOf distinguished by range": (
        {**WHOLE, "maximum": 1},
        {"oneOf": [{**WHOLE, "maximum": 1}, {**WHOLE, "minimum": 2}]},
        [],
        ["#/maximum"],
    ),
    "not changed": ({"not": TEXT}, {"not": WHOLE}, ["#/not"], ["#/not"]),
    "not described": ({"not": thing("a")}, {"not": {**thing("a"), "title": "no a"}}, [], []),
    "not narrowed": ({"not": {"minimum": 3}}, {"not": {"minimum": 4}}, [], ["#/not"]),
    "not required": ({"not": {"required": ["a"]}}, {"properties": {"a": False}}, [], ["#/not"]),
    "if with then widened": (
        {"if": thing("a"), "then": {"maxProperties": 1}},
        {"if": thing("a"), "then": {"maxProperties": 2}},
        [],
        ["#/then/maxProperties"],
    ),
    "else changed": ({"if": TEXT, "else": WHOLE}, {"if": TEXT, "else": NUMBER}, [], ["#/else/type"]),
    "recursive, widened": (tree(WHOLE), tree(NUMBER), ["#"], ["#/$defs/node/properties/value/type"]),
    "recursive, changed": (
        tree(WHOLE),
        tree(TEXT),
        ["#/$defs/node/properties/value/type"],
        ["#/$defs/node/properties/value/type"],
    ),
    "unevaluatedProperties": (
        {"allOf": [thing(a=TEXT)], "unevaluatedProperties": False},
        {"allOf": [thing(a=TEXT, b=TEXT)], "unevaluatedProperties": False},
        [],
        ["#/unevaluatedProperties"],
    ),
    "unevaluatedItems": (
        {"prefixItems": [TEXT]},
        {"prefixItems": [TEXT], "unevaluatedItems": False},
        ["#/unevaluatedItems"],
        [],
    ),
    "keywords next to $ref, up to draft 7": (
        {"$schema": DRAFT_7, "$ref": "#/definitions/a", "definitions": {"a": TEXT}},
        {"$schema": DRAFT_7, "$ref": "#/definitions/a", "definitions": {"a": TEXT}, "maxLength": 3},
        [],
        [],
    ),
    "keywords next to $ref, since 2019-09": (
        {"$ref": "#/$defs/a", "$defs": {"a": TEXT}},
        {"$ref": "#/$defs/a", "$defs": {"a": TEXT}, "maxLength": 3},
        ["#/maxLength"],
        [],
    ),
    "the same words with another target": (
        {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": WHOLE}},
        {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": NUMBER}},
        [],
        ["#/$defs/a/type"],
    ),
    "anchors": (
        {"properties": {"x": {"$ref": "#money"}}, "$defs": {"a": {"$anchor": "money", **WHOLE}}},
        {"properties": {"x": NUMBER}},
        [],
        ["#/$defs/a/type"],
    ),
    "anchors of draft 7": (
        {"$schema": DRAFT_7, "properties": {"x": {"$ref": "#m"}}, "definitions": {"a": {"$id": "#m", **WHOLE}}},
        {"$schema": DRAFT_7, "properties": {"x": NUMBER}},
        [],
        ["#/definitions/a/type"],
    ),
    "names that need escaping": (
        thing(**{"a/b~": TEXT}),
        thing(**{"a/b~": WHOLE}),
        *[["#/properties/a~1b~0/type"]] * 2,
    ),
}


@pytest.mark.parametrize(("old", "new", "backward", "forward"), CASES.values(), ids=CASES.keys())
def test_every_keyword_in_both_directions(old: Any, new: Any, backward: list[str], forward: list[str]) -> None:
    assert places(old, new) == backward
    assert places(new, old) == forward


@pytest.mark.parametrize(("old", "new"), [case[:2] for case in CASES.values()], ids=CASES.keys())
def test_equivalent_schemas_are_compatible(old: Any, new: Any) -> None:
    for schema in (old, new):
        assert problems(schema, copy.deepcopy(schema), strict=True) == ()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (thing(a=TEXT), thing("b", a=TEXT, b=TEXT), "is required in the new version, but not in version 1"),
        (thing(a=TEXT), closed(a=TEXT), "forbids further properties in the new version, but version 1 allows them"),
        (closed(a=TEXT), closed(), "forbids 'a' in the new version, but version 1 allows it"),
        ({"type": ["string", "null"]}, TEXT, "does not accept null in the new version, but version 1 does"),
        ({}, TEXT, "accepts only string in the new version, but version 1 allows anything here"),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, 'does not allow "b" in the new version, but version 1 does'),
        ({"minimum": 1}, {"minimum": 5}, "is 5 in the new version, but version 1 allows smaller numbers"),
        ({"maxLength": 5}, {"maxLength": 4}, "is 4 in the new version, but version 1 allows longer texts"),
        (TEXT, {"pattern": "^a"}, "cannot be shown"),
    ],
)
def test_a_problem_is_a_sentence(old: Any, new: Any, says: str) -> None:
    assert any(says in problem.what for problem in problems(old, new))


@pytest.mark.parametrize("draft", DRAFTS)
def test_an_optional_property_may_be_added_in_every_draft(draft: str) -> None:
    old = {"$schema": draft, "type": "object", "properties": {"a": TEXT}}
    assert problems(old, {**old, "properties": {"a": TEXT, "b": WHOLE}}) == ()


def test_in_strict_mode_an_undeclared_property_may_have_any_type() -> None:
    old, new = thing(a=TEXT), thing(a=TEXT, b=WHOLE)
    assert places(old, new) == []
    assert places(old, new, strict=True) == ["#/properties/b/type"]
    assert places(closed(a=TEXT), new, strict=True) == []


@pytest.mark.parametrize(
    "old",
    [
        {"anyOf": [thing(b=TEXT), thing(c=TEXT)]},
        {"items": {}, "anyOf": [{"properties": {"b": TEXT}}]},
        {"dependentSchemas": {"a": {"properties": {"b": TEXT}}}},
        {"if": thing("a"), "then": thing(b=TEXT)},
        {"enum": [{"b": "text"}]},
        {"patternProperties": {"^b": TEXT}},
        {"required": ["b"]},
    ],
)
def test_a_name_that_the_writer_mentions_anywhere_is_not_new(old: Any) -> None:
    assert "#/properties/b/type" in places(old, {"properties": {"b": WHOLE}})


def test_dependencies_apply_to_objects_only() -> None:
    old = {"required": ["b"], "dependentSchemas": {"b": {"type": "object"}}}
    assert places(old, {"type": "object"}) == ["#/type"]


def test_a_property_may_match_another_pattern() -> None:
    old = {
        "allOf": [{"patternProperties": {"^x": {}}}, {"patternProperties": {"x$": TEXT}, "additionalProperties": WHOLE}]
    }
    assert places(old, {"patternProperties": {"^x": WHOLE}}, strict=True) == ["#/patternProperties/^x/type"]


def test_a_recursive_assumption_that_fails_is_not_reused() -> None:
    def schema(value: Any, x: Any) -> dict[str, Any]:
        defs = {"A": thing(b={"$ref": "#/$defs/B"}, v=value), "B": thing(a={"$ref": "#/$defs/A"})}
        return {**thing(x=x, y={"$ref": "#/$defs/B"}), "$defs": defs}

    to_a = {"$ref": "#/$defs/A"}
    # x matches the second alternative, but y contains the A with an incompatible v.
    assert places(schema(TEXT, to_a), schema(WHOLE, {"anyOf": [to_a, {}]})) == ["#/$defs/A/properties/v/type"]


class TestOtherDocuments:
    ADDRESS = thing("city", city=TEXT)

    def document(self, address: Any, reference: str = "../Address/1.json", **more: Any) -> Document:
        schema = {**thing(to={"$ref": reference}), **more}
        return Document(schema, "OrderPlaced/2.json", {"Address/1.json": address, "Unrelated/1.json": {"type": 7}})

    def places(self, writer: Document, reader: Document) -> list[str]:
        return [problem.place for problem in json_problems(reader, writer, "R", "W")]

    def test_a_relative_reference_is_resolved(self) -> None:
        wider = thing("city", city={"type": ["string", "null"]})
        assert self.places(self.document(self.ADDRESS), self.document(wider)) == []
        assert self.places(self.document(wider), self.document(self.ADDRESS)) == [
            "Address/1.json#/properties/city/type"
        ]

    def test_a_reference_may_point_into_another_document(self) -> None:
        reference = "../Address/1.json#/properties/city"
        number = thing(city=WHOLE)
        there = self.places(self.document(self.ADDRESS, reference), self.document(number, reference))
        assert there == ["Address/1.json#/properties/city/type"]

    @pytest.mark.parametrize("base", ["https://schemas.invalid/OrderPlaced/1.json", "schema:///OrderPlaced/1.json"])
    def test_references_may_be_absolute(self, base: str) -> None:
        address = base.replace("OrderPlaced", "Address")
        old, new = (Document(thing(to={"$ref": "../Address/1.json"}), base, {address: each}) for each in (TEXT, WHOLE))
        assert self.places(old, new) == [f"{address}#/type"]

    def test_references_are_relative_to_the_id(self) -> None:
        schema = {"$id": "https://example.org/orders/1", **thing(to={"$ref": "money"})}
        old, new = (Document(schema, "a.json", {"https://example.org/orders/money": each}) for each in (TEXT, WHOLE))
        assert self.places(old, new) == ["https://example.org/orders/money#/type"]

    def test_an_embedded_schema_is_found_by_its_id(self) -> None:
        schema = {"$id": "https://example.org/a", "$ref": "b", "$defs": {"b": {"$id": "b", **TEXT}}}
        assert places(schema, TEXT) == []
        assert places(TEXT, {**schema, "$defs": {"b": {"$id": "b", **WHOLE}}}) == ["#/$defs/b/type"]

    def test_a_missing_document_is_a_problem(self) -> None:
        (problem,) = problems(thing(a=TEXT), thing(a={"$ref": "https://example.org/x.json"}))
        assert problem.place == "#/properties/a"
        assert "https://example.org/x.json" in problem.what

    def test_dynamic_references_are_resolved(self) -> None:
        schema = {"$dynamicAnchor": "node", **thing(next={"$dynamicRef": "#node"})}
        assert problems(schema, {**schema, "title": "a list"}) == ()
        assert problems(schema, {**schema, "minProperties": 1}) != ()


def test_an_invalid_schema_is_a_problem() -> None:
    for broken in ({"properties": 5}, [], "text", {"$schema": "https://example.org/mine"}, {"$ref": "#/nowhere"}):
        assert len(problems(broken, TEXT)) == 1
        assert len(problems(TEXT, broken)) == 1


def choices(count: int, **more: Any) -> dict[str, Any]:
    return {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(count)], **more}


def deep(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = thing(a=leaf)
    return leaf


def doubling(levels: int, leaf: Any, combine: str) -> dict[str, Any]:
    defs = {"d0": leaf}
    for i in range(1, levels):
        below = {"$ref": f"#/$defs/d{i - 1}"}
        defs[f"d{i}"] = thing(a={combine: [below, {"type": "array", "items": below}]}, b=below)
    return {"$defs": defs, "$ref": f"#/$defs/d{levels - 1}"}


def maps(levels: int, leaf: Any, named: int) -> dict[str, Any]:
    defs = {"d0": leaf}
    for i in range(1, levels):
        below = {"$ref": f"#/$defs/d{i - 1}"}
        defs[f"d{i}"] = closed(**{f"p{j}": below for j in range(named)}) if named else {"additionalProperties": below}
    return {"$defs": defs, "$ref": f"#/$defs/d{levels - 1}"}


HOSTILE = {
    "messages that multiply": (maps(20, TEXT, 5), maps(20, WHOLE, 0)),
    "alternatives that multiply": (choices(24), choices(24, required=["z"])),
    "deep": (deep(5000, TEXT), deep(5000, WHOLE)),
    "as deep as may be": (deep(63, TEXT), deep(63, WHOLE)),
    "doubling anyOf": (doubling(40, TEXT, "anyOf"), doubling(40, WHOLE, "anyOf")),
    "doubling oneOf": (doubling(40, TEXT, "oneOf"), doubling(40, WHOLE, "oneOf")),
    "many values": ({"enum": [f"v{i}" for i in range(20_000)]}, {"anyOf": [{"pattern": "^w"}, {"pattern": "^x"}]}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), HOSTILE.values(), ids=HOSTILE.keys())
def test_the_work_is_bounded_for_every_schema(old: Any, new: Any) -> None:
    started = time.process_time()  # CPU time of this process, because the machine may be busy
    assert problems(old, new)
    assert problems(old, new, strict=True)
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    "circular",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#", "title": "again"}]},
    ],
)
def test_a_schema_that_only_refers_to_itself_accepts_everything(circular: Any) -> None:
    assert jsonschema_rs.validator_for(circular).is_valid("text")
    assert problems(TEXT, circular) == ()
    assert problems(circular, TEXT) != ()


def test_a_large_schema_is_compared_completely() -> None:
    def large(kind: Any) -> Any:
        part = thing(**{f"q{j}": {"anyOf": [{"type": kind}, NULL]} for j in range(20)})
        return thing(**{f"p{i}": part for i in range(200)})

    assert problems(large("integer"), large("number")) == ()
