"""What rules see of a pipeline: its name, and the columns in which subject and stream stand.

A folder of rules may serve several pipelines whose tables differ, so what `match.subject` reads is a matter of the
pipeline. An event's subject is the column that `outbox.columns.subject` names; without one it is `<aggregate>.<type>`,
or the type alone for an event without an aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.errors import ConfigError
from tailrace.event import OutboxEvent
from tailrace.routing.specs import Rule, RuleCondition, TopicSpec

SUBJECT = "subject"
"""The variable of a subject that is made of aggregate and type; one of its own column is a column like any other."""
COLUMN = "column "
NAMED = ("type", "aggregate")
"""Parts that an event has as texts; the others are no further columns and no texts either."""


@dataclass(frozen=True, slots=True)
class View:
    """`subject` and `stream` are columns, or None; `parts` tells which column is the event's type, key and so on."""

    pipeline: str = ""
    subject: str | None = None
    stream: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)

    def sees(self, rule: Rule) -> bool:
        """Whether the rule is for this pipeline."""
        return not rule.pipelines or self.pipeline in rule.pipelines

    def variable(self, condition: RuleCondition) -> str:
        """What a condition looks at: two conditions of one variable look at the same text."""
        if condition.field == "subject":
            return SUBJECT if self.subject is None else self._column(self.subject)
        if condition.field == "stream":
            return "stream" if self.stream is None else self._column(self.stream)
        return self._column(condition.column) if condition.field == "column" else condition.field

    def column(self, variable: str) -> str | None:
        """The further column that the variable is, or None."""
        return variable.removeprefix(COLUMN) if variable.startswith(COLUMN) else None

    def key_column(self, rule: Rule) -> str | None:
        """The further column whose value is the record's key; None for the event's own key."""
        return None if rule.key is None or self.parts.get(rule.key) == "key" else rule.key

    def value(self, variable: str, event: OutboxEvent) -> str | None:
        """The text that a condition looks at; None where the row has none."""
        if variable == "type":
            return event.type
        if variable == "aggregate":
            return event.aggregate
        if variable == SUBJECT:
            return f"{event.aggregate}.{event.type}" if event.aggregate else event.type
        column = self.column(variable)
        for name, value in event.extra:
            if name == column and value is not None:
                return value if isinstance(value, str) else value.decode(errors="backslashreplace")
        return None

    def stream_of(self, event: OutboxEvent) -> str:
        """The stream that the event names itself; empty if it names none."""
        return "" if self.stream is None else self.value(self._column(self.stream), event) or ""

    def require_stream(self, template: str) -> str | None:
        """The column in which the stream stands, for a template that uses it."""
        if self.stream is None:
            raise ConfigError(
                f"the template {template!r} needs the column in which the stream stands, and none is named",
                remedy="Set outbox.columns.stream, or use {aggregate} or {type}.",
            )
        return self.column(self._column(self.stream))

    def require_readable(self, spec: TopicSpec, rule: Rule) -> None:
        """Refuses a rule that looks where this pipeline's events have nothing to see: it could never match."""
        for condition in rule.conditions:
            where = f"{spec.origin.at(*condition.place)}: {condition.name}"
            part = self.parts.get(self.column(self.variable(condition)) or "")
            if condition.field == "stream" and self.stream is None:
                raise ConfigError(
                    f"{where} needs the column in which the stream stands, and pipeline {self.pipeline} names none",
                    remedy="Set outbox.columns.stream, or restrict the rule with match.pipeline.",
                )
            if part is not None:
                raise ConfigError(
                    f"{where} looks at the column of the event's {part}, which is no further column of the row",
                    remedy=f"Match by another column, or by {' or '.join(NAMED)}.",
                )
        if self.key_column(rule) in self.parts:
            raise ConfigError(
                f"{spec.origin.at('key')}: key names the column of the event's {self.parts[rule.key or '']}",
                why="Only a further column can be the key in place of the event's own.",
                remedy="Name another column, or leave `key` out for the event's own key.",
            )

    def _column(self, name: str) -> str:
        part = self.parts.get(name)
        return part if part in NAMED else COLUMN + name
