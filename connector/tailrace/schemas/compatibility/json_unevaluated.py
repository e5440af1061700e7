"""Which properties and items a node evaluates, for `unevaluatedProperties` and `unevaluatedItems`.

What is evaluated depends on the instance: a branch of `anyOf` counts only if it matches. So two answers are
given: what is evaluated in any case, which a reader may count on, and what may be evaluated, which a writer may use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.schemas.compatibility.json_nodes import Node
from tailrace.schemas.compatibility.json_rules import Rules


@dataclass(slots=True)
class Evaluated:
    names: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    all_names: bool = False
    items: int = 0
    all_items: bool = False


def surely_evaluated(rules: Rules, rules_of: Callable[[Node], Rules]) -> Evaluated:
    """By the node itself and by what it joins with `allOf` and `$ref`."""
    return _gather(rules, rules_of, lambda part: part.all_of)


def possibly_evaluated(rules: Rules, rules_of: Callable[[Node], Rules]) -> Evaluated:
    """By any subschema that looks at the same instance."""
    return _gather(rules, rules_of, _in_place)


def _in_place(part: Rules) -> list[Node]:
    condition = [node for node in part.condition or () if node is not None]
    dependents = [node for _, node in part.dependents]
    return [*part.all_of, *part.any_of, *part.one_of, *condition, *dependents]


def _gather(rules: Rules, rules_of: Callable[[Node], Rules], follow: Callable[[Rules], list[Node]]) -> Evaluated:
    found = Evaluated()
    seen, todo = {rules.node.key}, [rules]
    for part in todo:
        found.names.update(part.properties)
        found.patterns.update(part.patterns)
        found.items = max(found.items, len(part.prefix))
        nested = part is not rules
        may_be_anything = part.dynamic and follow is _in_place
        found.all_names |= may_be_anything or part.additional is not None or (nested and part.unevaluated is not None)
        found.all_items |= may_be_anything or part.rest is not None or (nested and part.unevaluated_items is not None)
        for node in follow(part):
            if node.key not in seen:
                seen.add(node.key)
                todo.append(rules_of(node))
    return found
