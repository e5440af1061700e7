"""Embeds schemas in another document, together with everything they refer to.

JSON Schema: every `$ref` (to a place in its own file, another registered file or an `$id`) becomes a pointer from the
root of the document. `$id` is removed, because references would be relative to it. `$dynamicRef` and `$recursiveRef`
are kept: their target depends on the referring schema. Avro: a type that another file defines is defined where it is
first used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin

from tailrace.schema_versions import Version
from tailrace.schemas.avro import names as avro_names
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.strict_json import Json

Key = tuple[str, Version]
"""A schema's subject and version."""

_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_OF_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords that hold schemas by name, and keywords that hold values, not schemas."""


def key_of(compiled: CompiledSchema) -> Key:
    return compiled.subject, compiled.version


def needed_by(compiled_schemas: list[CompiledSchema], registered: Mapping[Key, CompiledSchema]) -> list[CompiledSchema]:
    """Returns these schemas and all they refer to, each once."""
    found = {key_of(compiled): compiled for compiled in compiled_schemas}
    todo = list(found.values())
    while todo:
        for reference in todo.pop().references:
            key = (reference.subject, reference.version)
            if key in registered and key not in found:
                found[key] = registered[key]
                todo.append(registered[key])
    return list(found.values())


def embedded(compiled: CompiledSchema, registered: Mapping[Key, CompiledSchema], places: Mapping[Key, str]) -> Json:
    """Returns the schema as embedded at its place. `places` are pointers such as `#/components/schemas/Order`."""
    if compiled.kind == "avro":
        return _Whole.of(compiled, registered).schema(compiled.document, "")
    return _References(compiled, registered, places).rewritten(compiled.document, compiled.file)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Differences between the drafts: the keyword of a schema's address, and whether `$ref` disables it."""

    identity: str
    ref_overrides: bool

    @classmethod
    def of(cls, document: Json) -> Dialect:
        draft = str(document.get("$schema")) if isinstance(document, dict) else ""
        return cls("id" if "/draft-04/" in draft else "$id", "/draft-0" in draft)

    def base(self, node: Json, base: str) -> str:
        """Returns what references inside a schema are relative to. An address that is only a fragment is an anchor."""
        own = node.get(self.identity) if isinstance(node, dict) else None
        if not isinstance(own, str) or own.startswith("#") or (self.ref_overrides and "$ref" in node):
            return base
        return urljoin(base, own).partition("#")[0]

    def anchors(self, node: Mapping[str, Json]) -> Iterator[str]:
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(key), str):
                yield node[key]
        own = node.get(self.identity)
        if isinstance(own, str) and own.partition("#")[2]:
            yield own.partition("#")[2]

    def schemas(self, node: Json, pointer: str, base: str) -> Iterator[tuple[str, str, Mapping[str, Json]]]:
        """Yields every schema in a document, with its pointer and the base of its references."""
        if isinstance(node, list):
            for index, child in enumerate(node):
                yield from self.schemas(child, f"{pointer}/{index}", base)
        elif isinstance(node, dict):
            base = self.base(node, base)
            yield pointer, base, node
            for key, child in node.items():
                inside = f"{pointer}/{_escaped(key)}"
                if key in _OF_SCHEMAS and isinstance(child, dict):
                    for name, schema in child.items():
                        yield from self.schemas(schema, f"{inside}/{_escaped(name)}", base)
                elif key not in _OF_VALUES:
                    yield from self.schemas(child, inside, base)


@dataclass(frozen=True, slots=True)
class _Index:
    """The resources and anchors of a document that references can name."""

    root: str
    resources: dict[str, str]
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def of(cls, compiled: CompiledSchema) -> _Index:
        dialect = Dialect.of(compiled.document)
        root = dialect.base(compiled.document, compiled.file)
        index = cls(root, {root: ""})
        for pointer, base, node in dialect.schemas(compiled.document, "", compiled.file):
            index.resources.setdefault(base, pointer)
            for name in dialect.anchors(node):
                index.anchors[base, name] = pointer
        return index

    def pointer(self, address: str, fragment: str) -> str | None:
        if address not in self.resources:
            return None
        if fragment and not fragment.startswith("/"):
            return self.anchors.get((address, fragment))
        return self.resources[address] + fragment


class _References:
    """The references of one JSON Schema and their targets."""

    def __init__(
        self, compiled: CompiledSchema, registered: Mapping[Key, CompiledSchema], places: Mapping[Key, str]
    ) -> None:
        self._dialect = Dialect.of(compiled.document)
        self._own = _Index.of(compiled)
        self._place = places[key_of(compiled)]
        self._others: dict[str, tuple[_Index, str]] = {}
        for reference in compiled.references:
            key = (reference.subject, reference.version)
            if key in registered:
                self._others[reference.name] = (_Index.of(registered[key]), places[key])

    def rewritten(self, node: Json, base: str) -> Json:
        if isinstance(node, list):
            return [self.rewritten(child, base) for child in node]
        if not isinstance(node, dict):
            return node
        base = self._dialect.base(node, base)
        written: dict[str, Json] = {}
        for key, child in node.items():
            if key == self._dialect.identity and isinstance(child, str):
                continue
            if key == "$ref" and isinstance(child, str):
                written[key] = self._target(child, base)
            elif key in _OF_VALUES:
                written[key] = child
            elif key in _OF_SCHEMAS and isinstance(child, dict):
                written[key] = {name: self.rewritten(schema, base) for name, schema in child.items()}
            else:
                written[key] = self.rewritten(child, base)
        return written

    def _target(self, reference: str, base: str) -> str:
        name, _, fragment = reference.partition("#")
        pointer = self._own.pointer(urljoin(base, name) if name else base, fragment)
        place = self._place
        if pointer is None and name in self._others:
            other, place = self._others[name]
            pointer = other.pointer(other.root, fragment)
        # A target that is neither ours nor registered is a meta-schema, which every reader has.
        return reference if pointer is None else place + pointer


def _escaped(part: str) -> str:
    """Escapes one part of a pointer for a URL."""
    return quote(part.replace("~", "~0").replace("/", "~1"), safe="~!$&'()*+,;=:@")


@dataclass(frozen=True, slots=True)
class _Whole:
    """Completes an Avro schema. `pool` are types that other files define; `defined` are those already written."""

    pool: dict[str, Json]
    defined: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, compiled: CompiledSchema, registered: Mapping[Key, CompiledSchema]) -> _Whole:
        own = {name for name, _ in avro_names.definitions(compiled.document)}
        others = needed_by([compiled], registered)[1:]
        pool = {name: schema for other in others for name, schema in avro_names.definitions(other.document)}
        return cls({name: schema for name, schema in pool.items() if name not in own})

    def schema(self, node: Json, space: str) -> Json:
        if isinstance(node, str):
            name = node if "." in node or not space else f"{space}.{node}"
            if node in avro_names.PRIMITIVES or name in self.defined or name not in self.pool:
                return node
            return self.schema(self.pool[name], "")
        if isinstance(node, list):
            return [self.schema(branch, space) for branch in node]
        if not isinstance(node, dict):
            return node
        kind = node.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            name, space = avro_names.full_name(node, space)
            if name in self.defined:
                return name
            self.defined.add(name)
            if "." in node["name"]:  # AsyncAPI's schema of Avro distinguishes only these two
                node = {**node, "namespace": space, "name": name.rpartition(".")[2]}
        elif not isinstance(kind, str) and len(node) == 1:
            return self.schema(kind, space)
        if kind in ("record", "error"):
            return {**node, "fields": [{**each, "type": self.schema(each["type"], space)} for each in node["fields"]]}
        for keyword in {"array": ("items",), "map": ("values",), "enum": (), "fixed": ()}.get(str(kind), ("type",)):
            node = {**node, keyword: self.schema(node[keyword], space)}
        return node
