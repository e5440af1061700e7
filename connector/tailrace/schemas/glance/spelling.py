"""How the texts of a schema are spelled: parts that know their regular expression. Pure.

The keys of an object may stand in any order, but the same service nearly always writes them in the same one. So an
object knows only the order that it has seen, and learns it from payloads that were found to obey by reading them. A
part may know less than its schema allows; it never knows a text that its schema forbids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tailrace.schemas.json_text import Json

MOST_MEMBERS = 100
"""Of one object: keys beyond that are data."""
MOST_ITEMS = 1000
LOOKED_AT = 10
"""Items of an array that an order is learned from; they are alike."""
NEVER = "(?!)"


class Unknown(Exception):
    """Nothing is known at a glance about this part of a schema, so nothing about the whole."""


class Style(NamedTuple):
    """What stands between members, and between a key and its value."""

    comma: str
    colon: str


STYLES = (Style(", ", ": "), Style(",", ":"))
"""As Postgres and Python write, and as everybody else does."""


class Part(Protocol):
    @property
    def takes(self) -> frozenset[type]:
        """The JSON types of the values that it may spell."""

    def spell(self, style: Style) -> str:
        """The regular expression, of texts that it knows and no others. What it takes it never gives back."""

    def learn(self, value: Json) -> bool:
        """Whether something was learned from a value that obeys."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that is no container."""

    expression: str
    takes: frozenset[type]

    def spell(self, style: Style) -> str:
        return self.expression

    def learn(self, value: Json) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Items:
    """An array of `least` to `most` items."""

    item: Part
    least: int = 0
    most: int = MOST_ITEMS
    takes: frozenset[type] = frozenset({list})

    def spell(self, style: Style) -> str:
        item = f"{_between('[', style)}{self.item.spell(style)}"
        return rf"\[(?:{item}){{{self.least},{min(self.most, MOST_ITEMS)}}}+\]"

    def learn(self, value: Json) -> bool:
        return type(value) is list and _any(self.item.learn(item) for item in value[:LOOKED_AT])


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """An object. `other` spells the values of keys that are not among the `properties`, if any may be there."""

    properties: Mapping[str, Part]
    required: frozenset[str]
    other: Part | None
    order: list[str] = field(default_factory=list)
    takes: frozenset[type] = frozenset({dict})

    def part(self, key: str) -> Part | None:
        return self.properties.get(key, self.other)

    def spell(self, style: Style) -> str:
        if not self.order or not self.required.issubset(self.order):
            return NEVER
        found, before = "", ""
        for key in self.order:
            part = self.part(key)
            value = NEVER if part is None else part.spell(style)
            member = f"{before}{re.escape(json.dumps(key, ensure_ascii=False))}{style.colon}{value}"
            found += member if key in self.required else f"(?:{member})?+"
            # Behind a key that must be there comes a comma; as long as there was none such, it depends.
            certain = before == style.comma or key in self.required
            before = style.comma if certain else _between("{", style)
        return rf"\{{{found}\}}"

    def learn(self, value: Json) -> bool:
        if type(value) is not dict:
            return False
        parts = {key: part for key in value if (part := self.part(key)) is not None}
        learned = self._learn_order([*parts])
        return _any(part.learn(value[key]) for key, part in parts.items()) or learned

    def _learn_order(self, keys: list[str]) -> bool:
        """Puts new keys behind those that they came behind. Nothing is learned from another order than before."""
        known = {key: place for place, key in enumerate(self.order)}
        places = [known[key] for key in keys if key in known]
        new = [key for key in keys if key not in known]
        if not new or places != sorted(places) or len(known) + len(new) > MOST_MEMBERS:
            return False
        at = 0
        for key in keys:
            if key in known:
                at = self.order.index(key, at) + 1
            else:
                self.order.insert(at, key)
                at += 1
        return True


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several parts that take values of different types, so that no text is spelled by two of them."""

    options: tuple[Part, ...]

    @property
    def takes(self) -> frozenset[type]:
        return frozenset[type]().union(*(option.takes for option in self.options))

    def spell(self, style: Style) -> str:
        return f"(?>{'|'.join(option.spell(style) for option in self.options)})"

    def learn(self, value: Json) -> bool:
        return _any(option.learn(value) for option in self.options if type(value) in option.takes)


def _between(opening: str, style: Style) -> str:
    """Nothing directly behind what opens a container, elsewhere a comma. No value ends with what opens one."""
    opening = re.escape(opening)
    return rf"(?:(?<={opening})|(?<!{opening}){style.comma})"


def _any(learned: Iterable[bool]) -> bool:
    """Whether one of them is true, having asked all."""
    return sum(learned) > 0
