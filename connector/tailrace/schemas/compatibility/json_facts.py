"""Facts: everything that is known about an instance because the writer's schema allows it.

The writer's side of a comparison is a set of nodes that hold for the instance, or are known not to. It starts as the
root, and grows: by `allOf` and `$ref` at once, by one alternative of `anyOf` or `oneOf` when a case is looked at by
itself, by `if` or its opposite.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.schemas.compatibility.json_nodes import Node
from tailrace.schemas.compatibility.json_rules import NUMBERS, TYPES, Bound, Rules, identity, kinds_of, matches
from tailrace.schemas.strict_json import Json

Key = tuple[Hashable, ...]
_SAYS_NOTHING = {"title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}


class Fact(NamedTuple):
    node: Node
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Writer:
    """What holds for an instance. `settled` names the alternatives that have been chosen from already."""

    facts: tuple[Fact, ...]
    settled: frozenset[Key] = frozenset()

    @property
    def key(self) -> Key:
        return frozenset((fact.node.key, fact.holds) for fact in self.facts), self.settled

    def also(self, *facts: Fact) -> Writer:
        return Writer((*self.facts, *facts), self.settled)


@dataclass(slots=True, eq=False)
class Facts:
    """The facts of one writer, laid out by what they are about."""

    parts: list[Rules] = field(default_factory=list)
    types: frozenset[str] = TYPES
    values: dict[Hashable, Json] | None = None
    required: set[str] = field(default_factory=set)
    negated: list[Node] = field(default_factory=list)
    choices: list[tuple[Key, list[list[Fact]]]] = field(default_factory=list)
    """Alternatives one of which holds."""

    @property
    def impossible(self) -> bool:
        return not self.types or self.values == {}

    def range(self, which: Callable[[Rules], tuple[float, float]]) -> tuple[float, float]:
        """The narrowest of the ranges that all hold."""
        ranges = [which(part) for part in self.parts]
        return max((low for low, _ in ranges), default=0), min((high for _, high in ranges), default=float("inf"))

    def lower(self) -> Bound | None:
        return max((part.lower for part in self.parts if part.lower), default=None)

    def upper(self) -> Bound | None:
        bounds = (part.upper for part in self.parts if part.upper)
        return min(bounds, key=lambda bound: (bound.value, not bound.exclusive), default=None)

    def known_names(self) -> set[str]:
        return self.required.union(*(part.properties for part in self.parts))

    def about_property(self, name: str) -> tuple[list[Fact], bool]:
        """What holds for the property's value, and whether the writer's schema has anything to say about it."""
        found: list[Fact] = []
        named = name in self.required or any(name in part.depending for part in self.parts)
        for part in self.parts:
            hits = [part.properties[name]] if name in part.properties else []
            hits += [node for text, node in part.patterns.items() if matches(text, name, part.at("patternProperties"))]
            named = named or bool(hits)
            if not hits and part.additional is not None:
                hits = [part.additional]
                named = named or part.additional.schema not in (True, {})
            found += map(Fact, hits)
        return found, named

    def about_others(self, pattern: str | None) -> list[Fact]:
        """What holds for properties no part names: those that match a writer's pattern, or (None) that match none."""
        found: list[Fact] = []
        for part in self.parts:
            if pattern in part.patterns:
                found.append(Fact(part.patterns[pattern]))
            elif part.additional is not None and (pattern is None or not part.patterns):
                found.append(Fact(part.additional))
        return found

    def patterns(self) -> set[str]:
        return {text for part in self.parts for text in part.patterns}

    def about_item(self, index: int) -> list[Fact]:
        """What holds for one item; any index beyond all prefixes stands for the rest."""
        nodes = [part.prefix[index] if index < len(part.prefix) else part.rest for part in self.parts]
        return [Fact(node) for node in nodes if node is not None]

    def prefix(self) -> int:
        return max((len(part.prefix) for part in self.parts), default=0)

    def count(self) -> tuple[float, float]:
        low, high = self.range(lambda part: part.count)
        closed = [len(part.prefix) for part in self.parts if part.rest is not None and part.rest.schema is False]
        containing = [part.containing[0] for part in self.parts if part.contains is not None]
        return max([low, *containing]), min([high, *closed])


def facts_of(
    writer: Writer,
    rules: Callable[[Node], Rules],
    closing: Callable[[Rules], Rules | None],
    made: Callable[[Json], Node],
) -> Facts:
    """Follows what holds without a choice.

    `closing` puts `unevaluatedProperties` as if it were `additionalProperties`; `made` gives a node for what follows.
    """
    facts = Facts()
    seen: set[Hashable] = set()
    todo = list(writer.facts)
    while todo:
        for fact in todo:
            if (fact.node.key, fact.holds) in seen:
                continue
            seen.add((fact.node.key, fact.holds))
            if not fact.holds:
                _deny(facts, fact.node, rules)
                absent = _demanded_alone(fact.node.schema)
                todo += [Fact(made({"type": "object", "properties": {absent: False}}))] if absent is not None else []
                continue
            part = rules(fact.node)
            _assert(facts, part, writer.settled)
            closed = closing(part)
            facts.parts += [closed] if closed else []
            todo += [Fact(node) for node in part.all_of]
            todo += [Fact(part.negated, False)] if part.negated else []
        todo = [fact for fact in _dependents(facts) if (fact.node.key, fact.holds) not in seen]
    for part in facts.parts:
        for name, node in part.dependents:
            key = (part.node.key, "dependent", name, node.key)
            if (node.key, True) not in seen and key not in writer.settled:
                there = [Fact(made({"type": "object", "required": [name]})), Fact(node)]
                facts.choices.append((key, [there, [Fact(made({"properties": {name: False}}))]]))
    _narrow(facts)
    return facts


def choices(writer: Writer, facts: Facts) -> list[Writer]:
    """The writer with each alternative of one of its own choices; empty if it has none."""
    if not facts.choices:
        return []
    key, alternatives = facts.choices[0]
    return [Writer((*writer.facts, *chosen), writer.settled | {key}) for chosen in alternatives]


def _dependents(facts: Facts) -> Iterable[Fact]:
    """What holds because certain properties are there, of what is an object for sure; one may demand the next."""
    if facts.types != {"object"}:
        return ()
    demands = [demand for part in facts.parts for demand in part.dependent_names]
    known = -1
    while known < len(facts.required):
        known = len(facts.required)
        for name, demanded in demands:
            facts.required.update(demanded if name in facts.required else ())
    return [Fact(node) for part in facts.parts for name, node in part.dependents if name in facts.required]


def _assert(facts: Facts, part: Rules, settled: frozenset[Key]) -> None:
    facts.parts.append(part)
    facts.types &= part.types
    facts.required.update(part.required)
    if part.values is not None:
        fewer, more = sorted((part.values, part.values if facts.values is None else facts.values), key=len)
        facts.values = {key: value for key, value in fewer.items() if key in more}
    choices: list[tuple[str, list[list[Fact]]]] = []
    if part.any_of:
        choices.append(("anyOf", [[Fact(node)] for node in part.any_of]))
    if part.one_of:
        choices.append(("oneOf", [list(_only(part.one_of, index)) for index in range(len(part.one_of))]))
    if part.condition:
        test, then, otherwise = part.condition
        choices.append(("if", [_with(Fact(test), then), _with(Fact(test, False), otherwise)]))
    for keyword, choice in choices:
        if (part.node.key, keyword) not in settled:
            facts.choices.append(((part.node.key, keyword), choice))


def _only(nodes: list[Node], index: int) -> Iterable[Fact]:
    """One alternative holds and, being the only one, no other does."""
    yield Fact(nodes[index])
    yield from (Fact(node, False) for place, node in enumerate(nodes) if place != index)


def _with(test: Fact, node: Node | None) -> list[Fact]:
    return [test] if node is None else [test, Fact(node)]


def _deny(facts: Facts, node: Node, rules: Callable[[Node], Rules]) -> None:
    facts.negated.append(node)
    if node.schema is True or (isinstance(node.schema, dict) and node.schema.keys() - _SAYS_NOTHING <= {"type"}):
        facts.types -= rules(node).types


def _demanded_alone(schema: Json) -> str | None:
    """The name in `{"required": [name]}`, whose denial means an object without it."""
    if not isinstance(schema, dict) or schema.keys() - _SAYS_NOTHING != {"required"} or len(schema["required"]) != 1:
        return None
    return str(schema["required"][0])


def _narrow(facts: Facts) -> None:
    """Draws the conclusions that make types fewer: whole multiples are integers, few values are listed."""
    if any(part.multiple is not None and part.multiple.denominator == 1 for part in facts.parts):
        facts.types -= {"fraction"}
    if facts.values is not None:
        scalars = TYPES - {"object", "array"}
        facts.values = {
            key: value
            for key, value in facts.values.items()
            if kinds_of(value) <= facts.types
            and (not kinds_of(value) <= scalars or not any(part.refusal(value) for part in facts.parts))
        }
        facts.types &= frozenset[str]().union(*map(kinds_of, facts.values.values()))
    if facts.values is None and facts.types <= {"null", "boolean"}:
        few = [value for value in (None, False, True) if kinds_of(value) <= facts.types]
        facts.values = {identity(value): value for value in few}
    lower, upper = facts.lower(), facts.upper()
    if lower and upper and (lower.value > upper.value or (lower.value == upper.value and lower.exclusive)):
        facts.types -= NUMBERS
