"""OutboxEvent -> topic: the first rule that matches, else the template, else the event is rejected.

Where an event goes depends on its aggregate and its type alone, so the answer is worked out once per pair and
remembered. The memory is bounded: names come from the table, and a service may put anything there.
"""

from __future__ import annotations

import fnmatch
import re
import string
from collections.abc import Callable, Sequence

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import OutboxEvent, Route
from tailrace.routing.names import topic_flaw
from tailrace.routing.specs import TopicSpec

KNOWN_PAIRS = 4096
"""How many answers are remembered; a few hundred is a large system."""
TEMPLATE_FIELDS = ("aggregate", "type")

_Match = Callable[[str], object]


class Router:
    """Answers where an event goes. Belongs to one thread."""

    def __init__(
        self, rules: Sequence[TopicSpec], template: str | None, *, reserved: frozenset[str] = frozenset()
    ) -> None:
        """`template` such as `outbox.event.{aggregate}` is for events no rule matches; None rejects those.

        No event goes to a `reserved` topic: whoever writes to the offsets topic could make a pipeline skip events.
        """
        self._reserved = reserved
        self._rules = [
            (_matcher(rule.types), _matcher(rule.aggregates), rule.topic)
            for rule in rules
            if rule.types or rule.aggregates
        ]
        self._template = template
        self._fields = () if template is None else _template_fields(template)
        self._known: dict[tuple[str, str], Route] = {}

    def route(self, event: OutboxEvent) -> Route:
        """Where the event goes; Rejected if nowhere."""
        known = self._known.get((event.aggregate, event.type))
        return known if known is not None else self._resolve(event.aggregate, event.type)

    def _resolve(self, aggregate: str, type_name: str) -> Route:
        topic = self._by_rule(aggregate, type_name)
        if topic is None:
            topic = self._by_template(aggregate, type_name)
        if topic in self._reserved:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"{topic!r} is one of Tailrace's own topics (type {type_name[:80]!r}, aggregate {aggregate[:80]!r})",
                remedy="Have the service use another name, or add a topic spec that covers the event.",
            )
        if len(self._known) >= KNOWN_PAIRS:
            self._known.clear()
        self._known[aggregate, type_name] = route = Route(topic)
        return route

    def _by_rule(self, aggregate: str, type_name: str) -> str | None:
        for type_matches, aggregate_matches, topic in self._rules:
            if type_matches(type_name) and aggregate_matches(aggregate):
                return topic
        return None

    def _by_template(self, aggregate: str, type_name: str) -> str:
        values = {"aggregate": aggregate, "type": type_name}
        described = f"type {type_name[:80]!r}, aggregate {aggregate[:80]!r}"
        if self._template is None:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"no rule matches: {described}",
                remedy="Add a topic spec whose `match` covers it, or set a topic template.",
            )
        empty = [name for name in self._fields if not values[name]]
        if empty:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"no rule matches, and for the template {self._template!r} the event's {empty[0]} is empty",
                remedy=f"Have the service fill {empty[0]}, or add a topic spec that covers the event.",
            )
        topic = self._template.format(**values)
        if flaw := topic_flaw(topic):
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"{topic[:80]!r}, from {self._template!r}, is not a topic's name: {flaw} ({described})",
                remedy="Add a topic spec that covers the event, or change the template.",
            )
        return topic


def _matcher(patterns: tuple[str, ...]) -> _Match:
    """Whether any of the patterns matches the whole name; no patterns, no objection."""
    if not patterns:
        return lambda _: True
    # `translate` emits atomic groups for `*`, so even `*a*a*a*b` takes no exponential time.
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns)).match


def _template_fields(template: str) -> tuple[str, ...]:
    """The fields a template uses, after checking that it can give a legal name at all."""

    def wrong(what: str) -> ConfigError:
        return ConfigError(
            f"the topic template {template!r} {what}",
            why=f"A template is a topic's name with the fields {{{'}, {'.join(TEMPLATE_FIELDS)}}}.",
            remedy="Write it like outbox.event.{aggregate}.",
        )

    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise wrong(f"is malformed: {error}") from None
    fields: list[str] = []
    for _, name, spec, conversion in parsed:
        if name is None:
            continue
        # Only the bare name: {aggregate.__class__} or {type!r:>99} have no business in a topic's name.
        if name not in TEMPLATE_FIELDS or spec or conversion:
            raise wrong(f"has an unknown field {{{name}}}" if name not in TEMPLATE_FIELDS else "formats a field")
        fields.append(name)
    if flaw := topic_flaw(template.format(aggregate="a", type="t")):
        raise wrong(f"cannot give a topic's name: {flaw}")
    return tuple(dict.fromkeys(fields))
