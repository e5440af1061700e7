"""The shape of a payload: the part of a JSON Schema that a database can check cheaply.

A shape never demands more than its schema: a keyword that is not understood here adds no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import NamedTuple

from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.json_schema import DRAFTS
from tailrace.schemas.strict_json import Json

Types = frozenset[str]

_JSON_TYPES = {name: name for name in ("object", "array", "string", "number", "boolean", "null")} | {
    "integer": "number"
}
"""The types of JSON Schema, and how Postgres names them."""
_REF_HAS_SIBLINGS = {draft.rstrip("#") for draft in DRAFTS[:2]}
"""The drafts in which keywords beside `$ref` count. Earlier drafts ignore them."""


class Shape(NamedTuple):
    """The JSON types a payload may have (None for any), the fields an object must have, and the types of its fields."""

    types: Types | None = None
    required: frozenset[str] = frozenset()
    fields: Mapping[str, Types] = {}

    def common(self, other: Shape) -> Shape:
        """Returns the shape of payloads that have this shape or the other."""
        return Shape(
            None if self.types is None or other.types is None else self.types | other.types,
            self.required & other.required,
            {name: self.fields[name] | other.fields[name] for name in self.fields.keys() & other.fields.keys()},
        )


def shapes_of(schemas: Iterable[CompiledSchema], *, latest: bool) -> dict[str, Shape]:
    """Returns the shape for each subject: of its latest version, or what all its versions have in common.

    The versions of a subject must be in order.
    """
    by_subject: dict[str, list[Shape]] = {}
    for schema in schemas:
        by_subject.setdefault(schema.subject, []).append(shape_of(schema))
    return {subject: found[-1] if latest else reduce(Shape.common, found) for subject, found in by_subject.items()}


def shape_of(schema: CompiledSchema) -> Shape:
    """Returns the shape that a schema demands. An Avro schema demands none."""
    document = schema.document
    if schema.kind != "json" or not isinstance(document, dict):
        return Shape()
    modern = str(document.get("$schema", DRAFTS[0])).rstrip("#") in _REF_HAS_SIBLINGS
    if "$ref" in document and not modern:
        return Shape()
    fields = {
        name: types
        for name, field in document.get("properties", {}).items()
        if (types := _types(field, modern=modern)) is not None
    }
    return Shape(_types(document, modern=modern), frozenset(document.get("required", ())), fields)


def _types(schema: Json, *, modern: bool) -> Types | None:
    if not isinstance(schema, dict) or ("$ref" in schema and not modern):
        return None
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named
    if not names or not all(isinstance(name, str) and name in _JSON_TYPES for name in names):
        return None
    return frozenset(_JSON_TYPES[name] for name in names)
