"""`anyOf`, `oneOf`, `not`, `if`: what a reader demands by combining schemas, and how a writer is taken apart for it.

A reader's alternatives need not each accept everything: each case of the writer must find one that does. So where
the whole cannot be shown to fit, it is split into cases: its own alternatives, its listed values, its types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.schemas.compatibility.document import Problem
from tailrace.schemas.compatibility.json_facts import Fact, Facts, Key, Writer, choices
from tailrace.schemas.compatibility.json_nodes import Node
from tailrace.schemas.compatibility.json_rules import NUMBERS, Rules, identity
from tailrace.schemas.strict_json import Json

if TYPE_CHECKING:
    from tailrace.schemas.compatibility.json_schema import Comparison

_VALUES: Key = ("values",)


def combination_problems(to: Comparison, writer: Writer, rules: Rules) -> Iterator[Problem]:
    for node in rules.all_of:
        yield from to.covers(writer, node)
    if rules.any_of and all(to.covers(writer, node) for node in rules.any_of):
        yield from _nearest(to, writer, rules.any_of, rules.at("anyOf"))
    if rules.one_of:
        yield from _one_of_problems(to, writer, rules)
    if rules.negated is not None and not to.apart(writer, rules.negated):
        what = f"forbids something in {to.reader}; that {to.writer} never allows it cannot be shown"
        yield Problem(rules.at("not"), what)
    if rules.condition is not None:
        test, then, otherwise = rules.condition
        if then is not None and not to.apart(writer, test):
            yield from to.covers(writer.also(Fact(test)), then)
        if otherwise is not None and to.strictly(writer, test):
            yield from to.covers(writer.also(Fact(test, False)), otherwise)
    if rules.dynamic:
        yield Problem(rules.node.place, "has a reference that leads elsewhere by who uses it, which is not compared")


def alternatives(to: Comparison, writer: Writer, facts: Facts) -> list[Writer]:
    """Cases that say more about the instance than the writer by itself; empty if there are none."""
    if facts.choices:
        return choices(writer, facts)
    values = list((facts.values or {}).values())
    if _VALUES not in writer.settled and any(isinstance(value, dict | list) for value in values):
        return _each_value(to, writer, values)
    return []


def cases(to: Comparison, writer: Writer, facts: Facts, rules: Rules) -> list[Writer]:
    """Smaller writers that together are this one; empty if splitting it would not help."""
    smaller = alternatives(to, writer, facts)
    if smaller or not rules.combines:
        return smaller
    values = list((facts.values or {}).values())
    if len(values) > 1 and _VALUES not in writer.settled:
        return _each_value(to, writer, values)
    if len(facts.types) < 2:
        return []
    integer, number = Fact(to.node({"type": "integer"})), Fact(to.node({"type": "number"}))
    if facts.types == NUMBERS:
        return [writer.also(integer), writer.also(Fact(integer.node, False))]
    kinds = [number] if facts.types >= NUMBERS else [integer] if "integer" in facts.types else []
    kinds += [number] if "fraction" in facts.types and not kinds else []
    kinds += [Fact(to.node({"type": kind})) for kind in sorted(facts.types - NUMBERS)]
    return [writer.also(kind) for kind in kinds]


def _each_value(to: Comparison, writer: Writer, values: list[Json]) -> list[Writer]:
    return [Writer((*_exactly(to, value), *writer.facts), writer.settled | {_VALUES}) for value in values]


def _exactly(to: Comparison, value: Json) -> list[Fact]:
    """That the instance is this value; of objects and arrays also said in terms of their parts."""
    facts = [Fact(to.node({"const": value}))]
    if isinstance(value, dict):
        parts = {name: {"const": part} for name, part in value.items()}
        facts.append(Fact(to.node({"properties": parts, "required": list(value), "additionalProperties": False})))
    if isinstance(value, list):
        items = [{"const": part} for part in value]
        differ = len({identity(part) for part in value}) == len(value)
        shape = {"prefixItems": items, "items": False, "minItems": len(value), "uniqueItems": differ}
        facts.append(Fact(to.node(shape)))
    return facts


def _one_of_problems(to: Comparison, writer: Writer, rules: Rules) -> Iterator[Problem]:
    fitting = [node for node in rules.one_of if not to.covers(writer, node)]
    if not fitting:
        yield from _nearest(to, writer, rules.one_of, rules.at("oneOf"))
    elif not all(node is fitting[0] or to.apart(writer, node) for node in rules.one_of):
        what = f"may match more than one alternative in {to.reader}; that {to.writer} never does cannot be shown"
        yield Problem(rules.at("oneOf"), what)


def _nearest(to: Comparison, writer: Writer, nodes: list[Node], place: str) -> Iterator[Problem]:
    """If only one alternative can be meant, what is wrong with that one."""
    meant = [node for node in nodes if not to.apart(writer, node)]
    if len(meant) == 1:
        yield from to.covers(writer, meant[0])
    else:
        yield Problem(place, f"has no alternative in {to.reader} that takes everything {to.writer} allows here")
