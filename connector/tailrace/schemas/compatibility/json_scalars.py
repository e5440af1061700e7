"""What a reader demands of types, listed values, numbers and strings, against what the writer's facts promise."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

from tailrace.schemas.compatibility.document import Problem
from tailrace.schemas.compatibility.json_facts import Facts
from tailrace.schemas.compatibility.json_rules import INFINITE, NUMBERS, TYPES, Bound, Rules
from tailrace.schemas.messages import cut, describe
from tailrace.schemas.strict_json import Json

if TYPE_CHECKING:
    from tailrace.schemas.compatibility.json_schema import Comparison

_SHOWN = 5


def type_problems(to: Comparison, facts: Facts, rules: Rules) -> Iterator[Problem]:
    """Types and listed values."""
    refused = facts.types - rules.types
    if refused and not rules.types:
        yield Problem(rules.node.place, f"accepts nothing in {to.reader}, but {to.writer} allows {_kinds(refused)}")
    elif refused and facts.types == TYPES:
        only = _kinds(rules.types)
        yield Problem(rules.at("type"), f"accepts only {only} in {to.reader}, but {to.writer} allows anything here")
    elif refused:
        yield Problem(rules.at("type"), f"does not accept {_kinds(refused)} in {to.reader}, but {to.writer} does")
    if rules.values is None or refused == facts.types:
        return
    place = rules.at("const" if "const" in rules.node.schema else "enum")
    if facts.values is None:
        yield Problem(place, f"allows only listed values in {to.reader}, but {to.writer} allows others")
    else:
        missing = [value for key, value in facts.values.items() if key not in rules.values]
        if missing:
            yield Problem(place, f"does not allow {_list(missing)} in {to.reader}, but {to.writer} does")


def value_problems(to: Comparison, facts: Facts, rules: Rules) -> Iterator[Problem]:
    """A few known values are tried one by one, by the validator itself."""
    refused: dict[str, list[Json]] = {}
    for value in (facts.values or {}).values():
        keyword = None if isinstance(value, dict | list) else rules.refusal(value)
        if keyword not in (None, "type", "enum", "const"):
            refused.setdefault(str(keyword), []).append(value)
    for keyword, values in refused.items():
        yield Problem(rules.at(keyword), f"does not allow {_list(values)} in {to.reader}, but {to.writer} does")


def number_problems(to: Comparison, facts: Facts, rules: Rules) -> Iterator[Problem]:
    whole = "fraction" not in facts.types
    if rules.lower and not _as_high(facts.lower(), rules.lower, whole):
        place, limit = rules.at(_keyword(rules, rules.lower, "inimum")), rules.lower.value
        yield Problem(place, f"is {limit} in {to.reader}, but {to.writer} allows smaller numbers")
    if rules.upper and not _as_low(facts.upper(), rules.upper, whole):
        place, limit = rules.at(_keyword(rules, rules.upper, "aximum")), rules.upper.value
        yield Problem(place, f"is {limit} in {to.reader}, but {to.writer} allows larger numbers")
    if rules.multiple:
        multiples = [part.multiple for part in facts.parts if part.multiple] + ([Fraction(1)] if whole else [])
        if not any((multiple / rules.multiple).denominator == 1 for multiple in multiples):
            yield Problem(rules.at("multipleOf"), f"refuses numbers in {to.reader} that {to.writer} allows")


def string_problems(to: Comparison, facts: Facts, rules: Rules) -> Iterator[Problem]:
    yield from range_problems(to, facts.range(lambda part: part.length), rules.length, rules, "Length", "texts")
    for keyword, text in rules.texts.items():
        if not any(part.texts.get(keyword) == text for part in facts.parts):
            yield Problem(
                rules.at(keyword),
                f"is {cut(text)!r} in {to.reader} but not in {to.writer}; whether every text of {to.writer} obeys it "
                "cannot be shown",
            )


def range_problems(
    to: Comparison, allowed: tuple[float, float], demanded: tuple[float, float], rules: Rules, of: str, what: str
) -> Iterator[Problem]:
    """For lengths and counts, whose keywords are `min` and `max` of something."""
    if allowed[0] < demanded[0]:
        least = f"{demanded[0]} in {to.reader}, but {to.writer} allows {what} from {allowed[0]} on"
        yield Problem(rules.at(f"min{of}"), f"is {least}")
    if allowed[1] > demanded[1]:
        most = "of any size" if allowed[1] == INFINITE else f"up to {allowed[1]}"
        yield Problem(rules.at(f"max{of}"), f"is {demanded[1]} in {to.reader}, but {to.writer} allows {what} {most}")


def apart_numbers(facts: Facts, rules: Rules) -> bool:
    """Whether no number can be in both ranges."""
    return _beyond(facts.lower(), rules.upper) or _beyond(rules.lower, facts.upper())


def _beyond(lower: Bound | None, upper: Bound | None) -> bool:
    if lower is None or upper is None:
        return False
    return lower.value > upper.value or (lower.value == upper.value and (lower.exclusive or upper.exclusive))


def _as_high(lower: Bound | None, demanded: Bound, whole: bool) -> bool:
    """For integers, more than 0 means at least 1."""
    if lower is None or not whole:
        return lower is not None and lower >= demanded
    first, least = (floor(bound.value) + 1 if bound.exclusive else ceil(bound.value) for bound in (lower, demanded))
    return first >= least


def _as_low(upper: Bound | None, demanded: Bound, whole: bool) -> bool:
    if upper is None or not whole:
        return upper is not None and (upper.value, not upper.exclusive) <= (demanded.value, not demanded.exclusive)
    last, most = (ceil(bound.value) - 1 if bound.exclusive else floor(bound.value) for bound in (upper, demanded))
    return last <= most


def _keyword(rules: Rules, bound: Bound, end: str) -> str:
    exclusive = f"exclusiveM{end}"
    return exclusive if bound.exclusive and not isinstance(rules.node.schema.get(exclusive), bool) else f"m{end}"


def _kinds(kinds: frozenset[str]) -> str:
    names = kinds - NUMBERS | {"number"} if kinds >= NUMBERS else kinds
    return " or ".join(sorted("number with a fraction" if name == "fraction" else name for name in names))


def _list(values: list[Json]) -> str:
    shown = ", ".join(describe(value) for value in values[:_SHOWN])
    return f"{shown} and {len(values) - _SHOWN} more" if len(values) > _SHOWN else shown
