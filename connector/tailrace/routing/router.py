"""Finds topic and key of an event: the first matching rule, otherwise the template, otherwise the event is rejected.

Rules are tried by priority, then `match: "*"`. The route depends on aggregate, type and the columns that rules use, so
it is cached for their values. The cache is bounded, because services may write anything into these columns.
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

CACHED_ROUTES = 4096
"""The size of the cache. A large system has a few hundred routes."""
CACHED_LENGTH = 256
"""Routes of longer values are not cached: a column may hold megabytes."""


class Tried(NamedTuple):
    """The result of one rule: `why` names the condition that failed, or the rule that comes before.

    `stream` is None for the template; `priority` is None for the template and `match: "*"`.
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
    """Each with its variable and its matcher."""


class Router:
    """Routes events. Not thread-safe."""

    def __init__(
        self,
        specs: Sequence[TopicSpec],
        template: str | None,
        *,
        reserved: frozenset[str] = frozenset(),
        view: View | None = None,
    ) -> None:
        """`template`, such as `outbox.event.{aggregate}`, is for events that no rule matches; None rejects them.

        No event goes to a `reserved` topic: a record in the offsets topic could make a pipeline skip events.
        """
        self._reserved = reserved
        self._view = view or View()
        self._template = None if template is None else Template(template)
        self._all = [self._compiled(spec, rule) for spec, rule in in_order(list(specs))]
        self._rules = [compiled for compiled in self._all if self._view.sees(compiled.rule)]
        looked_at = {self._view.column(variable) for compiled in self._rules for _, variable, _ in compiled.conditions}
        if self._template is not None and "stream" in self._template.fields:
            looked_at.add(self._view.require_stream(self._template.text))
        self._columns = frozenset(column for column in looked_at if column is not None)
        self._cache: dict[tuple[object, ...], Route] = {}
        self.route: Callable[[OutboxEvent], Route] = self._by_columns if self._columns else self._by_name
        """Returns the route of an event; raises Rejected without one."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns whose values decide about routes, besides type and aggregate."""
        return self._columns

    def explain(self, event: OutboxEvent) -> list[Tried]:
        """Tries every rule in order, including those of other pipelines and the template."""
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
            why = "" if winner is None else f"{winner} matches; the template is for events without a matching rule"
            tried.append(Tried(None, self._template.text, "topics.template", None, True, winner is None, why))
        return tried

    def _by_name(self, event: OutboxEvent) -> Route:
        known = self._cache.get((event.aggregate, event.type))
        return known if known is not None else self._resolve(event, (event.aggregate, event.type))

    def _by_columns(self, event: OutboxEvent) -> Route:
        columns = self._columns
        # Columns that are NULL are missing in the event, so the key contains names with values.
        key = (event.aggregate, event.type, *[column for column in event.extra if column[0] in columns])
        known = self._cache.get(key)
        return known if known is not None else self._resolve(event, key)

    def _resolve(self, event: OutboxEvent, key: tuple[object, ...]) -> Route:
        compiled = next((rule for rule in self._rules if self._failure(rule, event) is None), None)
        route = Route(self._by_template(event)) if compiled is None else compiled.route
        if route.topic in self._reserved:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"{route.topic!r} is an internal topic of Tailrace ({_described(event)})",
                remedy="Let the service use another name, or add a topic spec that matches the event.",
            )
        if len(self._cache) >= CACHED_ROUTES:
            self._cache.clear()
        columns = [value or "" for name, value in event.extra if name in self._columns]
        if all(len(value) <= CACHED_LENGTH for value in (event.aggregate, event.type, *columns)):
            self._cache[key] = route
        return route

    def _by_template(self, event: OutboxEvent) -> str:
        if self._template is None:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"no rule matches: {_described(event)}",
                remedy="Add a topic spec that matches it, or set topics.template.",
            )
        return self._template.topic(event.aggregate, event.type, self._view.stream_of(event))

    def _compiled(self, spec: TopicSpec, rule: Rule) -> _Compiled:
        conditions = [
            (condition, self._view.variable(condition), matcher(condition.patterns)) for condition in rule.conditions
        ]
        return _Compiled(spec, rule, Route(spec.topic, self._view.key_column(rule)), conditions)

    def _failure(self, compiled: _Compiled, event: OutboxEvent) -> str | None:
        """Describes the first condition that fails; None if the rule matches."""
        if not self._view.sees(compiled.rule):
            return f"it is only for pipeline {' and '.join(compiled.rule.pipelines)}"
        for condition, variable, matches in compiled.conditions:
            value = self._view.value(variable, event)
            if value is None or not matches(value):
                patterns = " or ".join(pattern.text for pattern in condition.patterns)
                name = f"column {condition.column}" if condition.column else condition.field
                found = "is NULL or missing, expected" if value is None else f"{value[:80]!r} does not match"
                return f"{name} {found} {patterns}"
        return None


def _described(event: OutboxEvent) -> str:
    return f"type {event.type[:80]!r}, aggregate {event.aggregate[:80]!r}"
