"""Whether no instance can obey both the writer's facts and a reader's node.

`oneOf` and `not` ask for that. It is shown by a reason or not at all: other types, other listed values, ranges that
do not meet, a property that one demands and the other refuses, or that the facts say outright that it does not hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.schemas.compatibility.json_facts import Fact, Facts, Writer
from tailrace.schemas.compatibility.json_nodes import Node
from tailrace.schemas.compatibility.json_objects import apart_objects
from tailrace.schemas.compatibility.json_rules import Rules, kinds_of
from tailrace.schemas.compatibility.json_scalars import apart_numbers

if TYPE_CHECKING:
    from tailrace.schemas.compatibility.json_schema import Comparison


def apart(to: Comparison, writer: Writer, node: Node) -> bool:
    """True only if it can be shown without looking at the writer's alternatives one by one."""
    facts, rules = to.facts(writer), to.rules(node)
    if facts.impossible or _excluded(to, writer, facts, node, rules) or _apart_in_values(facts, rules):
        return True
    kinds = facts.types & rules.types
    if rules.values is not None:
        kinds &= frozenset[str]().union(*map(kinds_of, rules.values.values()))
    return all(_apart_in_kind(to, facts, rules, kind) for kind in sorted(kinds))


def _excluded(to: Comparison, writer: Writer, facts: Facts, node: Node, rules: Rules) -> bool:
    """By the way schemas are combined."""
    if any(not to.strictly(Writer((Fact(node),)), denied) for denied in facts.negated):
        return True
    if rules.negated is not None and not to.strictly(writer, rules.negated):
        return True
    return any(to.apart(writer, each) for each in rules.all_of) or any(
        bool(choice) and all(to.apart(writer, each) for each in choice) for choice in (rules.any_of, rules.one_of)
    )


def _apart_in_values(facts: Facts, rules: Rules) -> bool:
    values = facts.values
    if values is not None and all(
        not isinstance(value, dict | list) and rules.refusal(value) for value in values.values()
    ):
        return True
    if rules.values is None:
        return False
    if values is not None:
        return values.keys().isdisjoint(rules.values)
    return all(
        not kinds_of(value) <= facts.types
        or (not isinstance(value, dict | list) and any(part.refusal(value) for part in facts.parts))
        for value in rules.values.values()
    )


def _apart_in_kind(to: Comparison, facts: Facts, rules: Rules, kind: str) -> bool:
    if kind in ("integer", "fraction"):
        return apart_numbers(facts, rules)
    if kind == "string":
        return _no_overlap(facts.range(lambda part: part.length), rules.length)
    if kind == "array":
        return _no_overlap(facts.count(), rules.count)
    return kind == "object" and apart_objects(to, facts, rules)


def _no_overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] > other[1] or other[0] > one[1]
