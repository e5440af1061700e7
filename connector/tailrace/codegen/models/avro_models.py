"""Generates models of Avro schemas: records become classes, enums become choices, logical types accept Avro and JSON.

A record at the top of a schema is named after its subject; an inner one gets its own name appended. A type that another
schema defines belongs to that schema. A field with a default may be missing, because the writer may have used an
earlier version. Its default is the schema's if that is a plain value, else None.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.codegen.asyncapi.embedding import Key, key_of, needed_by
from tailrace.codegen.models.module import ANY, NONE, Model, Module, Property, optional, source, union, words
from tailrace.schemas.avro.names import PRIMITIVES, definitions, full_name
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.strict_json import Json

_PLAIN = {
    "null": NONE,
    "boolean": "bool",
    "int": "int",
    "long": "int",
    "float": "float",
    "double": "float",
    "bytes": "Binary",
    "fixed": "Binary",
    "string": "str",
}
_LOGICAL = {
    ("int", "date"): "Date",
    ("int", "time-millis"): "TimeMillis",
    ("long", "time-micros"): "TimeMicros",
    ("long", "timestamp-millis"): "TimestampMillis",
    ("long", "timestamp-micros"): "TimestampMicros",
    ("long", "timestamp-nanos"): "int | str",  # as stored, or as text: Python has no such time
    ("long", "local-timestamp-millis"): "LocalTimestampMillis",
    ("long", "local-timestamp-micros"): "LocalTimestampMicros",
    ("long", "local-timestamp-nanos"): "int | str",
    ("string", "uuid"): "UUID",
    ("fixed", "uuid"): "UUID",
    ("bytes", "decimal"): "Decimal",
    ("fixed", "decimal"): "Decimal",
}
UUID_BYTES = 16
FIELD_TYPES = frozenset({"Binary", *_LOGICAL.values()} - {"UUID", "Decimal", "int | str"})
"""The types of `schemas/avro/fields.py`."""


class AvroModels:
    """Declares models of Avro schemas. The module knows their top-level names."""

    def __init__(self, registered: Mapping[Key, CompiledSchema], module: Module) -> None:
        self._registered = registered
        self._module = module
        self._declared: set[str] = set()

    def declare(self, schema: CompiledSchema) -> None:
        one = _Schema(schema, self._registered, self._module, self._declared)
        name = self._module.names[key_of(schema)]
        found = one.type(schema.document, "")
        if found != name:
            self._module.models.append(Model(name, root=found))


class _Schema:
    """One schema, and the origin of the types that it uses."""

    def __init__(
        self, schema: CompiledSchema, registered: Mapping[Key, CompiledSchema], module: Module, declared: set[str]
    ) -> None:
        self._schema = schema
        self._registered = registered
        self._module = module
        self._declared = declared
        self._own = dict(definitions(schema.document))

    def type(self, node: Json, space: str) -> str:
        if isinstance(node, str):
            return _PLAIN[node] if node in PRIMITIVES else self._referred(node, space)
        if isinstance(node, list):
            return union(self.type(branch, space) for branch in node)
        kind = node["type"]
        if isinstance(kind, list | dict):
            return self.type(kind, space)
        if kind == "array":
            return f"list[{self.type(node['items'], space)}]"
        if kind == "map":
            return f"dict[str, {self.type(node['values'], space)}]"
        if kind in ("record", "error"):
            return self._record(node, space)
        if kind == "enum":
            name = full_name(node, space)[0]
            return self._module.choice(node["symbols"], (key_of(self._schema), name), *self._parts(node)) or ANY
        if kind in PRIMITIVES or kind == "fixed":
            logical = node.get("logicalType")
            is_odd = logical == "uuid" and node.get("size", UUID_BYTES) != UUID_BYTES
            return _PLAIN[kind] if is_odd else _LOGICAL.get((kind, str(logical)), _PLAIN[kind])
        return self._referred(kind, space)

    def _referred(self, name: str, space: str) -> str:
        full = f"{space}.{name}" if space and "." not in name else name
        if full in self._own:
            return self.type(self._own[full], "")
        for other in needed_by([self._schema], self._registered)[1:]:
            defined = dict(definitions(other.document))
            if full in defined:
                return _Schema(other, self._registered, self._module, self._declared).type(defined[full], "")
        return ANY

    def _record(self, node: Mapping[str, Json], space: str) -> str:
        full, inner = full_name(node, space)
        document = self._schema.document
        is_top = isinstance(document, dict) and "name" in document and full_name(document, "")[0] == full
        key = key_of(self._schema)
        name = self._module.names[key] if is_top else self._module.named((key, full), *self._parts(node))
        if name in self._declared:
            return name
        self._declared.add(name)
        model = Model(name, words(node.get("doc")))
        for field in node["fields"]:
            of, about = self.type(field["type"], inner), words(field.get("doc"))
            if "default" in field:
                default = self._default(of, field["default"])
                model.properties.append(
                    Property(field["name"], of if default else optional(of), default or NONE, about)
                )
            else:
                model.properties.append(Property(field["name"], of, None, about))
        self._module.models.append(model)
        return name

    def _default(self, of: str, value: Json) -> str | None:
        """Returns a default as source if it is a plain value of the type, or of the first of several types."""
        first = of.partition(" | ")[0]
        is_choice = first.startswith("Literal[") or first in self._module.literals
        if type(value) is str and (first == "str" or is_choice):
            return source(value)
        if type(value) in (int, float) and first == "float":
            return repr(float(value))
        return repr(value) if first == {int: "int", bool: "bool"}.get(type(value)) else None

    def _parts(self, node: Mapping[str, Json]) -> tuple[str, str]:
        return self._module.names[key_of(self._schema)], str(node["name"]).rpartition(".")[2]
