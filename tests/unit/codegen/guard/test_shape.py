"""Tests of shape.py: which rules of a schema a guard can check, and never a rule that the schema does not have."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.codegen.guard.shape import Shape, shape_of, shapes_of
from tailrace.schema_versions import Version
from tailrace.schemas.json_schema import CompiledJsonSchema

OBJECT = frozenset({"object"})
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def compiled(document: Any, version: int = 1) -> CompiledJsonSchema:
    return CompiledJsonSchema.compile("OrderPlaced", Version(version), document, "OrderPlaced/1.json")


@pytest.mark.parametrize(
    ("document", "shape"),
    [
        (True, Shape()),
        (False, Shape()),
        ({}, Shape()),
        ({"type": "object", "required": ["a"]}, Shape(OBJECT, frozenset({"a"}))),
        ({"required": ["a"]}, Shape(None, frozenset({"a"}))),
        ({"properties": {"a": {"type": "integer"}}}, Shape(fields={"a": frozenset({"number"})})),
        (
            {"properties": {"a": {"type": ["string", "null"]}, "b": {"minimum": 1}, "c": True}},
            Shape(fields={"a": frozenset({"string", "null"})}),
        ),
        ({"anyOf": [{"type": "object"}, {"required": ["a"]}]}, Shape()),
        ({"$ref": "#/$defs/a", "required": ["a"], "$defs": {"a": {}}}, Shape(None, frozenset({"a"}))),
        # Draft 7 ignores what is beside $ref.
        ({"$schema": DRAFT_7, "$ref": "#/definitions/a", "required": ["a"], "definitions": {"a": {}}}, Shape()),
        (
            {
                "$schema": DRAFT_7,
                "properties": {"a": {"$ref": "#/definitions/a", "type": "string"}, "b": {"type": "string"}},
                "definitions": {"a": {}},
            },
            Shape(fields={"b": frozenset({"string"})}),
        ),
        (
            {"$schema": DRAFT_7, "$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "object"}}},
            Shape(OBJECT),
        ),
        (
            {
                "allOf": [{"type": ["object", "null"], "required": ["a"]}, {"$ref": "#/$defs/b"}],
                "properties": {"b": {"$ref": "#/$defs/text"}},
                "$defs": {
                    "b": {"type": "object", "required": ["b"], "properties": {"b": {"type": ["string", "null"]}}},
                    "text": {"type": "string"},
                },
            },
            Shape(OBJECT, frozenset({"a", "b"}), {"b": frozenset({"string"})}),
        ),
        # Nothing satisfies these: the validator says so.
        ({"type": "string", "allOf": [{"type": "number"}]}, Shape()),
        # References that go round in circles, or into an inner document, add no rule.
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, Shape()),
        (
            {"$schema": DRAFT_7, "$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}},
            Shape(),
        ),
        ({"properties": {"a": {"$id": "a", "$ref": "#/$defs/b", "$defs": {"b": {}}}}, "$defs": {"b": False}}, Shape()),
    ],
)
def test_shapes(document: Any, shape: Shape) -> None:
    assert shape_of(compiled(document)) == shape


def test_the_shape_of_a_subject_is_that_of_its_latest_version_or_common_to_all() -> None:
    first = compiled({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string"}}})
    second = compiled(
        {"type": "object", "required": ["b"], "properties": {"a": {"type": "number"}, "b": {"type": "null"}}}, version=2
    )
    latest = Shape(OBJECT, frozenset({"b"}), {"a": frozenset({"number"}), "b": frozenset({"null"})})
    assert shapes_of([first, second], latest=True) == {"OrderPlaced": latest}
    common = Shape(OBJECT, frozenset({"b"}), {"a": frozenset({"string", "number"})})
    assert shapes_of([first, second], latest=False) == {"OrderPlaced": common}
