"""AvroTypes: the types of one Avro schema, with names resolved and shorthands expanded.

A type can be a name, an object around a name, or a definition; `int`, `{"type": "int"}` and `{"type": {"type": "int"}}`
are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tailrace.schemas.avro.names import PRIMITIVES, definitions, full_name
from tailrace.schemas.compatibility.document import Document, Incomparable
from tailrace.schemas.messages import cut, describe
from tailrace.schemas.strict_json import MAX_DEPTH, Json

NAMED = frozenset({"record", "enum", "fixed"})
_MEMBERS: Mapping[str, tuple[str, type]] = {
    "record": ("fields", list),
    "enum": ("symbols", list),
    "fixed": ("size", int),
    "array": ("items", object),
    "map": ("values", object),
}


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type: its kind, its definition, the namespace inside it, and its full name if it has one."""

    kind: str
    node: Mapping[str, Json]
    space: str
    name: str = ""
    branches: tuple[Json, ...] = ()
    """The types of a union."""

    @property
    def shown(self) -> str:
        return f"the {self.kind} {self.name}" if self.name else self.kind

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale; None if it is not a valid decimal, which counts as its base type."""
        precision, scale = self.node.get("precision"), self.node.get("scale", 0)
        valid = self.node.get("logicalType") == "decimal" and self.kind in ("bytes", "fixed")
        return (precision, scale) if valid and isinstance(precision, int) and isinstance(scale, int) else None

    def aliases(self) -> set[str]:
        """Returns the type's aliases as full names."""
        given = self.node.get("aliases") or ()
        outer = self.name.rpartition(".")[0]
        return {alias if "." in alias or not outer else f"{outer}.{alias}" for alias in given if isinstance(alias, str)}

    def fields(self, place: str) -> dict[str, Mapping[str, Json]]:
        """Returns a record's fields by name, in order."""
        found: dict[str, Mapping[str, Json]] = {}
        for field in self.node["fields"]:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise Incomparable(place, "has a field without name or type")
            if field["name"] in found:
                raise Incomparable(place, f"has the field {cut(field['name'])!r} twice")
            found[field["name"]] = field
        return found


class AvroTypes:
    """The types of a schema and of those it refers to."""

    def __init__(self, document: Document) -> None:
        self.root = document.schema
        self._defined: dict[str, Mapping[str, Json]] = {}
        for schema in (*document.resources.values(), document.schema):
            self._defined.update(definitions(schema))

    def resolve(self, schema: Json, space: str, place: str, kind: Literal["reader", "writer"]) -> AvroType:
        """Resolves a type that is used in a namespace."""
        outer: Mapping[str, Json] = {}
        for _ in range(MAX_DEPTH):
            if isinstance(schema, list):
                return AvroType("union", {}, space, branches=tuple(schema))
            if isinstance(schema, str):
                if schema in PRIMITIVES:
                    return AvroType(schema, outer, space)
                schema, space, outer = self._named(schema, space, place, kind), "", {}
            elif isinstance(schema, dict):
                found = _definition(schema, space, place, kind)
                if found is not None:
                    return found
                # An object around a type: its attributes, such as a logical type, apply to a primitive inside.
                outer, schema = schema, schema.get("type")
            else:
                break
        raise Incomparable(place, f"is {describe(schema)} in the {kind}'s schema, which is not a type")

    def _named(self, name: str, space: str, place: str, kind: str) -> Mapping[str, Json]:
        full = f"{space}.{name}" if space and "." not in name else name
        # Older writers use a name without a namespace for a type that is defined without one.
        found = self._defined.get(full) or self._defined.get(name)
        if found is None:
            raise Incomparable(place, f"names the type {full[:120]!r} in the {kind}'s schema, which is not available")
        return found


def _definition(node: Mapping[str, Json], space: str, place: str, side: str) -> AvroType | None:
    """Returns the type that an object defines; None if it only wraps another."""
    kind = "record" if node.get("type") == "error" else node.get("type")
    if not isinstance(kind, str) or kind not in _MEMBERS:
        return None
    member, of = _MEMBERS[kind]
    if not isinstance(node.get(member), of) or member not in node:
        raise Incomparable(place, f"is a {kind} without a valid `{member}` in the {side}'s schema")
    if kind not in NAMED:
        return AvroType(kind, node, space)
    name, inner = full_name(node, space)
    if not name:
        raise Incomparable(place, f"is a {kind} without a name in the {side}'s schema")
    return AvroType(kind, node, inner, name)
