"""OutboxEvent -> topic and key: the first rule that matches, else the template, else the event is rejected.

Rules are tried by priority, then `match: "*"`. As long as no rule looks at columns, where an event goes depends on its
aggregate and its type alone, so the answer is worked out once per pair and remembered; otherwise once per pair and
values looked at. The memory is bounded: what stands there comes from the table, and a service may put anything there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent, Route
from tailrace.routing.patterns import matcher
from tailrace.routing.specs import Rule, RuleCondition, TopicSpec, in_order
from tailrace.routing.template import Template
from tailrace.routing.view import View

KNOWN_ANSWERS = 4096
"""How many answers are remembered; a few hundred is a large system."""
MEMORABLE_BYTES = 256
"""Answers for longer names or values of columns are not remembered: a column may hold megabytes."""


class Tried(NamedTuple):
    """What became of one rule: `why` says which condition failed, or why a rule that matches does not win.

    `stream` is None for the template, `priority` for everything that has none.
    """

    stream: str | None
    topic: str
    where: str
    priority: int | None
    matched: bool
    wins: bool
    why: str


class _Compiled(NamedTuple):
    spec: TopicSpec
    rule: Rule
    route: Route
    conditions: list[tuple[RuleCondition, str, Callable[[str], object]]]
    """With the variable each looks at, and its test."""


class Router:
    """Answers where an event goes. Belongs to one thread."""

    def __init__(
        self,
        specs: Sequence[TopicSpec],
        template: str | None,
        *,
        reserved: frozenset[str] = frozenset(),
        view: View | None = None,
    ) -> None:
        """`template` such as `outbox.event.{aggregate}` is for events no rule matches; None rejects those.

        No event goes to a `reserved` topic: whoever writes to the offsets topic could make a pipeline skip events.
        """
        self._reserved = reserved
        self._view = view or View()
        self._template = None if template is None else Template(template)
        self._all = [self._compiled(spec, rule) for spec, rule in in_order(list(specs))]
        self._rules = [compiled for compiled in self._all if self._view.sees(compiled.rule)]
        looked_at = {self._view.column(variable) for compiled in self._rules for _, variable, _ in compiled.conditions}
        if self._template is not None and "stream" in self._template.fields:
            looked_at.add(self._view.require_stream(self._template.text))
        self._columns = frozenset(looked_at - {None})
        self._known: dict[tuple[object, ...], Route] = {}
        self.route: Callable[[OutboxEvent], Route] = self._by_columns if self._columns else self._by_name
        """Where an event goes; Rejected if nowhere."""

    def explain(self, event: OutboxEvent) -> list[Tried]:
        """Every rule in the order tried, those for other pipelines and the template included."""
        tried: list[Tried] = []
        winner: str | None = None
        for compiled in self._all:
            spec, rule = compiled.spec, compiled.rule
            failure = self._failure(compiled, event)
            matched, wins = failure is None, failure is None and winner is None
            why = failure or ("" if wins else f"{winner} is tried before")
            priority = None if rule.last else rule.priority
            tried.append(Tried(spec.name, spec.topic, spec.origin.at("match"), priority, matched, wins, why))
            winner = spec.name if wins else winner
        if self._template is not None:
            why = "" if winner is None else f"{winner} matches: the template is for events that no rule does"
            tried.append(Tried(None, self._template.text, "topics.template", None, True, winner is None, why))
        return tried

    def _by_name(self, event: OutboxEvent) -> Route:
        known = self._known.get((event.aggregate, event.type))
        return known if known is not None else self._resolve(event, (event.aggregate, event.type))

    def _by_columns(self, event: OutboxEvent) -> Route:
        columns = self._columns
        # A column that is NULL is not among the event's, so what is there comes with its name.
        key = (event.aggregate, event.type, *[column for column in event.extra if column[0] in columns])
        known = self._known.get(key)
        return known if known is not None else self._resolve(event, key)

    def _resolve(self, event: OutboxEvent, key: tuple[object, ...]) -> Route:
        compiled = next((rule for rule in self._rules if self._failure(rule, event) is None), None)
        route = Route(self._by_template(event)) if compiled is None else compiled.route
        if route.topic in self._reserved:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"{route.topic!r} is one of Tailrace's own topics ({_described(event)})",
                remedy="Have the service use another name, or add a topic spec that covers the event.",
            )
        if len(self._known) >= KNOWN_ANSWERS:
            self._known.clear()
        columns = [value or "" for name, value in event.extra if name in self._columns]
        if all(len(value) <= MEMORABLE_BYTES for value in (event.aggregate, event.type, *columns)):
            self._known[key] = route
        return route

    def _by_template(self, event: OutboxEvent) -> str:
        if self._template is None:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"no rule matches: {_described(event)}",
                remedy="Add a topic spec whose `match` covers it, or set a topic template.",
            )
        return self._template.topic(event.aggregate, event.type, self._view.stream_of(event))

    def _compiled(self, spec: TopicSpec, rule: Rule) -> _Compiled:
        conditions = [
            (condition, self._view.variable(condition), matcher(condition.patterns)) for condition in rule.conditions
        ]
        return _Compiled(spec, rule, Route(spec.topic, self._view.key_column(rule)), conditions)

    def _failure(self, compiled: _Compiled, event: OutboxEvent) -> str | None:
        """The first condition that fails, in words; None if the rule matches."""
        if not self._view.sees(compiled.rule):
            return f"it is for pipeline {' and '.join(compiled.rule.pipelines)} only"
        for condition, variable, matches in compiled.conditions:
            value = self._view.value(variable, event)
            if value is None or not matches(value):
                patterns = " or ".join(pattern.text for pattern in condition.patterns)
                name = f"column {condition.column}" if condition.column else condition.field
                found = "is NULL or not there, it should match" if value is None else f"{value[:80]!r} does not match"
                return f"{name} {found} {patterns}"
        return None


def _described(event: OutboxEvent) -> str:
    return f"type {event.type[:80]!r}, aggregate {event.aggregate[:80]!r}"
