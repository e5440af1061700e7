"""The documents of one JSON Schema version: finds reference targets, and hands subschemas to jsonschema-rs.

Comparing schemas never opens a file or a connection: a reference either leads to one of the given documents or is
reported as a problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

import jsonschema_rs
from jsonschema_rs import CanonicalSchema

from tailrace.schemas.compatibility.document import Document, Incomparable
from tailrace.schemas.json_schema import DRAFTS, KNOWN_DRAFTS
from tailrace.schemas.strict_json import MAX_DEPTH, Json
from tailrace.schemas.validators import BASE, ReferencedSchemas, pointer

ONE = frozenset({"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames"})
ONE |= {"then", "unevaluatedItems", "unevaluatedProperties"}
LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
MAX_LISTED = 100
"""Values of `enum` and `const` that are remembered, for messages."""
Path = tuple[str | int, ...]


class Subschema(NamedTuple):
    """A schema inside a document. `base` is what its references are relative to: the `$id` around it, at `start`."""

    schema: Json
    document: str
    path: Path
    base: str
    start: int = 0

    def child(self, *path: str | int) -> Subschema:
        schema = self.schema
        for part in path:
            schema = schema[part]
        whole, base = (*self.path, *path), _base(schema, self.base)
        return Subschema(schema, self.document, whole, base, self.start if base == self.base else len(whole))

    def children(self) -> Iterator[Subschema]:
        """The subschemas directly below this one."""
        for keyword, value in self.schema.items() if isinstance(self.schema, dict) else ():
            if keyword in ONE and isinstance(value, dict | bool):
                yield self.child(keyword)
            elif keyword in LISTS and isinstance(value, list):
                yield from (self.child(keyword, index) for index in range(len(value)))
            elif keyword in MAPS and isinstance(value, dict):
                yield from (self.child(keyword, name) for name, each in value.items() if isinstance(each, dict | bool))


class SchemaDocuments:
    """A schema and what it refers to, checked to be valid, complete and of a bounded depth."""

    def __init__(self, document: Document) -> None:
        self._names = {_join(BASE, uri): uri for uri in document.resources}
        self._home = _join(BASE, document.base_uri)
        documents = {_join(BASE, uri): schema for uri, schema in document.resources.items()}
        documents[self._home] = document.schema
        self._targets: dict[str, Subschema] = {}
        for uri, schema in documents.items():
            _require_depth(schema, self._place(uri, ()))
            self._index(Subschema(schema, uri, (), _base(schema, uri)))
        self.root = self._targets[self._home]
        self.draft = DRAFTS[0]
        self.property_names: set[str] = set()
        self.listed_values: list[Json] = []
        self._visit()
        self._around = ReferencedSchemas.of(documents)

    def place(self, node: Subschema, *path: str | int) -> str:
        """A JSON pointer for people; in another document, after the address it was given under."""
        return self._place(node.document, (*node.path, *path))

    def target(self, node: Subschema, reference: str) -> Subschema:
        uri, fragment = urldefrag(_join(node.base, reference))
        fragment = unquote(fragment)
        is_pointer = not fragment or fragment.startswith("/")
        found = self._targets.get(uri if is_pointer else f"{uri}#{fragment}")
        for part in fragment.split("/")[1:] if found and is_pointer else ():
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found.child(int(name) if isinstance(found.schema, list) else name) if found else None
            except (KeyError, IndexError, ValueError, TypeError):
                found = None
        if found is None or not isinstance(found.schema, dict | bool):
            raise Incomparable(self.place(node), f"refers to {reference[:120]!r}, which is not available")
        return found

    def canonical(self, schema: Json | None = None) -> CanonicalSchema:
        """The whole schema, or another one with references into it. Raises Incomparable if there is no such form."""
        address = f"{BASE}compared.json" if schema is not None else self.root.base
        if schema is None:
            schema = self.root.schema
        elif isinstance(schema, dict):
            schema = {"$schema": self.draft, **schema}
        try:
            return jsonschema_rs.canonicalize(schema, **self._around.at(address).options())
        except (ValueError, jsonschema_rs.ReferencingError):
            raise Incomparable("#", "cannot be brought into a form that can be compared") from None

    def reference(self, node: Subschema) -> Json:
        """A schema that means `node`, wherever it is written."""
        if isinstance(node.schema, bool) or not node.schema:
            return node.schema
        return {"$ref": f"{node.base}{pointer(map(_quoted, node.path[node.start :]))}"}

    def draft_of(self, node: Subschema) -> str:
        """Returns the draft that `$schema` names at the top of the document."""
        top: Json = self._targets[node.document].schema
        return top.get("$schema", DRAFTS[0]) if isinstance(top, dict) else DRAFTS[0]

    def _visit(self) -> None:
        """Follows every reference once."""
        self._require_valid(self.root)
        self.draft = self.draft_of(self.root)
        seen, todo, valid = {(self.root.document, self.root.path)}, [self.root], {self.root.document}
        while todo:
            node = todo.pop()
            if not isinstance(node.schema, dict):
                continue
            if isinstance(node.schema.get("properties"), dict):
                self.property_names.update(node.schema["properties"])
            listed = [*node.schema.get("enum", ()), *([node.schema["const"]] if "const" in node.schema else ())]
            self.listed_values += listed[: MAX_LISTED - len(self.listed_values)]
            following = list(node.children())
            if isinstance(node.schema.get("$ref"), str):
                following.append(self.target(node, node.schema["$ref"]))
            for each in following:
                if each.document not in valid:
                    valid.add(each.document)
                    self._require_valid(self._targets[each.document])
                if (each.document, each.path) not in seen:
                    seen.add((each.document, each.path))
                    todo.append(each)

    def _require_valid(self, node: Subschema) -> None:
        schema = node.schema
        named = self.draft_of(node)
        if not isinstance(named, str) or named.partition("://")[2].rstrip("#") not in KNOWN_DRAFTS:
            raise Incomparable(self.place(node), "is written in an unknown draft of JSON Schema")
        if not isinstance(schema, dict | bool) or not jsonschema_rs.meta.is_valid(schema):
            raise Incomparable(self.place(node), "is not a valid JSON Schema")

    def _index(self, node: Subschema) -> None:
        """Remembers a document, the schemas in it that have an `$id`, and its anchors."""
        self._targets[node.document] = node
        todo = [node]
        while todo:
            each = todo.pop()
            if isinstance(each.schema, dict):
                if each.base != node.base or not each.path:
                    self._targets.setdefault(each.base, each)
                for name in _anchors(each.schema):
                    self._targets.setdefault(f"{each.base}#{name}", each)
            todo.extend(each.children())

    def _place(self, document: str, path: Path) -> str:
        return ("" if document == self._home else self._names[document]) + pointer(path)


def _quoted(part: str | int) -> str:
    return quote(str(part), safe="~/")


def _anchors(schema: dict[str, Json]) -> Iterator[str]:
    for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
        name = schema.get(keyword)
        if isinstance(name, str) and (keyword.endswith("nchor") or name.startswith("#")):
            yield name.removeprefix("#")


def _base(schema: Json, base: str) -> str:
    for keyword in ("$id", "id"):
        named = schema.get(keyword) if isinstance(schema, dict) else None
        if isinstance(named, str) and not named.startswith("#"):
            return urldefrag(_join(base, named)).url
    return base


def _require_depth(schema: Json, place: str) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise Incomparable(place, f"is nested more than {MAX_DEPTH} levels deep, so it was not compared")
        containers = [part for part in level if isinstance(part, dict | list)]
        level = [inner for part in containers for inner in (part.values() if isinstance(part, dict) else part)]


def _join(base: str, reference: str) -> str:
    """`urljoin` for any scheme; by itself it resolves relative references only for schemes it knows."""
    scheme = urlsplit(base).scheme
    if not scheme or urlsplit(reference).scheme:
        return urljoin(base, reference)
    return scheme + urljoin("http" + base[len(scheme) :], reference)[4:]
