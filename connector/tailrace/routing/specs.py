"""TopicSpec: a topic as the user declares it, and the rule that says which events go there.

A spec without a rule only describes a topic and attracts no event. These are plain values: `parsing.py` reads them
from YAML, and other rooms make some for the topics that are Tailrace's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.routing.patterns import Pattern

BROKER_DEFAULT = -1
"""Kafka's own word for "as many as the brokers are set to"."""
MATCH_FIELDS = ("subject", "type", "aggregate", "stream", "column", "pipeline")


@dataclass(frozen=True, slots=True)
class SpecOrigin:
    """Where a spec was read: its file, and the line of each of its fields."""

    file: str = ""
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    def at(self, *place: str) -> str:
        """`topics/orders.yaml:4`, the line of `place` or of what it stands in; empty for what no file declares."""
        if not self.file:
            return ""
        for length in range(len(place), 0, -1):
            if line := self.lines.get(place[:length]):
                return f"{self.file}:{line}"
        return f"{self.file}:1"


@dataclass(frozen=True, slots=True)
class RuleCondition:
    """One line of `match`: the event's `field` (for `column`, the one named) must meet any of the patterns."""

    field: str
    patterns: tuple[Pattern, ...]
    column: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        return ("match", self.field, self.column) if self.column else ("match", self.field)

    @property
    def name(self) -> str:
        """As in `match.column.tenant`."""
        return ".".join(self.place)


@dataclass(frozen=True, slots=True)
class Rule:
    """All conditions must hold. Without any it takes every event; `last` then says that it does so as a last resort."""

    conditions: tuple[RuleCondition, ...] = ()
    pipelines: tuple[str, ...] = ()
    priority: int = 0
    key: str | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A declared topic. Without a rule it attracts no event."""

    topic: str
    partitions: int = BROKER_DEFAULT
    replication: int = BROKER_DEFAULT
    config: dict[str, str] = field(default_factory=dict)
    rule: Rule | None = None
    stream: str = ""
    origin: SpecOrigin = field(default=SpecOrigin(), compare=False)

    @property
    def name(self) -> str:
        """What people call the stream."""
        return self.stream or self.topic

    def line_of(self, setting: str) -> str:
        """Where a field or a setting of `config` is declared: `retention` may stand for retention.ms."""
        if setting in self.config:
            short = setting == "retention.ms" and ("retention",) in self.origin.lines
            return self.origin.at("retention") if short else self.origin.at("config", setting)
        return self.origin.at(setting or "topic")

    @property
    def shape(self) -> tuple[int, int, dict[str, str]]:
        """What a topic has only one of, however many files name it."""
        return self.partitions, self.replication, self.config


def in_order(specs: list[TopicSpec]) -> list[tuple[TopicSpec, Rule]]:
    """The specs that have rules, in the order in which these are tried."""
    ruled = [(spec, spec.rule) for spec in specs if spec.rule is not None]
    return sorted(ruled, key=lambda pair: (pair[1].last, -pair[1].priority))
