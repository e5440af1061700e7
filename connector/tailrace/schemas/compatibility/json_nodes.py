"""Nodes: the subschemas of a JSON Schema, each with its place and the base that its references start from.

Two texts that look alike may mean different things, because their references lead elsewhere; two that are the same
down to what they refer to never do. So every JSON value gets a number, the same for the same text, and a node is
known by its number and the resource (the part of a document under one `$id`) it stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import jsonschema_rs

from tailrace.schemas.compatibility.document import Document, Incomparable
from tailrace.schemas.strict_json import MAX_DEPTH, Json
from tailrace.schemas.validators import pointer

DRAFTS = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
_META = {4: "http://json-schema.org/draft-04/schema#", 6: "http://json-schema.org/draft-06/schema#"} | {
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
DYNAMIC = ("$dynamicRef", "$recursiveRef")
_ONE = frozenset({"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"})
_ONE |= {"propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")


class Resource(NamedTuple):
    """What references are relative to: an address, and the draft whose rules hold."""

    uri: str
    draft: int
    side: int
    """The two versions under comparison may mean different documents by the same address."""


class Node(NamedTuple):
    """A subschema. Equal nodes have equal keys; the place is for messages only."""

    schema: Json
    resource: Resource
    place: str
    key: tuple[int, Resource]

    @property
    def draft(self) -> int:
        return self.resource.draft


def meta_schema(draft: int) -> str:
    return _META[draft]


class Numbers:
    """A number for every JSON value: equal texts, equal numbers. Iterative, so that no depth exhausts the stack."""

    def __init__(self) -> None:
        self._by_text: dict[object, int] = {}
        self._by_object: dict[int, tuple[int, Json]] = {}
        self._depth: dict[int, int] = {}
        self._refers: set[int] = set()

    def of(self, value: Json) -> int:
        known = self._by_object.get(id(value))
        if known is not None:
            return known[0]
        order, todo = [], [value]
        while todo:
            node = todo.pop()
            order.append(node)
            todo.extend(_inside(node))
        for node in reversed(order):
            self._enter(node)
        return self._number(value)

    def refers(self, number: int) -> bool:
        """Whether a reference may stand in the value."""
        return number in self._refers

    def _number(self, value: Json) -> int:
        if isinstance(value, dict | list):
            return self._by_object[id(value)][0]
        return self._by_text.setdefault((type(value).__name__, repr(value)), len(self._by_text))

    def _enter(self, value: Json) -> None:
        if not isinstance(value, dict | list) or id(value) in self._by_object:
            return
        inside = [self._number(part) for part in (value.values() if isinstance(value, dict) else value)]
        text: object = frozenset(zip(value, inside, strict=True)) if isinstance(value, dict) else tuple(inside)
        number = self._by_text.setdefault((type(value).__name__, text), len(self._by_text))
        # The value is kept, so that no other object can get its id while this number is remembered.
        self._by_object[id(value)] = number, value
        self._depth[number] = depth = 1 + max((self._depth.get(part, 0) for part in inside), default=0)
        if depth > MAX_DEPTH:
            raise Incomparable("#", f"is nested more than {MAX_DEPTH} levels deep, so it was not compared")
        refers = isinstance(value, dict) and any(key in value for key in ("$ref", *DYNAMIC))
        if refers or any(part in self._refers for part in inside):
            self._refers.add(number)


class Nodes:
    """All nodes of one version of a schema, found by following keywords and references from its root."""

    def __init__(self, document: Document, numbers: Numbers, side: int) -> None:
        self._numbers = numbers
        self._side = side
        self._sound: set[tuple[int, Resource]] = set()
        self._home = _without_fragment(document.base_uri)
        self._named: dict[str, Node] = {}
        self._others = {_without_fragment(uri): schema for uri, schema in document.resources.items()}
        self._others.pop(self._home, None)
        self._unread = dict(self._others)
        self.root = self._index(document.schema, self._home)

    def others(self) -> dict[str, int]:
        """The numbers of all other documents: equal if they are."""
        return {uri: self._numbers.of(schema) for uri, schema in self._others.items()}

    def child(self, node: Node, *path: str | int) -> Node:
        """The subschema at `path` below a node, with the base that holds there."""
        schema = node.schema
        for part in path:
            schema = schema[part]
        return self._node(schema, node.resource, node.place + pointer(path)[1:])

    def target(self, node: Node, reference: str) -> Node:
        """What a reference in `node` leads to."""
        uri, fragment = urldefrag(_join(node.resource.uri, reference))
        fragment = unquote(fragment)
        found = self._find(uri, uri if not fragment or fragment.startswith("/") else f"{uri}#{fragment}")
        for part in fragment.split("/")[1:] if found and fragment.startswith("/") else ():
            found = found and self._step(found, part.replace("~1", "/").replace("~0", "~"))
        if found is None:
            raise Incomparable(node.place, f"refers to {reference[:120]!r}, which is not at hand")
        self._require_sound(found)
        return found

    def below(self, node: Node) -> Iterator[Node]:
        """The subschemas right below a node."""
        if not isinstance(node.schema, dict):
            return
        for keyword, value in node.schema.items():
            if keyword in _ONE and isinstance(value, dict | bool):
                yield self.child(node, keyword)
            elif keyword in _LISTS and isinstance(value, list):
                yield from (self.child(node, keyword, index) for index in range(len(value)))
            elif keyword in _MAPS and isinstance(value, dict):
                names = [name for name, schema in value.items() if isinstance(schema, dict | bool)]
                yield from (self.child(node, keyword, name) for name in names)

    def _find(self, uri: str, name: str) -> Node | None:
        """Reads another document only when a reference leads there; all, if one of them may hold it by `$id`."""
        if uri in self._unread:
            self._index(self._unread.pop(uri), uri)
        while name not in self._named and self._unread:
            other, schema = self._unread.popitem()
            self._index(schema, other)
        return self._named.get(name)

    def _index(self, schema: Json, uri: str) -> Node:
        """Makes a document, its embedded resources and its anchors known."""
        self._numbers.of(schema)
        place = "#" if uri == self._home else f"{uri}#"
        root = self._node(schema, Resource(uri, 2020, self._side), place)
        self._named[uri] = root
        todo = [root]
        while todo:
            node = todo.pop()
            if isinstance(node.schema, dict):
                if isinstance(_identity(node.schema, node.draft), str):
                    self._require_sound(node)
                    self._named[node.resource.uri] = node
                for name in _anchors(node.schema, node.draft):
                    self._named[f"{node.resource.uri}#{name}"] = node
            todo.extend(self.below(node))
        self._require_sound(root)
        return root

    def _node(self, schema: Json, resource: Resource, place: str) -> Node:
        if isinstance(schema, dict):
            named = schema.get("$schema")
            draft = DRAFTS.get(named.partition("://")[2].rstrip("#")) if isinstance(named, str) else resource.draft
            if draft is None:
                raise Incomparable(place, "is written in an unknown draft of JSON Schema")
            identity = _identity(schema, draft)
            if identity is not None or draft != resource.draft:
                uri = _without_fragment(_join(resource.uri, identity or ""))
                resource = Resource(uri, draft, resource.side)
        return Node(schema, resource, place, (self._numbers.of(schema), resource))

    def _step(self, node: Node, part: str) -> Node | None:
        schema = node.schema
        if isinstance(schema, dict) and part in schema:
            return self.child(node, part)
        if isinstance(schema, list) and part.isdecimal() and int(part) < len(schema):
            return self.child(node, int(part))
        return None

    def _require_sound(self, node: Node) -> None:
        """Only what the meta-schema allows has the shapes that the comparison counts on."""
        if node.key in self._sound:
            return
        schema = node.schema
        if isinstance(schema, dict):
            schema = {"$schema": _META[node.draft], **schema}
        try:
            sound = isinstance(schema, dict | bool) and jsonschema_rs.meta.is_valid(schema)
        except (ValueError, jsonschema_rs.ReferencingError):
            sound = False
        if not sound:
            raise Incomparable(node.place, "is not a valid JSON Schema")
        self._sound.add(node.key)


def _inside(value: Json) -> list[Json]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _identity(schema: dict[str, Json], draft: int) -> str | None:
    """The `$id` that changes the base; up to draft 7 it does not count beside `$ref`, nor if it only names."""
    named = schema.get("id" if draft == 4 else "$id")
    if not isinstance(named, str) or named.startswith("#") or (draft <= 7 and "$ref" in schema):
        return None
    return named


def _anchors(schema: dict[str, Json], draft: int) -> Iterator[str]:
    for keyword in ("$anchor", "$dynamicAnchor") if draft > 7 else ("id" if draft == 4 else "$id",):
        name = schema.get(keyword)
        if isinstance(name, str) and (draft > 7 or name.startswith("#")):
            yield name.removeprefix("#")


def _without_fragment(uri: str) -> str:
    return urldefrag(uri).url


def _join(base: str, reference: str) -> str:
    """`urljoin`, which knows relative references only for schemes it has heard of."""
    scheme = urlsplit(base).scheme
    if not scheme or urlsplit(reference).scheme:
        return urljoin(base, reference)
    return scheme + urljoin("http" + base[len(scheme) :], reference)[4:]
