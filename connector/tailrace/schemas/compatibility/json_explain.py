"""Finds the parts of a reader's schema that reject what a writer may have written, and words them.

Every part is tried alone: a schema that demands nothing but this part, at the place where it stands, is compared with
the whole writer. If it is not covered, the part is a problem, or a part inside it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import orjson

from tailrace.schemas.compatibility.document import Incomparable, Problem
from tailrace.schemas.compatibility.json_documents import SchemaDocuments, Subschema
from tailrace.schemas.messages import cut
from tailrace.schemas.strict_json import Json

MAX_WORK = 20_000_000
"""Comparisons times the size of the writer's canonical form; after that, the place reached so far is reported."""
_TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
_SHOWN = 5

Wrap = Callable[[Json], Json]
Covered = Callable[[Json], bool]

_LIMITS: Mapping[str, str] = {
    "minimum": "is {value} in {reader}, but {writer} allows smaller numbers",
    "exclusiveMinimum": "is {value} in {reader}, but {writer} allows smaller numbers",
    "maximum": "is {value} in {reader}, but {writer} allows larger numbers",
    "exclusiveMaximum": "is {value} in {reader}, but {writer} allows larger numbers",
    "multipleOf": "is {value} in {reader}, but {writer} allows other numbers",
    "minLength": "is {value} in {reader}, but {writer} allows shorter texts",
    "maxLength": "is {value} in {reader}, but {writer} allows longer texts",
    "minItems": "is {value} in {reader}, but {writer} allows fewer items",
    "maxItems": "is {value} in {reader}, but {writer} allows more items",
    "minProperties": "is {value} in {reader}, but {writer} allows fewer properties",
    "maxProperties": "is {value} in {reader}, but {writer} allows more properties",
    "uniqueItems": "demands in {reader} that all items differ, but {writer} does not",
    "pattern": "is {value} in {reader}; it cannot be shown that every text of {writer} matches",
    "format": "is {value} in {reader}; it cannot be shown that every text of {writer} has this format",
}
GENERAL = "rejects something in {reader} that {writer} may allow; it cannot be shown that they are compatible"
_CONTAINS = ("contains", "minContains", "maxContains")


class ProblemFinder:
    """`covered` says whether a schema accepts everything that the writer allows; `size` is what one answer costs."""

    def __init__(self, reading: SchemaDocuments, writing: SchemaDocuments, covered: Covered, size: int) -> None:
        self._reading, self._writing = reading, writing
        self._compare = covered
        self._seen: set[tuple[str, object]] = set()
        self._repeated = 0
        self._left = MAX_WORK // size

    def problems(self, reader: str, writer: str) -> tuple[Problem, ...]:
        """At least one problem: what cannot be located is reported for the whole schema."""
        found = list(self._inside(self._reading.root, lambda schema: schema)) or [("#", GENERAL)]
        return tuple(dict.fromkeys(Problem(place, what.format(reader=reader, writer=writer)) for place, what in found))

    def _covered(self, schema: Json) -> bool:
        self._left -= 1
        try:
            return self._left <= 0 or self._compare(schema)
        except Incomparable:
            return False

    def _below(self, node: Subschema, wrap: Wrap) -> Iterator[tuple[str, str]]:
        """The problems inside a subschema, or the subschema itself if none of its parts fails alone."""
        if self._covered(wrap(self._reading.reference(node))):
            return
        before, found = self._repeated, list(self._inside(node, wrap))
        if not found and self._repeated == before:
            found = [(self._reading.place(node), GENERAL)]
        yield from found

    def _inside(self, node: Subschema, wrap: Wrap) -> Iterator[tuple[str, str]]:
        schema, here = node.schema, (node.document, node.path)
        if schema is False:
            yield self._reading.place(node), "accepts nothing in {reader}, but {writer} allows values here"
        if here in self._seen or self._left <= 0:
            self._repeated += 1
            return
        if not isinstance(schema, dict):
            return
        self._seen.add(here)
        if isinstance(schema.get("$ref"), str):
            yield from self._below(self._reading.target(node, schema["$ref"]), wrap)
            if "/draft-0" in self._reading.draft:
                return
        for keyword, value in schema.items():
            if keyword in _LIMITS:
                yield from self._limit(node, keyword, wrap)
            elif keyword in _PARTS:
                yield from _PARTS[keyword](self, node, value, wrap)

    def _limit(self, node: Subschema, keyword: str, wrap: Wrap) -> Iterator[tuple[str, str]]:
        value, alone = node.schema[keyword], {keyword: node.schema[keyword]}
        if isinstance(value, bool) and keyword.startswith("exclusive"):  # in draft 4, a part of `minimum`
            return
        exclusive = f"exclusive{keyword.capitalize()}"
        if isinstance(node.schema.get(exclusive), bool):
            alone[exclusive] = node.schema[exclusive]
        if not self._covered(wrap(alone)):
            yield self._reading.place(node, keyword), _LIMITS[keyword].replace("{value}", _escaped(_shown(value)))

    def _type(self, node: Subschema, value: Json, wrap: Wrap) -> Iterator[tuple[str, str]]:
        if self._covered(wrap({"type": value})):
            return
        accepted = set(value if isinstance(value, list) else [value])
        others = [
            name
            for name in _TYPES
            if name not in accepted and not (name == "integer" and "number" in accepted)
            if not self._covered(wrap({"type": [other for other in _TYPES if other not in _with(name)]}))
        ]
        others = [name for name in others if not (name == "integer" and "number" in others)]
        if len(others) >= len(_TYPES) - 2 - ("number" in accepted):
            what = f"accepts only {' or '.join(sorted(accepted))} in {{reader}}, but {{writer}} allows anything here"
        else:
            what = f"does not accept {' or '.join(others) or 'everything'} in {{reader}}, but {{writer}} does"
        yield self._reading.place(node, "type"), what

    def _values(self, node: Subschema, value: Json, wrap: Wrap) -> Iterator[tuple[str, str]]:
        keyword = "enum" if node.schema.get("enum") is value else "const"
        if self._covered(wrap({keyword: value})):
            return
        allowed = value if keyword == "enum" else [value]
        more = [each for each in self._writing.listed_values if not self._covered(wrap({"not": {"enum": [each]}}))]
        more = [each for each in more if _shown(each) not in map(_shown, allowed)]
        what = "allows only listed values in {reader}, but {writer} allows others"
        if more and self._covered(wrap({"enum": [*allowed, *more]})):
            shown = ", ".join(map(_shown, more[:_SHOWN])) + (" and more" if len(more) > _SHOWN else "")
            what = f"does not allow {_escaped(shown)} in {{reader}}, but {{writer}} does"
        yield self._reading.place(node, keyword), what

    def _required(self, node: Subschema, value: Json, wrap: Wrap) -> Iterator[tuple[str, str]]:
        declared = node.schema.get("properties") or {}
        for name in [name for name in value if not self._covered(wrap({"required": [name]}))]:
            where = ("properties", name) if name in declared else ("required",)
            subject = "is" if name in declared else f"says that {_escaped(repr(cut(name)))} is"
            yield self._reading.place(node, *where), f"{subject} required in {{reader}}, but not in {{writer}}"

    def _named(self, node: Subschema, value: Json, wrap: Wrap, keyword: str) -> Iterator[tuple[str, str]]:
        for name, each in value.items():
            if isinstance(each, list):
                if not self._covered(wrap({keyword: {name: each}})):
                    needed = _escaped(", ".join(map(repr, each[:_SHOWN])))
                    what = f"demands {needed} in {{reader}}, but not in {{writer}}"
                    yield self._reading.place(node, keyword, name), what
            elif each is False and not self._covered(wrap({keyword: {name: False}})):
                what = f"forbids {_escaped(repr(cut(name)))} in {{reader}}, but {{writer}} allows it"
                yield self._reading.place(node, keyword, name), what
            else:
                yield from self._below(node.child(keyword, name), _inner(wrap, partial(_property, keyword, name)))

    def _additional(self, node: Subschema, value: Json, wrap: Wrap) -> Iterator[tuple[str, str]]:
        siblings = {
            keyword: dict.fromkeys(node.schema[keyword], True)
            for keyword in ("properties", "patternProperties")
            if isinstance(node.schema.get(keyword), dict)
        }
        inner = _inner(wrap, lambda schema: {**siblings, "additionalProperties": schema})
        if value is not False:
            yield from self._below(node.child("additionalProperties"), inner)
        elif not self._covered(inner(False)):
            place = self._reading.place(node, "additionalProperties")
            unknown = sorted(self._writing.property_names - siblings.get("properties", {}).keys())
            named = [name for name in unknown if not self._covered(wrap({"properties": {name: False}}))]
            allowing = {**siblings, "properties": {**siblings.get("properties", {}), **dict.fromkeys(named, True)}}
            if not named or not self._covered(wrap({**allowing, "additionalProperties": False})):
                yield place, "forbids further properties in {reader}, but {writer} allows them"
            else:
                for name in named:
                    yield place, f"forbids {_escaped(repr(cut(name)))} in {{reader}}, but {{writer}} allows it"

    def _single(self, node: Subschema, value: Json, wrap: Wrap, keyword: str) -> Iterator[tuple[str, str]]:
        """`items` and others that hold one schema, or in older drafts a list of them."""
        if isinstance(value, list):
            for index in range(len(value)):
                yield from self._below(node.child(keyword, index), _inner(wrap, partial(_item, keyword, index)))
            return
        siblings: dict[str, Json] = {}
        first = "items" if keyword == "additionalItems" else "prefixItems"
        if isinstance(node.schema.get(first), list) and keyword != first:
            siblings = {first: [True] * len(node.schema[first])}
        yield from self._below(node.child(keyword), _inner(wrap, lambda schema: {**siblings, keyword: schema}))

    def _all_of(self, node: Subschema, value: Json, wrap: Wrap) -> Iterator[tuple[str, str]]:
        for index in range(len(value)):
            yield from self._below(node.child("allOf", index), wrap)

    def _any_of(self, node: Subschema, value: Json, wrap: Wrap) -> Iterator[tuple[str, str]]:
        """Looks into an alternative if everything would be covered with that one open."""
        keyword = "anyOf" if node.schema.get("anyOf") is value else "oneOf"
        branches = [node.child(keyword, index) for index in range(len(value))]
        whole = [self._reading.reference(branch) for branch in branches]
        if self._covered(wrap({keyword: whole})):
            return
        place = self._reading.place(node, keyword)
        if keyword == "oneOf" and self._covered(wrap({"anyOf": whole})):
            yield place, "may match more than one alternative in {reader} for something that {writer} allows"
            return
        opened = []
        for index, branch in enumerate(branches):
            if isinstance(branch.schema, dict) and "type" in branch.schema:
                any_of = partial(_any_of_with, whole, index, {"type": branch.schema["type"]})
                if self._covered(wrap(any_of(True))):
                    opened.append((branch, any_of))
        if len(opened) == 1:
            yield from self._below(opened[0][0], _inner(wrap, opened[0][1]))
        else:
            yield place, "has no alternative in {reader} for something that {writer} allows"

    def _condition(self, node: Subschema, value: Json, wrap: Wrap) -> Iterator[tuple[str, str]]:
        condition = self._reading.reference(node.child("if"))
        for keyword in ("then", "else"):
            if keyword in node.schema:
                yield from self._below(node.child(keyword), _inner(wrap, partial(_branch, condition, keyword)))

    def _whole(self, node: Subschema, value: Json, wrap: Wrap, keyword: str) -> Iterator[tuple[str, str]]:
        """A keyword that only makes sense together with others of the same schema."""
        alone: dict[str, Json] = {keyword: self._reading.reference(node.child(keyword))}
        if keyword == "contains":
            alone |= {each: node.schema[each] for each in _CONTAINS[1:] if each in node.schema}
        elif keyword != "not":
            alone = {**self._reading.root.schema} if node == self._reading.root else node.schema
        if self._covered(wrap(alone)):
            return
        if keyword.startswith("unevaluated"):
            without = {name: each for name, each in node.schema.items() if name != keyword}
            if not self._covered(wrap(without)):
                return
        place = (
            "maxContains" if keyword == "contains" and self._covered(wrap(_without(alone, "maxContains"))) else keyword
        )
        yield self._reading.place(node, place), GENERAL


_PARTS: Mapping[str, Callable[..., Iterator[tuple[str, str]]]] = {
    "type": ProblemFinder._type,
    "enum": ProblemFinder._values,
    "const": ProblemFinder._values,
    "required": ProblemFinder._required,
    "additionalProperties": ProblemFinder._additional,
    "allOf": ProblemFinder._all_of,
    "anyOf": ProblemFinder._any_of,
    "oneOf": ProblemFinder._any_of,
    "if": ProblemFinder._condition,
    **{
        keyword: partial(ProblemFinder._named, keyword=keyword)
        for keyword in ("properties", "patternProperties", "dependentSchemas", "dependentRequired", "dependencies")
    },
    **{
        keyword: partial(ProblemFinder._single, keyword=keyword)
        for keyword in ("items", "prefixItems", "additionalItems", "propertyNames")
    },
    **{
        keyword: partial(ProblemFinder._whole, keyword=keyword)
        for keyword in ("not", "contains", "unevaluatedProperties", "unevaluatedItems")
    },
}


def _property(keyword: str, name: str, schema: Json) -> Json:
    return {keyword: {name: schema}}


def _item(keyword: str, index: int, schema: Json) -> Json:
    return {keyword: [*[True] * index, schema]}


def _branch(condition: Json, keyword: str, schema: Json) -> Json:
    return {"if": condition, keyword: schema}


def _any_of_with(branches: list[Json], index: int, kind: Json, schema: Json) -> Json:
    return {"anyOf": [*branches[:index], {"allOf": [kind, schema]}, *branches[index + 1 :]]}


def _inner(wrap: Wrap, place: Wrap) -> Wrap:
    return lambda schema: wrap(place(schema))


def _with(name: str) -> tuple[str, ...]:
    """A type and the types that include it."""
    return {"integer": ("integer", "number"), "number": ("number",)}.get(name, (name,))


def _without(schema: Mapping[str, Json], keyword: str) -> dict[str, Json]:
    return {name: value for name, value in schema.items() if name != keyword}


def _shown(value: Json) -> str:
    return cut(orjson.dumps(value, default=str).decode())


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
