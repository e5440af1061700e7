"""Rules that contradict each other: two that can match the same event, and those that can never win."""

from __future__ import annotations

from tailrace.errors import ConfigError
from tailrace.routing.automata import STEPS, Effort, TooHard
from tailrace.routing.comparing import Example, Known, known_rules, overlap, winnable
from tailrace.routing.specs import TopicSpec, in_order
from tailrace.routing.view import View

STEPS_PER_PAIR = 250
"""What a large folder of simple rules may take beyond the bound for a small one of entangled rules."""


def check_rules(specs: list[TopicSpec], view: View | None) -> None:
    """ConfigError for rules that contradict each other. Without a view, only for what no view could make good."""
    pairs = in_order(specs)
    if view is not None:
        for spec, rule in pairs:
            if view.sees(rule):
                view.require_readable(spec, rule)
    effort = Effort(STEPS + STEPS_PER_PAIR * len(pairs) ** 2)
    # A subject that has a column of its own may be anything: more rules overlap, fewer are covered by others.
    _check_overlaps(known_rules(pairs, view or View()), view, effort)
    _check_reach(known_rules(pairs, view or View(subject="subject")), view, effort)


def _check_overlaps(rules: list[Known], view: View | None, effort: Effort) -> None:
    for number, rule in enumerate(rules):
        for other in rules[number + 1 :]:
            if (other.rule.last, other.rule.priority) != (rule.rule.last, rule.rule.priority):
                break  # they are sorted
            if rule.rule.last:
                raise ConfigError(
                    f'{other.where}: match: "*" is given twice, here and in {rule.where}',
                    why="It takes every event that no other rule takes, which only one can do.",
                    remedy="Keep it in one file.",
                )
            # Whichever of the two took the event, it would go the same way.
            if other.outcome == rule.outcome or not _concern(view, rule, other):
                continue
            try:
                example = overlap(rule, other, effort)
            except TooHard:
                raise _too_hard(rule, other) from None
            if example is not None:
                raise ConfigError(
                    f"{other.where}: this rule ({other.spec.name}) and the one in {rule.where} ({rule.spec.name}) "
                    f"can match the same event: {_told(example)}",
                    why=f"Both have priority {rule.rule.priority}, so nothing says which of them is meant.",
                    remedy="Give one of them a `priority` (the higher is tried first), or narrow one of the two.",
                )


def _check_reach(rules: list[Known], view: View | None, effort: Effort) -> None:
    for rule in rules:
        before = [other for other in rules if _rank(other) < _rank(rule)]
        if not before or not _concern(view, rule):
            continue
        try:
            if winnable(rule, before, effort) is not None:
                continue
            covering = [other for other in before if overlap(rule, other, effort) is not None]
        except TooHard:
            raise _too_hard(rule, *before) from None
        shown = ", ".join(f"{other.where} ({other.spec.name})" for other in covering[:3])
        more = f" and {len(covering) - 3} more" if len(covering) > 3 else ""
        raise ConfigError(
            f"{rule.where}: this rule ({rule.spec.name}) can never win",
            why=f"Every event it matches is taken before by {shown}{more}.",
            remedy="Raise its `priority`, narrow the others, or remove it.",
        )


def _concern(view: View | None, *rules: Known) -> bool:
    return view is None or all(view.sees(known.rule) for known in rules)


def _rank(known: Known) -> tuple[bool, int]:
    return known.rule.last, -known.rule.priority


def _told(example: Example) -> str:
    """`type 'OrderPlaced', column tenant 'eu-1'`"""
    if not example:
        return "any event"
    return ", ".join(f"{name} {value!r}" for name, value in sorted(example.items()))


def _too_hard(rule: Known, *others: Known) -> ConfigError:
    shown = ", ".join(other.where for other in others[:3])
    return ConfigError(
        f"{rule.where}: this rule cannot be compared with {shown}{' and others' if len(others) > 3 else ''}",
        why="Their patterns are so many or so entangled that the work would never end.",
        remedy="Use fewer wildcards in one pattern, or name types and aggregates in full.",
    )
