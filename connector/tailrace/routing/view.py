"""How routing rules see a pipeline: its name, and its columns for subject and stream.

Several pipelines with different tables may share a folder of rules, so each pipeline defines what `match.subject` is:
the column of `outbox.columns.subject`, or `<aggregate>.<type>` without one, or only the type without an aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.errors import ConfigError
from tailrace.event import OutboxEvent
from tailrace.routing.specs import Rule, RuleCondition, TopicSpec

SUBJECT = "subject"
"""The variable of a subject made of aggregate and type; a subject with its own column is a column variable."""
COLUMN = "column "
NAMED = ("type", "aggregate")
"""Parts of an event that rules may match even if named as a column."""


@dataclass(frozen=True, slots=True)
class View:
    """`subject` and `stream` are columns or None; `parts` maps columns to parts of an event, such as type or key."""

    pipeline: str = ""
    subject: str | None = None
    stream: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)

    def sees(self, rule: Rule) -> bool:
        """Whether the rule is for this pipeline."""
        return not rule.pipelines or self.pipeline in rule.pipelines

    def variable(self, condition: RuleCondition) -> str:
        """Returns the name of what a condition tests: conditions with the same variable test the same text."""
        if condition.field == "subject":
            return SUBJECT if self.subject is None else self._column(self.subject)
        if condition.field == "stream":
            return "stream" if self.stream is None else self._column(self.stream)
        return self._column(condition.column) if condition.field == "column" else condition.field

    def column(self, variable: str) -> str | None:
        """Returns the column of a column variable, otherwise None."""
        return variable.removeprefix(COLUMN) if variable.startswith(COLUMN) else None

    def key_column(self, rule: Rule) -> str | None:
        """Returns the column whose value becomes the record's key; None for the event's own key."""
        return None if rule.key is None or self.parts.get(rule.key) == "key" else rule.key

    def value(self, variable: str, event: OutboxEvent) -> str | None:
        """Returns the text that a condition tests; None if the row has none."""
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
        """Returns the stream named by the event; empty if there is none."""
        return "" if self.stream is None else self.value(self._column(self.stream), event) or ""

    def require_stream(self, template: str) -> str | None:
        """Returns the stream column for a template that needs it."""
        if self.stream is None:
            raise ConfigError(
                f"the template {template!r} needs a stream column, but none is configured",
                remedy="Set outbox.columns.stream, or use {aggregate} or {type}.",
            )
        return self.column(self._column(self.stream))

    def require_readable(self, spec: TopicSpec, rule: Rule) -> None:
        """Raises for a rule that can never match, because events of this pipeline lack what it tests."""
        for condition in rule.conditions:
            where = f"{spec.origin.at(*condition.place)}: {condition.name}"
            part = self.parts.get(self.column(self.variable(condition)) or "")
            if condition.field == "stream" and self.stream is None:
                raise ConfigError(
                    f"{where} needs a stream column, but pipeline {self.pipeline} has none",
                    remedy="Set outbox.columns.stream, or restrict the rule with match.pipeline.",
                )
            if part is not None:
                raise ConfigError(
                    f"{where} tests the column of the event's {part}, which rules cannot match",
                    remedy=f"Match by another column, or by {' or '.join(NAMED)}.",
                )
        if self.key_column(rule) in self.parts:
            raise ConfigError(
                f"{spec.origin.at('key')}: key names the column of the event's {self.parts[rule.key or '']}",
                why="Only other columns can replace the event's own key.",
                remedy="Name another column, or remove `key` to use the event's own key.",
            )

    def _column(self, name: str) -> str:
        part = self.parts.get(name)
        return part if part in NAMED else COLUMN + name
