"""Generates models of JSON Schemas: objects become classes, everything else a Python type or `Any`.

A class belongs to the place of its schema and is named after it: OrderPlacedAddress for the property `address` of
OrderPlaced. References lead to the class of their target, so recursive schemas work. `allOf`, and a `$ref` beside other
keywords, become one class of all parts. A schema with `properties` counts as an object even without `type`: strictly,
it would accept any text or number as well, but that is hardly ever intended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import unquote

import jsonschema_rs

from tailrace.codegen.asyncapi.embedding import Dialect, Key, embedded, key_of
from tailrace.codegen.models.module import ANY, NONE, Model, Module, Property, optional, union, words
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.json_schema import DRAFTS
from tailrace.schemas.strict_json import Json

Path = tuple[str, ...]

_PLAIN = {"integer": "int", "number": "float", "boolean": "bool", "null": NONE}
_FORMATS = {"date-time": "AwareDatetime", "date": "dt.date", "time": "dt.time", "uuid": "UUID"}
_OF_NAMES = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"})
_PARTS = {"items": "Item", "additionalProperties": "Value"}
"""The part of a class name for each keyword that holds the schema; others add nothing."""
_OPENING = ("patternProperties", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "unevaluatedProperties")
"""Keywords that may describe fields which a class does not name."""


class JsonModels:
    """Declares models of JSON Schemas. The module knows their top-level names."""

    def __init__(
        self, schemas: Sequence[CompiledSchema], registered: Mapping[Key, CompiledSchema], module: Module
    ) -> None:
        self._module = module
        self._numbers = {key_of(schema): str(number) for number, schema in enumerate(schemas)}
        places = {key: f"#/{number}" for key, number in self._numbers.items()}
        self._documents: dict[str, Json] = {}
        self._drafts: dict[str, str] = {}
        self._dialects: dict[str, Dialect] = {}
        for schema in schemas:
            number = self._numbers[key_of(schema)]
            self._documents[number] = embedded(schema, registered, places)
            self._drafts[number] = _draft(schema.document)
            self._dialects[number] = Dialect.of(schema.document)
            module.names[(number,)] = module.names[key_of(schema)]
        self._open: list[Path] = []
        self._circular: set[Path] = set()
        self._declared: set[Path] = set()

    def declare(self, schema: CompiledSchema) -> None:
        """Declares one schema and everything it refers to."""
        path = (self._numbers[key_of(schema)],)
        found = self._referred(path)
        if path not in self._declared:
            self._root(path, found)

    def _type(self, path: Path) -> str:
        """Returns the Python type of the schema at a place."""
        node = self._node(path)
        if not isinstance(node, dict):
            return ANY
        if node.get("type", "object") == "object" and self._is_object(path):
            return self._class(path)
        target = self._target(path)
        if target is not None:
            return self._referred(target)
        chosen = self._choice(path, node)
        if chosen is not None:
            return chosen
        if "type" in node:
            kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
            return union(self._of_kind(path, node, kind) for kind in kinds)
        if "items" in node or "prefixItems" in node:
            return self._of_kind(path, node, "array")
        for keyword in ("anyOf", "oneOf"):
            if isinstance(node.get(keyword), list):
                return union(self._type((*path, keyword, str(each))) for each in range(len(node[keyword])))
        # Of several parts, the first with a type decides.
        branches = (self._type((*path, "allOf", str(each))) for each in range(len(node.get("allOf", ()))))
        return next((branch for branch in branches if branch != ANY), ANY)

    def _choice(self, path: Path, node: Mapping[str, Json]) -> str | None:
        # Draft 4 has no `const`.
        values = [node["const"]] if "const" in node and self._drafts[path[0]] != DRAFTS[-1] else node.get("enum")
        return self._module.choice(values, path, *self._named(path)) if isinstance(values, list) else None

    def _of_kind(self, path: Path, node: Mapping[str, Json], kind: str) -> str:
        if kind == "object":
            if self._is_object(path):
                return self._class(path)
            values = node.get("additionalProperties")
            plain = isinstance(values, dict) and "patternProperties" not in node
            return f"dict[str, {self._type((*path, 'additionalProperties')) if plain else ANY}]"
        if kind == "array":
            plain = isinstance(node.get("items"), dict) and "prefixItems" not in node
            return f"list[{self._type((*path, 'items')) if plain else ANY}]"
        if kind == "string":
            form = node.get("format")
            known = _FORMATS.get(form) if isinstance(form, str) else None
            return known if known and _is_checked(str(form), self._drafts[path[0]]) else "str"
        return _PLAIN.get(kind, ANY)

    def _referred(self, target: Path) -> str:
        """Returns the type at another place. A cycle without an object in between needs a class as well."""
        if self._is_object(target):
            return self._type(target)
        if target in self._open:
            self._circular.add(target)
        if target in self._circular:
            return self._module.named(target, *self._named(target))
        self._open.append(target)
        found = self._type(target)
        self._open.pop()
        return self._root(target, found) if target in self._circular else found

    def _root(self, path: Path, of: str) -> str:
        self._declared.add(path)
        name = self._module.named(path, *self._named(path))
        # A schema that only refers to itself has no type.
        self._module.models.append(Model(name, self._about(path), root=ANY if name == of else of))
        return name

    def _class(self, path: Path) -> str:
        name = self._module.named(path, *self._named(path))
        if path in self._declared:
            return name
        self._declared.add(path)
        model = Model(name, self._about(path))
        found: dict[str, str] = {}
        about: dict[str, str] = {}
        required: set[str] = set()
        for part in self._parts(path):
            node = self._node(part)
            more = node.get("additionalProperties")
            model.is_open |= more is True or isinstance(more, dict) or any(word in node for word in _OPENING)
            properties = node.get("properties")
            for each in properties if isinstance(properties, dict) else ():
                place = (*part, "properties", each)
                if found.get(each, ANY) == ANY:
                    found[each] = self._type(place)
                about[each] = about.get(each) or self._about(place)
            names = node.get("required")
            required |= {each for each in names if isinstance(each, str)} if isinstance(names, list) else set()
        for each in sorted(required - found.keys()):
            found[each] = ANY
        model.properties = [
            Property(each, of, None, about.get(each, ""))
            if each in required
            else Property(each, optional(of), NONE, about.get(each, ""))
            for each, of in found.items()
        ]
        self._module.models.append(model)
        return name

    def _parts(self, path: Path) -> Iterator[Path]:
        """Returns the schemas that describe the same object: the one at a place, and those joined to it."""
        todo, seen = [path], set[Path]()
        while todo:
            part = todo.pop(0)
            node = self._node(part)
            if part in seen or not isinstance(node, dict):
                continue
            seen.add(part)
            target = self._target(part)
            if target is not None:
                todo.append(target)
                if self._dialects[part[0]].ref_overrides:
                    continue
            yield part
            branches = node.get("allOf")
            todo += [(*part, "allOf", str(each)) for each in range(len(branches))] if isinstance(branches, list) else []

    def _is_object(self, path: Path) -> bool:
        """Whether it has its own fields, so that it gets a class here instead of using its target's."""
        node = self._node(path)
        if not isinstance(node, dict) or "const" in node or "enum" in node:
            return False
        if self._target(path) is not None and not ({"properties", "allOf"} & node.keys()):
            return False
        parts = [self._node(part) for part in self._parts(path)]
        if len(parts) > 1 and not node.get("properties") and len(node.get("allOf", ())) == 1:
            return False  # a reference with annotations
        kinds = [node.get("type") for node in parts]
        fits = all(kind is None or kind == "object" or (isinstance(kind, list) and "object" in kind) for kind in kinds)
        return fits and any(isinstance(node.get("properties"), dict) and node["properties"] for node in parts)

    def _target(self, path: Path) -> Path | None:
        """Returns the target of a schema's reference, if it is registered."""
        node = self._node(path)
        reference = node.get("$ref") if isinstance(node, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        parts = unquote(reference[2:]).split("/")
        target = tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)
        return target if self._node(target) is not None else None

    def _node(self, path: Path) -> Json:
        node: Json = self._documents
        for part in path:
            try:
                node = node[int(part)] if isinstance(node, list) else node[part]
            except (KeyError, IndexError, ValueError, TypeError):
                return None
        return node

    def _about(self, path: Path) -> str:
        node = self._node(path)
        return words(node.get("description")) if isinstance(node, dict) else ""

    def _named(self, path: Path) -> list[str]:
        """Returns the words that name a class after its place."""
        parts, rest = [self._module.names[path[:1]]], list(path[1:])
        while rest:
            keyword = rest.pop(0)
            if keyword in _OF_NAMES and rest:
                parts.append(rest.pop(0))
            elif keyword in _PARTS or keyword.isdigit():
                parts.append(_PARTS.get(keyword) or str(int(keyword) + 1))
        return parts


def _draft(document: Json) -> str:
    named = document.get("$schema") if isinstance(document, dict) else None
    return next((draft for draft in DRAFTS if str(named).partition("://")[2].rstrip("#") in draft), DRAFTS[0])


@lru_cache
def _is_checked(form: str, draft: str) -> bool:
    """Whether payloads are validated against a format: formats that a draft does not know are annotations."""
    return not jsonschema_rs.validator_for({"$schema": draft, "format": form}, validate_formats=True).is_valid("no")
