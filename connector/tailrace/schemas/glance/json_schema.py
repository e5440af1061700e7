"""A JSON Schema -> how texts that obey it are spelled. Pure.

A keyword that is not known here makes the whole schema Unknown: it might forbid something. What is known is what most
schemas of events are made of. Without `type`, the keywords that say something about one type are taken to mean that
type: to know less is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.schemas.glance import numbers, texts
from tailrace.schemas.glance.spelling import MOST_ITEMS, Choice, Items, Members, Part, Scalar, Unknown
from tailrace.schemas.json_text import Json

ANNOTATIONS = frozenset(
    {
        "$schema", "$comment", "$defs", "definitions", "title", "description", "default", "example", "examples",
        "deprecated", "readOnly", "writeOnly",
    }
)  # fmt: skip
OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "format", "minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
}
KNOWN = ANNOTATIONS.union({"type", "enum", "const", "$ref", "anyOf", "oneOf"}, *OF_TYPE.values())
ALONE = ("$ref", "anyOf", "oneOf")
"""Beside these, nothing but annotations is understood."""
DEEPEST = 20
MOST_PARTS = 500

_TEXT = frozenset({str})
_NUMBERS = frozenset({int, float})
_BOOLEAN = Scalar("(?>true|false)", frozenset({bool}))
_NULL = Scalar("null", frozenset({type(None)}))
_ANY = Choice(
    (Scalar(f'"{texts.string()}"', _TEXT), Scalar(numbers.ANY_NUMBER, _NUMBERS), _BOOLEAN, _NULL),
)
"""A value about which nothing is said; containers are left to those who read them."""


def parts_of(document: Json) -> Part:
    """How texts that obey `document` are spelled; Unknown if that cannot be said."""
    # Its own address matters to others alone; that of a part of it would matter to references.
    top = {name: said for name, said in document.items() if name != "$id"} if isinstance(document, dict) else document
    return _Reader(top).part(top, ())


class _Reader:
    def __init__(self, document: Json) -> None:
        self._document = document
        self._count = 0
        self._of_type: Mapping[str, Callable[[dict[str, Any], tuple[str, ...]], Part]] = {
            "object": self._object,
            "array": self._array,
            "string": _string,
            "number": _number,
            "integer": _integer,
            "boolean": lambda *_: _BOOLEAN,
            "null": lambda *_: _NULL,
        }

    def part(self, schema: Json, within: tuple[str, ...]) -> Part:
        """`within` are the references that led here, and one more word for each level."""
        self._count += 1
        if self._count > MOST_PARTS or len(within) > DEEPEST:
            raise Unknown
        if schema is True:
            return _ANY
        if not isinstance(schema, dict) or not KNOWN.issuperset(schema):
            raise Unknown
        said = schema.keys() - ANNOTATIONS
        alone = said.intersection(ALONE)
        if alone and len(said) > 1:
            raise Unknown
        if "$ref" in alone:
            return self._referred(schema["$ref"], within)
        if alone:
            return self._choice([self.part(option, (*within, "")) for option in schema[alone.pop()]])
        if "enum" in said or "const" in said:
            return _listed(schema, said)
        types = _types(schema, said)
        return self._choice([self._of_type[name](schema, within) for name in types]) if types else _ANY

    def _choice(self, options: list[Part]) -> Part:
        """With no two for one type of value, whatever one of them allows no other one does."""
        if sum(len(option.takes) for option in options) > len(frozenset[type]().union(*(o.takes for o in options))):
            raise Unknown
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _referred(self, reference: Json, within: tuple[str, ...]) -> Part:
        if not isinstance(reference, str) or not re.fullmatch(r"#(/[A-Za-z0-9_.$-]+)+", reference, re.ASCII):
            raise Unknown
        if reference in within:
            raise Unknown  # it holds itself
        found = self._document
        for name in reference.split("/")[1:]:
            if not isinstance(found, dict) or name not in found or "$id" in found or "id" in found:
                raise Unknown
            found = found[name]
        return self.part(found, (*within, reference))

    def _object(self, schema: dict[str, Any], within: tuple[str, ...]) -> Part:
        other = schema.get("additionalProperties", True)
        return Members(
            {key: self.part(value, (*within, "")) for key, value in schema.get("properties", {}).items()},
            frozenset(schema.get("required", ())),
            None if other is False else self.part(other, (*within, "")),
        )

    def _array(self, schema: dict[str, Any], within: tuple[str, ...]) -> Part:
        least, most = _count(schema, "minItems", 0), _count(schema, "maxItems", MOST_ITEMS)
        if least > min(most, MOST_ITEMS):
            raise Unknown
        return Items(self.part(schema.get("items", True), (*within, "")), least, most)


def _types(schema: dict[str, Any], said: set[str]) -> list[str]:
    """The types that a schema allows and something is known about; none if it says nothing at all."""
    if "type" in said:
        named = schema["type"]
        types = [named] if isinstance(named, str) else list(named)
        return [name for name in types if name != "integer" or "number" not in types]
    hinted = [name for name, keywords in OF_TYPE.items() if keywords & said]
    if len(hinted) > 1:
        raise Unknown
    return hinted


def _listed(schema: dict[str, Any], said: set[str]) -> Part:
    """`enum` or `const`, of texts and whole numbers, truth values and null."""
    if len(said - {"type"}) > 1:
        raise Unknown
    values = schema["enum"] if "enum" in said else [schema["const"]]
    if "type" in said:
        types = _types(schema, {"type"})
        values = [value for value in values if _NAMES.get(type(value), frozenset()).intersection(types)]
    known = [value for value in values if type(value) in _NAMES]
    if not known:
        raise Unknown
    # The longest first, as a shorter number may begin it.
    spelled = sorted((json.dumps(value, ensure_ascii=False) for value in known), key=len, reverse=True)
    takes = frozenset().union(*(_NUMBERS if type(value) is int else {type(value)} for value in known))
    return Scalar(f"(?>{'|'.join(map(re.escape, spelled))})", takes)


_NAMES: Mapping[type, frozenset[str]] = {
    str: frozenset({"string"}),
    int: frozenset({"integer", "number"}),
    bool: frozenset({"boolean"}),
    type(None): frozenset({"null"}),
}


def _string(schema: dict[str, Any], _: object) -> Part:
    longest = _count(schema, "maxLength", -1)
    inner = texts.string(
        pattern=schema.get("pattern"),
        format=schema.get("format"),
        shortest=_count(schema, "minLength", 0),
        longest=None if longest < 0 else longest,
    )
    return Scalar(f'"{inner}"', _TEXT)


def _integer(schema: dict[str, Any], _: object) -> Part:
    low, high, above, below = _bounds(schema)
    first, last = low if low is None else low + above, high if high is None else high - below
    return Scalar(numbers.whole(first, last), _NUMBERS)


def _number(schema: dict[str, Any], _: object) -> Part:
    low, high, above, below = _bounds(schema)
    return Scalar(numbers.number(low, high, above=above, below=below), _NUMBERS)


def _bounds(schema: dict[str, Any]) -> tuple[int | None, int | None, bool, bool]:
    """The lowest and the highest number, and whether the bound itself is out. Only whole bounds are understood."""
    low, above = _whole(schema, "minimum"), _whole(schema, "exclusiveMinimum")
    high, below = _whole(schema, "maximum"), _whole(schema, "exclusiveMaximum")
    if (low is not None and above is not None) or (high is not None and below is not None):
        raise Unknown
    return above if low is None else low, below if high is None else high, above is not None, below is not None


def _whole(schema: dict[str, Any], keyword: str) -> int | None:
    bound = schema.get(keyword)
    if bound is None:
        return None
    if type(bound) not in (int, float) or bound != int(bound) or abs(bound) > numbers.MOST:
        raise Unknown
    return int(bound)


def _count(schema: dict[str, Any], keyword: str, default: int) -> int:
    count = schema.get(keyword, default)
    if type(count) is not int or count > 1_000_000:
        raise Unknown
    return count
