"""What a reader demands of objects, against what the writer's facts promise about each property.

Properties are of three kinds: those the writer's schema names, those that match one of its patterns, and all others.
In an open object the others could be anything; see `json_schemas` for how that is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.schemas.compatibility.document import Problem
from tailrace.schemas.compatibility.json_facts import Fact, Facts, Writer
from tailrace.schemas.compatibility.json_nodes import Node
from tailrace.schemas.compatibility.json_rules import Rules, matches
from tailrace.schemas.compatibility.json_scalars import range_problems
from tailrace.schemas.compatibility.json_unevaluated import surely_evaluated
from tailrace.schemas.messages import cut

if TYPE_CHECKING:
    from tailrace.schemas.compatibility.json_schema import Comparison

_FOR = " (for "


def object_problems(to: Comparison, writer: Writer, facts: Facts, rules: Rules) -> Iterator[Problem]:
    """Why an object of the writer might be refused."""
    for name in rules.required:
        if name not in facts.required:
            place = rules.at("properties", name) if name in rules.properties else rules.at("required")
            subject = "is" if name in rules.properties else f"says that {cut(name)!r} is"
            yield Problem(place, f"{subject} required in {to.reader}, but not in {to.writer}")
    yield from range_problems(to, _size(to, facts), rules.size, rules, "Properties", "objects")
    for name, node in rules.properties.items():
        found, named = facts.about_property(name)
        if named or to.strict:
            yield from to.below(found, node)
    yield from _pattern_problems(to, facts, rules)
    if rules.additional is not None:
        yield from _others(to, facts, rules.additional, set(rules.properties), set(rules.patterns))
    if rules.unevaluated is not None:
        evaluated = surely_evaluated(rules, to.rules)
        if not evaluated.all_names:
            yield from _others(to, facts, rules.unevaluated, evaluated.names, evaluated.patterns)
    if rules.names is not None:
        yield from _name_problems(to, facts, rules.names)
    yield from _dependent_problems(to, writer, facts, rules)


def apart_objects(to: Comparison, facts: Facts, rules: Rules) -> bool:
    """Whether no object can obey both: a property that one demands is refused by the other."""
    for name in sorted(facts.required.union(rules.required)):
        found, named = facts.about_property(name)
        if name in rules.required and ((not named and not to.strict) or not to.possible(found)):
            return True
        theirs = [rules.properties[name]] if name in rules.properties else []
        theirs += [node for text, node in rules.patterns.items() if matches(text, name, rules.at("patternProperties"))]
        if not theirs and rules.additional is not None:
            theirs = [rules.additional]
        if any(to.apart_below(found, node) for node in theirs):
            return True
    return False


def _size(to: Comparison, facts: Facts) -> tuple[float, float]:
    low, high = facts.range(lambda part: part.size)
    closed = not any(to.possible(facts.about_others(pattern)) for pattern in _kinds(facts))
    return max(low, len(facts.required)), min(high, len(facts.known_names())) if closed else high


def _kinds(facts: Facts) -> list[str | None]:
    """Of properties that the writer does not name: matching none of its patterns, or one of them."""
    return [None, *sorted(facts.patterns())]


def _pattern_problems(to: Comparison, facts: Facts, rules: Rules) -> Iterator[Problem]:
    for text, node in rules.patterns.items():
        for name in sorted(facts.known_names()):
            if matches(text, name, rules.at("patternProperties")):
                yield from _about(name, to.below(facts.about_property(name)[0], node))
        for kind in [text] if text in facts.patterns() else _kinds(facts):
            yield from _about(None, to.below(facts.about_others(kind), node))


def _others(to: Comparison, facts: Facts, node: Node, named: set[str], patterns: set[str]) -> Iterator[Problem]:
    """What the reader names neither itself nor by a pattern must obey `node`."""
    closed = node.schema is False
    for name in sorted(facts.known_names() - named):
        if any(matches(text, name, node.place) for text in sorted(patterns)):
            continue
        problems = to.below(facts.about_property(name)[0], node)
        if problems and closed:
            yield Problem(node.place, f"forbids {cut(name)!r} in {to.reader}, but {to.writer} allows it")
        else:
            yield from _about(name, problems)
    for kind in _kinds(facts):
        problems = () if kind in patterns else to.below(facts.about_others(kind), node)
        if problems and closed:
            which = "further properties" if kind is None else f"properties that match {cut(kind)}"
            yield Problem(node.place, f"forbids {which} in {to.reader}, but {to.writer} allows them")
        else:
            yield from _about(None, problems)


def _about(name: str | None, problems: tuple[Problem, ...]) -> Iterator[Problem]:
    """Says which property is meant, where the place does not; of several within each other, the innermost."""
    which = "a property that is not named" if name is None else f"the property {cut(name)!r}"
    for place, what in problems:
        yield Problem(place, what if _FOR in what else f"{what}{_FOR}{which})")


def _name_problems(to: Comparison, facts: Facts, node: Node) -> Iterator[Problem]:
    for name in sorted(facts.known_names()):
        if to.possible(facts.about_property(name)[0]):
            yield from _about(name, to.below([Fact(to.node({"const": name}))], node))
    allowed = [Fact(part.names) for part in facts.parts if part.names is not None]
    for kind in _kinds(facts):
        if to.possible(facts.about_others(kind)):
            form = {"type": "string"} if kind is None else {"type": "string", "pattern": kind}
            yield from _about(None, to.below([Fact(to.node(form)), *allowed], node))


def _dependent_problems(to: Comparison, writer: Writer, facts: Facts, rules: Rules) -> Iterator[Problem]:
    """If a property is there, others must be, or the whole object must obey another schema."""
    for name in sorted({name for name, _ in [*rules.dependents, *rules.dependent_names]}):
        found, named = facts.about_property(name)
        if not (named or to.strict) or not to.possible(found):
            continue
        present = writer.also(Fact(to.node({"type": "object", "required": [name]})))
        for other, node in rules.dependents:
            if other == name:
                yield from to.covers(present, node)
        promised = to.facts(present).required
        for other, demanded in rules.dependent_names:
            missing = [each for each in demanded if each not in promised] if other == name else []
            if missing:
                keyword = "dependentRequired" if "dependentRequired" in rules.node.schema else "dependencies"
                wanted = ", ".join(repr(cut(each)) for each in missing)
                yield Problem(rules.at(keyword, name), f"demands {wanted} in {to.reader}, but not in {to.writer}")
