"""Reads Avro bytes with the schema that they were written with.

fastavro reads. Dates, times, decimals and UUIDs become Python's own types, as with every Avro reader in Python. Types
that fastavro has no reader for (nanoseconds, UUIDs of 16 bytes) are returned as stored. As for the writer (see
`schema`), types get other names in the schema that fastavro is given, because its parser confuses some.

fastavro's compiled reader does not limit recursion: a deeply nested value of a recursive type crashes the process. Such
schemas are read by its Python reader, which is slower and raises RecursionError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from fastavro import _read_py, parse_schema, schemaless_reader

from tailrace.schemas.avro.names import PRIMITIVES, full_name
from tailrace.schemas.avro.scalar_converters import LOGICAL
from tailrace.schemas.avro.schema import compile_document
from tailrace.schemas.strict_json import Json

Read = Callable[[bytes], Any]
_DETAILS = ("logicalType", "precision", "scale")


class NotAvroError(ValueError):
    """The bytes do not match the schema. The message quotes nothing of them."""


def reader(document: Json, file: str, named: Mapping[str, Json]) -> Read:
    """Returns a function that reads values of a schema. Raises SchemaError if the schema cannot be used.

    `named` holds definitions that the schema uses but does not contain, by full name.
    """
    compile_document(document, file, named)
    rewriting = _Rewriting(named)
    # fastavro prepares only records. A record with one field is read as that field alone.
    whole = {"type": "record", "name": "Whole", "fields": [{"name": "whole", "type": rewriting.schema(document, "")}]}
    prepared = parse_schema(whole)
    read_from: Any = _read_py.schemaless_reader if rewriting.is_recursive else schemaless_reader

    def read(data: bytes) -> Any:  # noqa: ANN401 - the type depends on the schema
        source = BytesIO(data)
        try:
            value = read_from(source, prepared, None)["whole"]
        except Exception as error:  # noqa: BLE001 - fastavro raises anything
            raise NotAvroError(f"it cannot be read by its schema ({type(error).__name__})") from None
        left = len(data) - source.tell()
        if left:
            raise NotAvroError(f"{left} bytes are left over behind what its schema reads")
        return value

    return read


class _Rewriting:
    """Rewrites a valid schema for the reader."""

    def __init__(self, named: Mapping[str, Json]) -> None:
        self.is_recursive = False
        self._named = named
        self._tags: dict[str, str] = {}
        self._open: set[str] = set()

    def schema(self, node: Json, space: str) -> Json:
        if isinstance(node, str):
            return node if node in PRIMITIVES else self._referred(node, space)
        if isinstance(node, list):
            return [self.schema(branch, space) for branch in node]
        kind = node["type"]
        if isinstance(kind, list | dict):
            return self.schema(kind, space)
        if kind == "array":
            return {"type": "array", "items": self.schema(node["items"], space)}
        if kind == "map":
            return {"type": "map", "values": self.schema(node["values"], space)}
        if kind in ("record", "error", "enum", "fixed"):
            return self._defined(node, kind, space)
        if kind in PRIMITIVES:
            return self._with_logic({"type": kind}, node)
        return self._referred(kind, space)

    def _referred(self, name: str, space: str) -> Json:
        full = f"{space}.{name}" if space and "." not in name else name
        if full not in self._tags:
            return self.schema(self._named[full], "")
        self.is_recursive |= full in self._open
        return self._tags[full]

    def _defined(self, node: Mapping[str, Json], kind: str, space: str) -> Json:
        name, inner = full_name(node, space)
        if name in self._tags:
            return self._referred(name, "")
        tag = self._tags[name] = f"T{len(self._tags)}"
        if kind == "enum":
            return {"type": "enum", "name": tag, "symbols": node["symbols"]}
        if kind == "fixed":
            return self._with_logic({"type": "fixed", "name": tag, "size": node["size"]}, node)
        self._open.add(name)
        fields = [{"name": field["name"], "type": self.schema(field["type"], inner)} for field in node["fields"]]
        self._open.discard(name)
        return {"type": "record", "name": tag, "fields": fields}

    def _with_logic(self, written: dict[str, Json], node: Mapping[str, Json]) -> Json:
        """Whether a logical type fits its type. Otherwise it is ignored."""
        kind, logical = written["type"], node.get("logicalType")
        fits = (kind, logical) in LOGICAL or (logical == "decimal" and kind in ("bytes", "fixed"))
        return {**written, **{name: node[name] for name in _DETAILS if name in node}} if fits else written
