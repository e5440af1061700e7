"""What a reader demands of arrays, against what the writer's facts promise about each item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.schemas.compatibility.document import Problem
from tailrace.schemas.compatibility.json_facts import Fact, Facts
from tailrace.schemas.compatibility.json_nodes import Node
from tailrace.schemas.compatibility.json_rules import Rules
from tailrace.schemas.compatibility.json_scalars import range_problems
from tailrace.schemas.compatibility.json_unevaluated import surely_evaluated

if TYPE_CHECKING:
    from tailrace.schemas.compatibility.json_schema import Comparison


def array_problems(to: Comparison, facts: Facts, rules: Rules) -> Iterator[Problem]:
    """Why an array of the writer might be refused."""
    count = facts.count()
    yield from range_problems(to, count, rules.count, rules, "Items", "arrays")
    for index, node in enumerate(rules.prefix):
        if index < count[1]:
            yield from to.below(facts.about_item(index), node)
    if rules.rest is not None:
        yield from _from(to, facts, len(rules.prefix), rules.rest)
    if rules.unevaluated_items is not None:
        evaluated = surely_evaluated(rules, to.rules)
        if not evaluated.all_items:
            yield from _from(to, facts, evaluated.items, rules.unevaluated_items)
    if rules.unique and count[1] > 1 and not any(part.unique for part in facts.parts):
        yield Problem(
            rules.at("uniqueItems"), f"demands in {to.reader} that all items differ, but {to.writer} does not"
        )
    if rules.contains is not None:
        yield from _containing_problems(to, facts, rules, rules.contains)


def _from(to: Comparison, facts: Facts, first: int, node: Node) -> Iterator[Problem]:
    """Every item from the first on: those that a prefix of the writer describes, and the rest."""
    for index in _indexes(facts, first):
        yield from to.below(facts.about_item(index), node)


def _indexes(facts: Facts, first: int) -> Iterator[int]:
    return (index for index in range(first, max(first, facts.prefix()) + 1) if index < facts.count()[1])


def _containing_problems(to: Comparison, facts: Facts, rules: Rules, node: Node) -> Iterator[Problem]:
    least, most = rules.containing
    promises = [part for part in facts.parts if part.contains is not None]
    low, high = facts.count()
    enough = least <= 0 or any(
        part.containing[0] >= least and part.contains and not to.strictly_below([Fact(part.contains)], node)
        for part in promises
    )
    # Strictly: of items that `contains` is about, what holds for any item does not tell all that is said.
    every = low >= least and not any(to.strictly_below(facts.about_item(at), node) for at in _indexes(facts, 0))
    if not enough and not every:
        yield Problem(
            rules.at("contains"),
            f"demands {least} or more items of a kind in {to.reader}; that {to.writer} demands them cannot be shown",
        )
    few = high <= most or any(
        part.containing[1] <= most and part.contains and not to.strictly_below([Fact(node)], part.contains)
        for part in promises
    )
    if not few:
        yield Problem(
            rules.at("maxContains"),
            f"demands {most} or fewer items of a kind in {to.reader}; that {to.writer} does cannot be shown",
        )
