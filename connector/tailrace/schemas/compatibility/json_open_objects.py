"""The lenient reading of open objects: a writer does not already use names that only the reader declares.

An object without `additionalProperties` may hold any other property, of any type. Taken literally, adding an optional
property to such a schema would be incompatible, because producers could have written that name with another type.
`without_names` returns the writer's schema with these names forbidden wherever it does not declare them itself. What
it declares is collected from everything that applies to the same object; each alternative of `anyOf`, `oneOf` and
`if` counts by itself.

Where the rule is not clear (recursive schemas, `additionalProperties` with a schema, `propertyNames`), nothing is
forbidden, which is the strict reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jsonschema_rs

from tailrace.schemas.compatibility.json_documents import LISTS, MAPS, ONE, SchemaDocuments, Subschema
from tailrace.schemas.strict_json import Json

MAX_NODES = 20_000
"""Of a schema with its references written out. A larger one is read strictly."""
MAX_FORBIDDEN = 200_000
"""Names times places."""

Node = dict[str, Json]
_BESIDE = frozenset({"$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$defs", "definitions", "$ref"})
_RESTRICTING = ("additionalProperties", "unevaluatedProperties", "propertyNames")


def without_names(documents: SchemaDocuments, names: Iterable[str]) -> Json | None:
    """The writer's schema with `names` forbidden where it leaves them open; None if it is too large or unclear."""
    try:
        schema = _Inliner(documents, recursion={"propertyNames": {"type": "string"}}).inline(documents.root, ())
        _Forbidder(names).visit([schema])
    except _Unclear:
        return None
    return schema


def inlined(documents: SchemaDocuments) -> Json | None:
    """A schema with its references written out; None if it is recursive, too large or unclear."""
    try:
        return _Inliner(documents, recursion=None).inline(documents.root, ())
    except _Unclear:
        return None


class _Unclear(Exception):
    pass


class _Inliner:
    """Copies a schema with every reference replaced by its target, so that no two places share an object.

    `recursion` replaces a schema inside itself and accepts everything. No names are forbidden there.
    """

    def __init__(self, documents: SchemaDocuments, recursion: Node | None) -> None:
        self._documents = documents
        self._recursion = recursion
        self._nodes = 0

    def inline(self, node: Subschema, above: tuple[tuple[str, object], ...]) -> Node:
        self._nodes += 1
        place = (node.document, node.path)
        if self._nodes > MAX_NODES or (place in above and self._recursion is None):
            raise _Unclear
        if place in above and self._recursion is not None:
            return {**self._recursion}
        if isinstance(node.schema, bool):
            return {} if node.schema else {"not": {}}
        if "$ref" not in node.schema:
            return self._copied(node, (*above, place))
        target = self._documents.target(node, node.schema["$ref"])
        if self._documents.draft_of(target) != self._documents.draft:
            raise _Unclear
        inlined = self.inline(target, (*above, place))
        if "/draft-0" in self._documents.draft:
            return inlined  # up to draft 7, keywords next to $ref are ignored
        copied = self._copied(node, (*above, place))
        return {**copied, "allOf": [*copied.get("allOf", ()), inlined]} if copied else inlined

    def _copied(self, node: Subschema, above: tuple[tuple[str, object], ...]) -> Node:
        schema, draft = node.schema, self._documents.draft
        if "$dynamicRef" in schema or "$recursiveRef" in schema or schema.get("$schema", draft) != draft:
            raise _Unclear
        copied: Node = {}
        for keyword, value in schema.items():
            if keyword in _BESIDE:
                continue
            if keyword in LISTS and isinstance(value, list):
                copied[keyword] = [self.inline(node.child(keyword, index), above) for index in range(len(value))]
            elif keyword in MAPS and isinstance(value, dict):
                copied[keyword] = {
                    name: each if isinstance(each, list) else self.inline(node.child(keyword, name), above)
                    for name, each in value.items()
                }
            elif keyword in ONE and isinstance(value, dict):
                copied[keyword] = self.inline(node.child(keyword), above)
            else:
                copied[keyword] = value
        return copied


class _Forbidder:
    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._patterns: dict[str, frozenset[str]] = {}
        self._forbidden = 0

    def visit(self, nodes: list[Node], declared: frozenset[str] = frozenset()) -> None:
        """Handles the schemas that apply to one value together; `declared` comes from those around them."""
        together = [each for node in nodes for each in _in_place(node, alternatives=False)]
        everything = [each for node in nodes for each in _in_place(node, alternatives=True)]
        self._children(everything)
        if not any(_restricts(node) for node in everything) and any(_may_be_object(node) for node in nodes):
            self._place_by_place(nodes, together, declared)

    def _place_by_place(self, nodes: list[Node], together: list[Node], declared: frozenset[str]) -> None:
        own = declared.union(*map(self._mentioned, together))
        groups = [group for node in together for group in _alternatives(node)]
        in_groups = [[self._mentioned_below(each) for each in group] for group in groups]
        forbidden = self._names - own.union(*(names for group in in_groups for names in group))
        self._forbidden += len(forbidden) * len(nodes)
        if self._forbidden > MAX_FORBIDDEN:
            raise _Unclear
        for node in nodes if forbidden else ():
            # Draft 4 has no `false`.
            node["properties"] = {**{name: {"not": {}} for name in sorted(forbidden)}, **(node.get("properties") or {})}
        for index, group in enumerate(groups):
            others = own.union(*(names for other, each in enumerate(in_groups) if other != index for names in each))
            for alternative in group:
                if _may_be_object(alternative):
                    inside = list(_in_place(alternative, alternatives=False))
                    self._place_by_place([alternative], inside, others)

    def _children(self, nodes: list[Node]) -> None:
        """Schemas that apply to the same property or item are handled together."""
        by_name: dict[str, list[Node]] = {}
        shared: list[Node] = []
        items: list[Node] = []
        for node in nodes:
            for name, schema in (node.get("properties") or {}).items():
                if isinstance(schema, dict):
                    by_name.setdefault(name, []).append(schema)
            shared += (node.get("patternProperties") or {}).values()
            shared += [node[key] for key in _RESTRICTING[:2] if isinstance(node.get(key), dict)]
            items += node.get("prefixItems", ())
            for key in ("items", "additionalItems", "unevaluatedItems", "contains"):
                value = node.get(key)
                items += value if isinstance(value, list) else [value] if isinstance(value, dict) else []
        if shared:
            self.visit([*shared, *(schema for each in by_name.values() for schema in each)])
        else:
            for each in by_name.values():
                self.visit(each)
        if items:
            self.visit(items)

    def _mentioned_below(self, node: Node) -> frozenset[str]:
        return frozenset().union(*map(self._mentioned, _in_place(node, alternatives=True)))

    def _mentioned(self, node: Node) -> frozenset[str]:
        """The names that a node itself knows, `not` and `if` included, which say nothing else about the object."""
        found = set(node.get("properties") or ()) | set(node.get("required") or ())
        for keyword in ("dependentRequired", "dependencies", "dependentSchemas"):
            for name, needed in (node.get(keyword) or {}).items():
                found |= {name, *(needed if isinstance(needed, list) else ())}
        for value in (*(node.get("enum") or ()), node.get("const")):
            found |= set(value) if isinstance(value, dict) else set()
        for pattern in node.get("patternProperties") or ():
            found |= self._matching(pattern)
        for keyword in ("not", "if"):
            if isinstance(node.get(keyword), dict):
                found |= self._mentioned_below(node[keyword])
        return frozenset(found)

    def _matching(self, pattern: str) -> frozenset[str]:
        if pattern not in self._patterns:
            matches = jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions())
            self._patterns[pattern] = frozenset(filter(matches.is_valid, self._names))
        return self._patterns[pattern]


def _in_place(node: Node, *, alternatives: bool) -> Iterator[Node]:
    """The node and the schemas inside it that look at the same value."""
    yield node
    inside = [*node.get("allOf", ())]
    for keyword in ("dependentSchemas", "dependencies"):
        inside += [each for each in (node.get(keyword) or {}).values() if isinstance(each, dict)]
    if alternatives:
        inside += [each for group in _alternatives(node) for each in group]
    for each in inside:
        yield from _in_place(each, alternatives=alternatives)


def _alternatives(node: Node) -> Iterator[list[Node]]:
    for keyword in ("anyOf", "oneOf"):
        if keyword in node:
            yield node[keyword]
    if "if" in node:
        yield [node[keyword] for keyword in ("then", "else") if isinstance(node.get(keyword), dict)]


def _restricts(node: Node) -> bool:
    """Whether a node says what undeclared names may hold: then they are no accident."""
    return any(node.get(keyword, True) not in (True, {}) for keyword in _RESTRICTING)


def _may_be_object(node: Node) -> bool:
    types = node.get("type", "object")
    return "enum" not in node and "const" not in node and "object" in (types if isinstance(types, list) else [types])
