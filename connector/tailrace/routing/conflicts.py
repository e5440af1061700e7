"""Finds rules that contradict each other: two that can match the same event, and one that can never win.

Both findings are proven before they are reported, so a valid folder never raises. Two rules overlap if an example is
found that the matchers of both accept. A rule can never win if each combination of its patterns is covered by a single
rule that is tried before it. Rarer contradictions are missed, such as a rule that only several others together cover:
routing stays well-defined without the message, because rules are tried in a fixed order and the first match wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailrace.errors import ConfigError
from tailrace.routing.patterns import Pattern, Piece, common_text, covers, glob, literal, matcher
from tailrace.routing.specs import Rule, TopicSpec, in_order
from tailrace.routing.view import SUBJECT, View

PIPELINE = "pipeline"
MAX_COMBINATIONS = 1000
"""A rule with more combinations of patterns is not checked for being covered."""
ANOTHER = "(any other)"
_ANYTHING, _NOT_EMPTY = glob("*"), glob("?*")
_DOT = glob(".").pieces
Example = dict[str, str]


@dataclass(frozen=True, slots=True)
class ComparedRule:
    """A rule with its patterns by the variable that they look at, such as `type` or `column tenant`."""

    spec: TopicSpec
    rule: Rule
    patterns: dict[str, list[tuple[Pattern, ...]]]
    """The conditions of each variable, all of which must hold. Nearly always there is one."""
    matchers: dict[str, list[Callable[[str], object]]]

    @property
    def where(self) -> str:
        return self.spec.origin.at("match")

    @property
    def outcome(self) -> tuple[str, str, str | None]:
        return self.spec.name, self.spec.topic, self.rule.key

    def accepts(self, variable: str, text: str) -> bool:
        return all(matches(text) for matches in self.matchers.get(variable, ()))


def check_rules(specs: list[TopicSpec], view: View | None) -> None:
    """Raises ConfigError for contradicting rules. Without a view, only for what is wrong for every pipeline."""
    pairs = in_order(specs)
    if view is not None:
        for spec, rule in pairs:
            if view.sees(rule):
                view.require_readable(spec, rule)
    # A subject from its own column may be anything: more rules overlap, fewer are covered by others.
    _check_overlaps(compared_rules(pairs, view or View()), view)
    _check_reach(compared_rules(pairs, view or View(subject="subject")), view)


def compared_rules(pairs: list[tuple[TopicSpec, Rule]], view: View) -> list[ComparedRule]:
    rules = []
    for spec, rule in pairs:
        patterns: dict[str, list[tuple[Pattern, ...]]] = {}
        for condition in rule.conditions:
            patterns.setdefault(view.variable(condition), []).append(condition.patterns)
        matchers = {variable: [matcher(each) for each in conditions] for variable, conditions in patterns.items()}
        rules.append(ComparedRule(spec, rule, patterns, matchers))
    return rules


def overlap(one: ComparedRule, other: ComparedRule) -> Example | None:
    """Returns an event, by its variables, that both rules match; None if none was found."""
    example: Example = {}
    if one.rule.pipelines and other.rule.pipelines:
        shared = [name for name in one.rule.pipelines if name in other.rule.pipelines]
        if not shared:
            return None
        example[PIPELINE] = shared[0]
    variables = list(dict.fromkeys([*one.patterns, *other.patterns]))
    if not all(any(_combinations(one, other, variable)) for variable in variables):
        return None
    if SUBJECT in variables:
        found = _common_subject(one, other)
        if found is None:
            return None
        example |= found
        variables = [variable for variable in variables if variable not in (SUBJECT, "aggregate", "type")]
    for variable in variables:
        extra = [_NOT_EMPTY.pieces] if variable == "type" else []
        texts = (common_text([*extra, *(each.pieces for each in both)]) for both in _combinations(one, other, variable))
        text = next((text for text in texts if text is not None and _accepted(one, other, {variable: text})), None)
        if text is None:
            return None
        example[variable] = text
    return example


def _combinations(one: ComparedRule, other: ComparedRule, variable: str) -> Iterator[tuple[Pattern, ...]]:
    """One pattern of each condition, in every combination, without those whose first characters already differ."""
    for both in itertools.product(*one.patterns.get(variable, ()), *other.patterns.get(variable, ())):
        longest = max((pattern.prefix for pattern in both), key=len)
        literal = next((pattern.literal for pattern in both if pattern.literal is not None), None)
        if all(longest.startswith(pattern.prefix) for pattern in both) and literal in (None, longest):
            yield both


def _common_subject(one: ComparedRule, other: ComparedRule) -> Example | None:
    """Finds an aggregate and a type for rules of which one looks at the subject that is made of them.

    The text that fits all conditions as patterns of the subject is split again and tried on the rules themselves.
    """
    for a, b in itertools.product(_on_subject(one), _on_subject(other)):
        text = common_text([*a, *b])
        if text is None:
            continue
        splits = [(text[:at], text[at + 1 :]) for at in range(len(text) - 1, 0, -1) if text[at] == "."]
        for aggregate, type_name in [*splits, ("", text)]:
            example = {"aggregate": aggregate, "type": type_name}
            if type_name and _accepted(one, other, example | {SUBJECT: text}):
                return example
    return None


def _on_subject(rule: ComparedRule) -> Iterator[list[tuple[Piece, ...]]]:
    """The conditions on subject, aggregate and type as patterns of `<aggregate>.<type>`, or of the type alone."""
    conditions = (rule.patterns.get(variable, []) for variable in (SUBJECT, "aggregate", "type"))
    subjects, aggregates, types = ([*itertools.product(*each)] for each in conditions)
    for own, first, second in itertools.product(subjects, aggregates, types):
        found = [pattern.pieces for pattern in own]
        if not first and not second:
            yield found
            continue
        joined = itertools.product(first or (_ANYTHING,), second or (_NOT_EMPTY,))
        yield found + [a.pieces + _DOT + b.pieces for a, b in joined]
        if rule.accepts("aggregate", ""):
            yield found + [pattern.pieces for pattern in second]


def _accepted(one: ComparedRule, other: ComparedRule, texts: Example) -> bool:
    return all(rule.accepts(variable, text) for rule in (one, other) for variable, text in texts.items())


def covering(rule: ComparedRule, before: list[ComparedRule]) -> list[ComparedRule]:
    """Returns rules that together take every event of `rule`, each all events of some of its patterns; else nothing."""
    variables = [(variable, condition) for variable, conditions in rule.patterns.items() for condition in conditions]
    if math.prod(len(condition) for _, condition in variables) > MAX_COMBINATIONS:
        return []
    found: list[ComparedRule] = []
    for pipeline in rule.rule.pipelines or (ANOTHER,):
        rivals = [each for each in before if not each.rule.pipelines or pipeline in each.rule.pipelines]
        for chosen in itertools.product(*(condition for _, condition in variables)):
            narrow: dict[str, list[Pattern]] = {"type": [_NOT_EMPTY], "aggregate": [_ANYTHING]}
            for (variable, _), pattern in zip(variables, chosen, strict=True):
                narrow.setdefault(variable, []).append(pattern)
            winner = next((rival for rival in rivals if _takes_all(rival, narrow)), None)
            if winner is None:
                return []
            found.append(winner)
    return list({id(each): each for each in found}.values())


def _takes_all(rival: ComparedRule, narrow: dict[str, list[Pattern]]) -> bool:
    """Whether each condition of the rival is met by every value that matches these patterns. A column may be NULL."""
    for variable, conditions in rival.patterns.items():
        known = narrow.get(variable, [])
        names = [each[-1].literal for each in (narrow["aggregate"], narrow["type"])]
        if variable == SUBJECT and all(names):
            known = [*known, literal(f"{names[0]}.{names[1]}")]
        if not all(any(covers(wide, each) for wide in condition for each in known) for condition in conditions):
            return False
    return True


def _check_overlaps(rules: list[ComparedRule], view: View | None) -> None:
    for number, rule in enumerate(rules):
        for other in rules[number + 1 :]:
            if (other.rule.last, other.rule.priority) != (rule.rule.last, rule.rule.priority):
                break  # they are sorted
            if rule.rule.last:
                raise ConfigError(
                    f'{other.where}: match: "*" is given twice, here and in {rule.where}',
                    why="It takes every event that no other rule takes. Only one rule can do that.",
                    remedy="Keep it in one file.",
                )
            # Rules with the same outcome may overlap.
            if other.outcome == rule.outcome or not _concern(view, rule, other):
                continue
            example = overlap(rule, other)
            if example is not None:
                raise ConfigError(
                    f"{other.where}: this rule ({other.spec.name}) and the one in {rule.where} ({rule.spec.name}) "
                    f"can match the same event: {_described(example)}",
                    why=f"Both have priority {rule.rule.priority}, so it is not defined which of them applies.",
                    remedy="Give one of them a `priority` (the higher is tried first), or narrow one of the two.",
                )


def _check_reach(rules: list[ComparedRule], view: View | None) -> None:
    for rule in rules:
        before = [other for other in rules if _rank(other) < _rank(rule)]
        if not before or not _concern(view, rule) or not (found := covering(rule, before)):
            continue
        shown = ", ".join(f"{other.where} ({other.spec.name})" for other in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ConfigError(
            f"{rule.where}: this rule ({rule.spec.name}) can never win",
            why=f"Every event it matches is taken before by {shown}{more}.",
            remedy="Raise its `priority`, narrow the others, or remove it.",
        )


def _concern(view: View | None, *rules: ComparedRule) -> bool:
    return view is None or all(view.sees(each.rule) for each in rules)


def _rank(compared: ComparedRule) -> tuple[bool, int]:
    return compared.rule.last, -compared.rule.priority


def _described(example: Example) -> str:
    """`type 'OrderPlaced', column tenant 'eu-1'`"""
    if not example:
        return "any event"
    return ", ".join(f"{name} {value!r}" for name, value in sorted(example.items()))
