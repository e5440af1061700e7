"""Two questions about rules: can they match the same event, and can one of them ever win?

Both are decided for all events there could be, not for samples: a rule is a set of events, given by patterns on some
variables (type, aggregate, columns, …). Two rules overlap if on every variable some value meets both. A rule can win
if an event of it escapes every rule that is tried before; each of those must be failed on at least one variable, so
per variable it is worked out which of them a value can meet, and then values are combined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tailrace.routing.automata import (
    JOIN,
    AnyOf,
    Anything,
    Effort,
    Machine,
    OfAggregate,
    OfSubject,
    OfType,
    Pair,
    explore,
)
from tailrace.routing.patterns import Pattern, matcher
from tailrace.routing.specs import Rule, TopicSpec
from tailrace.routing.view import SUBJECT, View

PIPELINE = "pipeline"
ANOTHER = "(any other)"
_PAIR = ("aggregate", "type", SUBJECT)
Example = dict[str, str]


class Alternatives:
    """The patterns of one condition. What is cheap to decide is decided without automata."""

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        self.matches = matcher(patterns)
        self.machine = AnyOf(patterns)
        self.prefixes = {pattern.prefix for pattern in patterns}
        literals = [pattern.literal for pattern in patterns if pattern.literal is not None]
        self.literals = literals if len(literals) == len(patterns) else None


@dataclass(frozen=True, slots=True)
class Known:
    """A rule as one pipeline sees it: its conditions by variable."""

    spec: TopicSpec
    rule: Rule
    on: dict[str, list[Alternatives]]

    @property
    def where(self) -> str:
        return self.spec.origin.at("match")

    @property
    def outcome(self) -> tuple[str, str, str | None]:
        return self.spec.name, self.spec.topic, self.rule.key


def overlap(one: Known, other: Known, effort: Effort) -> Example | None:
    """An event that both rules match, by its variables; None if there is none."""
    example: Example = {}
    if one.rule.pipelines and other.rule.pipelines:
        shared = [name for name in one.rule.pipelines if name in other.rule.pipelines]
        if not shared:
            return None
        example[PIPELINE] = shared[0]
    groups = [
        {name: one.on.get(name, []) + other.on.get(name, []) for name in variables}
        for variables in _grouped([one, other])
    ]
    if not all(map(_prefixes_meet, groups)):
        return None
    for conditions in sorted(groups, key=_toil):
        found = next(_values(conditions, [], effort), None)
        if found is None:
            return None
        example |= found[0]
    return example


def winnable(rule: Known, before: Sequence[Known], effort: Effort) -> Example | None:
    """An event that `rule` matches and none of `before` does; None if there is none."""
    rivals = [rival for rival in before if overlap(rule, rival, effort) is not None]
    choices: list[list[tuple[Example, frozenset[int]]]] = [_pipeline_choices(rule, rivals)]
    for variables in _grouped([rule, *rivals]):
        # Whoever has no condition here is met by any value: it must be failed on another variable.
        unmoved = frozenset(n for n, rival in enumerate(rivals) if not any(name in rival.on for name in variables))
        mine = {name: rule.on.get(name, []) for name in variables}
        theirs = [{name: rival.on.get(name, []) for name in variables} for rival in rivals]
        choices.append(_best(_values(mine, theirs, effort), unmoved))
    return _escape(choices, frozenset(range(len(rivals))), effort)


def known_rules(pairs: list[tuple[TopicSpec, Rule]], view: View) -> list[Known]:
    found = []
    for spec, rule in pairs:
        on: dict[str, list[Alternatives]] = {}
        for condition in rule.conditions:
            on.setdefault(view.variable(condition), []).append(Alternatives(condition.patterns))
        found.append(Known(spec, rule, on))
    return found


def _grouped(rules: Sequence[Known]) -> list[tuple[str, ...]]:
    """The variables that any of the rules looks at; those that depend on each other together."""
    names = list(dict.fromkeys(name for known in rules for name in known.on))
    if SUBJECT not in names:
        return [(name,) for name in names]
    return [_PAIR, *((name,) for name in names if name not in _PAIR)]


def _values(
    mine: dict[str, list[Alternatives]], theirs: Sequence[dict[str, list[Alternatives]]], effort: Effort
) -> Iterator[tuple[Example, frozenset[int]]]:
    """Values of some variables that meet all of `mine`, each with those of `theirs` that it meets, too."""
    if SUBJECT in mine:
        yield from _pairs(mine, theirs, effort)
        return
    ((name, conditions),) = mine.items()
    rivals = [rival[name] for rival in theirs]
    if name not in ("type", "aggregate") and not conditions:
        # A column may be NULL, which meets no condition.
        yield {}, frozenset(n for n, rival in enumerate(rivals) if not rival)
        return
    literals = next((condition.literals for condition in conditions if condition.literals is not None), None)
    if literals is not None:
        for text in literals:
            if all(condition.matches(text) for condition in conditions):
                met = (n for n, rival in enumerate(rivals) if all(condition.matches(text) for condition in rival))
                yield {name: text}, frozenset(met)
        return
    must: list[Machine] = [Anything(empty=name != "type"), *(condition.machine for condition in conditions)]
    flat = [(n, condition.machine) for n, rival in enumerate(rivals) for condition in rival]
    for text, met_machines in explore(must, [machine for _, machine in flat], effort):
        yield {name: text}, _all_met(flat, met_machines, len(rivals))


def _pairs(
    mine: dict[str, list[Alternatives]], theirs: Sequence[dict[str, list[Alternatives]]], effort: Effort
) -> Iterator[tuple[Example, frozenset[int]]]:
    """The same for aggregate, type and the subject that is made of both."""

    def machines(conditions: dict[str, list[Alternatives]]) -> list[Machine]:
        kinds: dict[str, Callable[[Machine], Machine]] = {"aggregate": OfAggregate, "type": OfType, SUBJECT: OfSubject}
        return [kind(condition.machine) for name, kind in kinds.items() for condition in conditions[name]]

    flat = [(n, machine) for n, rival in enumerate(theirs) for machine in machines(rival)]
    for text, met in explore([Pair(), *machines(mine)], [machine for _, machine in flat], effort):
        aggregate, _, type_name = text.partition(JOIN)
        yield {"aggregate": aggregate, "type": type_name}, _all_met(flat, met, len(theirs))


def _all_met(flat: Sequence[tuple[int, Machine]], met: frozenset[int], rivals: int) -> frozenset[int]:
    """The rivals of whom every machine was met; those without machines among them."""
    failed = {rival for number, (rival, _) in enumerate(flat) if number not in met}
    return frozenset(range(rivals)) - failed


def _best(
    values: Iterator[tuple[Example, frozenset[int]]], unmoved: frozenset[int]
) -> list[tuple[Example, frozenset[int]]]:
    """The values worth choosing from: none that meets a rival more than another does."""
    kept: list[tuple[Example, frozenset[int]]] = []
    for example, met in values:
        if met == unmoved:
            return [(example, met)]  # it cannot get better
        if not any(other <= met for _, other in kept):
            kept = [(value, other) for value, other in kept if not met < other]
            kept.append((example, met))
    return kept


def _pipeline_choices(rule: Known, rivals: list[Known]) -> list[tuple[Example, frozenset[int]]]:
    names = rule.rule.pipelines or (ANOTHER,)
    values = (
        (
            {PIPELINE: name},
            frozenset(n for n, rival in enumerate(rivals) if not rival.rule.pipelines or name in rival.rule.pipelines),
        )
        for name in names
    )
    return _best(values, frozenset(n for n, rival in enumerate(rivals) if not rival.rule.pipelines))


def _escape(choices: list[list[tuple[Example, frozenset[int]]]], met: frozenset[int], effort: Effort) -> Example | None:
    """One value of each variable, such that no rival is met by all of them."""
    effort.spend(1 + len(met))
    if not choices:
        return None if met else {}
    for example, still_met in sorted(choices[0], key=lambda choice: len(choice[1] & met)):
        rest = _escape(choices[1:], met & still_met, effort)
        if rest is not None:
            return example | rest
    return None


def _toil(group: dict[str, list[Alternatives]]) -> bool:
    """Whether automata are needed. What is decided without them is decided first."""
    return SUBJECT in group or not any(condition.literals for found in group.values() for condition in found)


def _prefixes_meet(group: dict[str, list[Alternatives]]) -> bool:
    """False if no event can meet all of them, as their first characters show; most pairs of rules end here."""
    starts = list(group.values())
    if SUBJECT in group:
        # Such a subject begins with the aggregate, if there is one.
        starts.append(group[SUBJECT] + [condition for condition in group["aggregate"] if not condition.matches("")])
    return all(
        any(a.startswith(b) or b.startswith(a) for a in one.prefixes for b in other.prefixes)
        for conditions in starts
        for one, other in itertools.combinations(conditions, 2)
    )
