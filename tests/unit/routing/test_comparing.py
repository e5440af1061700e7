"""Comparing rules is exact: every example shows what it claims, and no event in a sea of them says otherwise."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.event import OutboxEvent
from tailrace.routing.automata import Effort
from tailrace.routing.comparing import Known, known_rules, overlap, winnable
from tailrace.routing.parsing import parse_spec
from tailrace.routing.router import Router
from tailrace.routing.specs import SpecOrigin, in_order
from tailrace.routing.view import View

ORDERS = View("orders")
PATTERN = st.text("ab*?", min_size=1, max_size=3)
SUBJECTS = st.sampled_from(["a.*", "*.b", "a.>", "*.*.*", "b", "a.b", "*", "a.*.b"])
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "type": PATTERN | st.lists(PATTERN, min_size=1, max_size=2),
        "aggregate": PATTERN,
        "subject": SUBJECTS,
        "column": st.fixed_dictionaries({"t": PATTERN}),
    },
).filter(bool)
NAMES = ["".join(letters) for length in range(4) for letters in itertools.product("ab.", repeat=length)]
EVENTS = [
    OutboxEvent("e", type_name, aggregate, None, None, None, "p", 1, [("t", value)] if value is not None else [])
    for type_name in NAMES[1:]
    for aggregate in ["", "a", "b", "ab", "a.b", "a."]
    for value in (None, b"", b"a", b"ba")
]  # fmt: skip


def compiled(matches: list[Any]) -> tuple[list[Known], list[Router]]:
    specs = []
    for number, match in enumerate(matches):
        try:
            document = {"topic": f"t{number}", "match": match, "priority": len(matches) - number}
            specs.append(parse_spec(document, SpecOrigin()))
        except ConfigError:
            continue  # it takes everything
    return known_rules(in_order(specs), ORDERS), [Router([one], None, view=ORDERS) for one in specs]


def matches(router: Router, event: OutboxEvent) -> bool:
    return router.explain(event)[0].matched


def as_event(example: dict[str, str]) -> OutboxEvent:
    extra: Any = [("t", example["column t"].encode())] if "column t" in example else []
    return OutboxEvent("e", example.get("type", "zz"), example.get("aggregate", "zz"), None, None, None, "p", 1, extra)


@settings(max_examples=150, deadline=None)
@given(MATCHES, MATCHES)
def test_overlaps_are_found_exactly(one: Any, other: Any) -> None:
    rules, routers = compiled([one, other])
    if len(rules) < 2:
        return
    example = overlap(rules[0], rules[1], Effort())
    if example is not None:
        assert all(matches(router, as_event(example)) for router in routers), example
    else:
        assert not [event for event in EVENTS if all(matches(router, event) for router in routers)]


@settings(max_examples=150, deadline=None)
@given(st.lists(MATCHES, min_size=2, max_size=4))
def test_whether_a_rule_can_win_is_found_exactly(listed: list[Any]) -> None:
    rules, routers = compiled(listed)
    if len(rules) < 2:
        return
    *before, last = routers
    example = winnable(rules[-1], rules[:-1], Effort())
    if example is not None:
        event = as_event(example)
        assert matches(last, event), example
        assert not any(matches(router, event) for router in before), example
    else:
        escaped = [event for event in EVENTS if matches(last, event) and not any(matches(r, event) for r in before)]
        assert not escaped
