"""Rules: what one node of a JSON Schema demands, in one shape for all drafts.

The drafts say the same things differently: `exclusiveMinimum` was a boolean, tuples were `items`, what is now
`dependentRequired` was `dependencies`. They are translated here, and keywords a draft does not know are left out,
so that the comparison itself knows no drafts. One deviation: 1.0 counts as an integer everywhere; in draft 4 it
did not, but nobody who moves from draft 4 to a later one expects to be warned about that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import jsonschema_rs

from tailrace.schemas.compatibility.document import Incomparable
from tailrace.schemas.compatibility.json_nodes import DYNAMIC, Node, Nodes, meta_schema
from tailrace.schemas.strict_json import Json
from tailrace.schemas.validators import ReferencedSchemas

TYPES = frozenset({"null", "boolean", "object", "array", "string", "integer", "fraction"})
"""A number is an integer or a fraction: so types can be subtracted from each other."""
NUMBERS = frozenset({"integer", "fraction"})
INFINITE = float("inf")

_SCALAR = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
_SCALAR |= {"pattern", "format", "contentEncoding", "contentMediaType"}
_SINCE = {"const": 6, "contains": 6, "propertyNames": 6, "if": 7, "prefixItems": 2020, "$dynamicRef": 2020}
_SINCE |= dict.fromkeys(("contentEncoding", "contentMediaType"), 6)
_SINCE |= dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019)
_SINCE |= dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), 2019)
_UNTIL = {"additionalItems": 2019, "$recursiveRef": 2019, "contentEncoding": 7, "contentMediaType": 7}


class Bound(NamedTuple):
    """An end of a range of numbers."""

    value: int | float
    exclusive: bool = False


class Condition(NamedTuple):
    test: Node
    then: Node | None
    otherwise: Node | None


@dataclass(slots=True, eq=False)
class Rules:
    """What a node demands. Nothing said is None, an empty collection, or the widest range."""

    node: Node
    types: frozenset[str] = TYPES
    values: dict[Hashable, Json] | None = None
    """Of `enum` and `const`, by what makes them equal."""
    lower: Bound | None = None
    upper: Bound | None = None
    multiple: Fraction | None = None
    length: tuple[float, float] = (0, INFINITE)
    texts: dict[str, str] = field(default_factory=dict)
    """`pattern`, `format` and other rules for strings of which only sameness can be shown."""
    properties: dict[str, Node] = field(default_factory=dict)
    patterns: dict[str, Node] = field(default_factory=dict)
    additional: Node | None = None
    names: Node | None = None
    required: tuple[str, ...] = ()
    size: tuple[float, float] = (0, INFINITE)
    dependents: list[tuple[str, Node]] = field(default_factory=list)
    dependent_names: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    unevaluated: Node | None = None
    prefix: list[Node] = field(default_factory=list)
    rest: Node | None = None
    unevaluated_items: Node | None = None
    count: tuple[float, float] = (0, INFINITE)
    unique: bool = False
    contains: Node | None = None
    containing: tuple[float, float] = (1, INFINITE)
    all_of: list[Node] = field(default_factory=list)
    any_of: list[Node] = field(default_factory=list)
    one_of: list[Node] = field(default_factory=list)
    negated: Node | None = None
    condition: Condition | None = None
    dynamic: bool = False
    """A reference whose target depends on who asks."""

    @property
    def combines(self) -> bool:
        """Whether it helps to look at a writer's cases one by one."""
        return bool(self.any_of or self.one_of or self.negated or self.condition)

    @property
    def depending(self) -> set[str]:
        """Names of properties on whose presence something depends, or that are demanded then."""
        demanded = {each for name, names in self.dependent_names for each in (name, *names)}
        return demanded.union(name for name, _ in self.dependents)

    def at(self, *path: str | int) -> str:
        """The place of a keyword, for messages."""
        return self.node.place + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)

    def refusal(self, value: Json) -> str | None:
        """The keyword by which this node itself refuses a null, boolean, number or string; None if it does not."""
        if not kinds_of(value) <= self.types:
            return "type"
        if self.values is not None and identity(value) not in self.values:
            return "const" if "const" in self.node.schema else "enum"
        if not isinstance(self.node.schema, dict):
            return None
        said = {keyword: limit for keyword, limit in known(self.node).items() if keyword in _SCALAR}
        for keyword, limit in said.items():
            alone = {keyword: limit}
            if isinstance(limit, bool):  # draft 4: exclusive counts only together with its limit
                alone = {key: each for key, each in said.items() if key.lower().endswith(keyword.lower()[-7:])}
            if not _validator(json.dumps({"$schema": meta_schema(self.node.draft), **alone})).is_valid(value):
                return keyword
        return None


def rules_of(node: Node, nodes: Nodes) -> Rules:
    """Translates one node; its schema is known to be valid against its meta-schema."""
    rules = Rules(node)
    if not isinstance(node.schema, dict):
        rules.types = TYPES if node.schema else frozenset()
        return rules
    said = known(node)
    if "type" in said:
        rules.types = _types(said["type"])
    if "const" in said or "enum" in said:
        rules.values = {identity(value): value for value in said.get("enum", [said.get("const")])}
        if "const" in said:
            only = identity(said["const"])
            rules.values = {only: said["const"]} if only in rules.values else {}
    _scalars(rules, said)
    _objects(rules, said, nodes)
    _arrays(rules, said, nodes)
    _combinations(rules, said, nodes)
    return rules


def kinds_of(value: Json) -> frozenset[str]:
    """The type of a value, as a set of one."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        return frozenset({"integer" if value == int(value) else "fraction"})
    names = {type(None): "null", str: "string", dict: "object", list: "array"}
    return frozenset({names[type(value)]})


def identity(value: Json) -> Hashable:
    """What makes values equal as JSON Schema means it: 1 is 1.0, but true is not 1."""
    if isinstance(value, dict):
        return frozenset((key, identity(part)) for key, part in value.items())
    if isinstance(value, list):
        return tuple(identity(part) for part in value)
    return isinstance(value, bool), value


def matches(pattern: str, text: str, place: str) -> bool:
    """Whether a property's name matches, by the engine that checks events: linear time, the same dialect."""
    try:
        return _validator(json.dumps({"pattern": pattern})).is_valid(text)
    except ValueError:
        raise Incomparable(place, f"has a pattern that cannot be used, {pattern[:80]!r}") from None


@lru_cache(maxsize=1024)
def _validator(schema: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(json.loads(schema), **ReferencedSchemas().options())


def known(node: Node) -> dict[str, Json]:
    """The keywords that count in the node's draft; up to draft 7, nothing counts beside `$ref`."""
    draft, schema = node.draft, node.schema
    if draft <= 7 and "$ref" in schema:
        return {"$ref": schema["$ref"]}
    return {key: value for key, value in schema.items() if _SINCE.get(key, 4) <= draft <= _UNTIL.get(key, 2020)}


def _types(named: str | list[str]) -> frozenset[str]:
    names = frozenset([named] if isinstance(named, str) else named)
    return names - {"number"} | NUMBERS if "number" in names else names


def _scalars(rules: Rules, said: dict[str, Json]) -> None:
    rules.lower = _bound(said.get("minimum"), said.get("exclusiveMinimum"), max)
    rules.upper = _bound(said.get("maximum"), said.get("exclusiveMaximum"), min)
    if "multipleOf" in said:
        rules.multiple = Fraction(str(said["multipleOf"]))
    rules.length = said.get("minLength", 0), said.get("maxLength", INFINITE)
    texts = ("pattern", "format", "contentEncoding", "contentMediaType")
    rules.texts = {keyword: said[keyword] for keyword in texts if keyword in said}


def _bound(limit: Json, exclusive: Json, tighter: Callable[[float, float], float]) -> Bound | None:
    if isinstance(exclusive, bool):  # draft 4
        return None if limit is None else Bound(limit, exclusive)
    if limit is None or exclusive is None:
        return Bound(limit) if limit is not None else Bound(exclusive, True) if exclusive is not None else None
    return Bound(exclusive, True) if tighter(limit, exclusive) == exclusive else Bound(limit)


def _objects(rules: Rules, said: dict[str, Json], nodes: Nodes) -> None:
    node = rules.node
    rules.properties = {name: nodes.child(node, "properties", name) for name in said.get("properties", ())}
    rules.patterns = {text: nodes.child(node, "patternProperties", text) for text in said.get("patternProperties", ())}
    rules.additional = _optional(node, "additionalProperties", said, nodes)
    rules.unevaluated = _optional(node, "unevaluatedProperties", said, nodes)
    rules.names = _optional(node, "propertyNames", said, nodes)
    rules.required = tuple(said.get("required", ()))
    rules.size = said.get("minProperties", 0), said.get("maxProperties", INFINITE)
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, demanded in said.get(keyword, {}).items():
            if isinstance(demanded, list):
                rules.dependent_names.append((name, tuple(demanded)))
            else:
                rules.dependents.append((name, nodes.child(node, keyword, name)))


def _arrays(rules: Rules, said: dict[str, Json], nodes: Nodes) -> None:
    node, items = rules.node, said.get("items")
    if isinstance(items, list):
        rules.prefix = [nodes.child(node, "items", index) for index in range(len(items))]
        rules.rest = _optional(node, "additionalItems", said, nodes)
    else:
        rules.prefix = [nodes.child(node, "prefixItems", index) for index in range(len(said.get("prefixItems", ())))]
        rules.rest = _optional(node, "items", said, nodes)
    rules.unevaluated_items = _optional(node, "unevaluatedItems", said, nodes)
    rules.count = said.get("minItems", 0), said.get("maxItems", INFINITE)
    rules.unique = said.get("uniqueItems", False)
    rules.contains = _optional(node, "contains", said, nodes)
    rules.containing = said.get("minContains", 1), said.get("maxContains", INFINITE)


def _combinations(rules: Rules, said: dict[str, Json], nodes: Nodes) -> None:
    node = rules.node
    rules.all_of = list(_each(node, "allOf", said, nodes))
    if "$ref" in said:
        rules.all_of.append(nodes.target(node, said["$ref"]))
    rules.any_of = list(_each(node, "anyOf", said, nodes))
    rules.one_of = list(_each(node, "oneOf", said, nodes))
    rules.negated = _optional(node, "not", said, nodes)
    test = _optional(node, "if", said, nodes)
    if test is not None:
        rules.condition = Condition(test, _optional(node, "then", said, nodes), _optional(node, "else", said, nodes))
    rules.dynamic = any(keyword in said for keyword in DYNAMIC)


def _optional(node: Node, keyword: str, said: dict[str, Json], nodes: Nodes) -> Node | None:
    return nodes.child(node, keyword) if keyword in said else None


def _each(node: Node, keyword: str, said: dict[str, Json], nodes: Nodes) -> Iterator[Node]:
    return (nodes.child(node, keyword, index) for index in range(len(said.get(keyword, ()))))
