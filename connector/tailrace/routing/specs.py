"""TopicSpec: a declared topic, with the rule for the events that go there.

A spec without a rule only describes a topic. `parsing.py` reads specs from YAML; internal topics have specs as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.routing.patterns import Pattern

BROKER_DEFAULT = -1
"""Kafka's value for the default of the brokers."""
MATCH_FIELDS = ("subject", "type", "aggregate", "stream", "column", "pipeline")


@dataclass(frozen=True, slots=True)
class SpecOrigin:
    """The file of a spec, and the line of each of its fields."""

    file: str = ""
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    def at(self, *place: str) -> str:
        """Returns `topics/orders.yaml:4`, the line of a field or of its parent; empty without a file."""
        if not self.file:
            return ""
        for length in range(len(place), 0, -1):
            if line := self.lines.get(place[:length]):
                return f"{self.file}:{line}"
        return f"{self.file}:1"


@dataclass(frozen=True, slots=True)
class RuleCondition:
    """One line of `match`: a field of the event, or a column, must match one of the patterns."""

    field: str
    patterns: tuple[Pattern, ...]
    column: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        return ("match", self.field, self.column) if self.column else ("match", self.field)

    @property
    def name(self) -> str:
        """The name in messages, such as `match.column.tenant`."""
        return ".".join(self.place)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: all conditions must hold. `last` is True for `match: "*"`, which is tried last."""

    conditions: tuple[RuleCondition, ...] = ()
    pipelines: tuple[str, ...] = ()
    priority: int = 0
    key: str | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A declared topic. Without a rule, no event goes there."""

    topic: str
    partitions: int = BROKER_DEFAULT
    replication: int = BROKER_DEFAULT
    config: dict[str, str] = field(default_factory=dict)
    rule: Rule | None = None
    stream: str = ""
    origin: SpecOrigin = field(default=SpecOrigin(), compare=False)

    @property
    def name(self) -> str:
        """The name of the stream in messages."""
        return self.stream or self.topic

    def line_of(self, setting: str) -> str:
        """Returns file and line of a field or a setting of `config`; `retention` may declare retention.ms."""
        if setting in self.config:
            short = setting == "retention.ms" and ("retention",) in self.origin.lines
            return self.origin.at("retention") if short else self.origin.at("config", setting)
        return self.origin.at(setting or "topic")

    @property
    def shape(self) -> tuple[int, int, dict[str, str]]:
        """The settings on which all files that declare the topic must agree."""
        return self.partitions, self.replication, self.config


def in_order(specs: list[TopicSpec]) -> list[tuple[TopicSpec, Rule]]:
    """Returns the specs with rules, in the order in which rules are tried."""
    ruled = [(spec, spec.rule) for spec in specs if spec.rule is not None]
    return sorted(ruled, key=lambda pair: (pair[1].last, -pair[1].priority))
