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
from tailrace.schemas.validators import path_of

Types = frozenset[str]
JsonObject = dict[str, Json]

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
    all_parts = _Parts(document)
    parts = all_parts.of(document)
    fields: dict[str, list[JsonObject]] = {}
    for part in parts:
        for name, field in part.get("properties", {}).items():
            fields.setdefault(name, []).extend(all_parts.of(field))
    types = {name: found for name, its_parts in fields.items() if (found := _types(its_parts)) is not None}
    return Shape(_types(parts), frozenset(name for part in parts for name in part.get("required", ())), types)


class _Parts:
    """Finds the schemas that a value must satisfy together: a schema, what it refers to, and members of `allOf`."""

    def __init__(self, document: JsonObject) -> None:
        self._document = document
        self._ref_alone = str(document.get("$schema", DRAFTS[0])).rstrip("#") not in _REF_HAS_SIBLINGS

    def of(self, schema: Json) -> list[JsonObject]:
        found: list[JsonObject] = []
        seen: set[int] = set()
        todo = [schema]
        while todo:
            each = todo.pop()
            if not isinstance(each, dict) or id(each) in seen or self._is_a_document(each):
                continue
            seen.add(id(each))
            ref = each.get("$ref")
            if ref is not None:
                todo.append(self._target(ref))
            if ref is None or not self._ref_alone:
                found.append(each)
                todo += each.get("allOf", ())
        return found

    def _is_a_document(self, schema: JsonObject) -> bool:
        """Whether an inner schema has its own address or draft, so that its references mean something else."""
        return schema is not self._document and not schema.keys().isdisjoint({"$id", "id", "$schema"})

    def _target(self, ref: str) -> Json:
        """Returns what a reference into the document leads to; None for any other reference."""
        if not ref.startswith("#/") or "%" in ref:
            return None
        found: Json = self._document
        for step in path_of(ref):
            found = found.get(step) if isinstance(found, dict) else None
        return found


def _types(parts: list[JsonObject]) -> Types | None:
    """Returns the types that all parts allow; None if they allow any, or none."""
    found: Types | None = None
    for part in parts:
        named = part.get("type")
        names = [named] if isinstance(named, str) else named
        if names:
            types = frozenset(_JSON_TYPES[name] for name in names)
            found = types if found is None else found & types
    return found or None
