"""Compares declared topics with existing ones: which to create, grow or change. Pure; `topics.py` talks to Kafka.

Only settings that a spec names are compared. Changes that lose data or that no admin request can make (fewer
partitions, another replication) are reported with a remedy and never made. Nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tailrace.routing.specs import BROKER_DEFAULT, TopicSpec


class Kind(Enum):
    CREATE = "create"
    GROW = "grow"
    SET = "set"
    BY_HAND = "by hand"


@dataclass(frozen=True, slots=True)
class TopicState:
    """An existing topic; `config` includes defaults."""

    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `setting` is empty for a topic to be created; `note` warns, or says what to do by hand."""

    kind: Kind
    spec: TopicSpec
    setting: str
    before: str
    after: str
    note: str = ""

    @property
    def topic(self) -> str:
        return self.spec.topic

    @property
    def where(self) -> str:
        """File and line of what is declared; empty for internal topics of Tailrace."""
        return self.spec.line_of(self.setting)


def plan(specs: Iterable[TopicSpec], live: Mapping[str, TopicState]) -> list[Change]:
    """All differences, by topic."""
    return [
        change
        for spec in sorted(specs, key=lambda spec: spec.topic)
        for change in differences(spec, live.get(spec.topic))
    ]


def differences(spec: TopicSpec, state: TopicState | None) -> list[Change]:
    """Returns how `state` differs from `spec`; None is a topic that does not exist."""
    if state is None:
        return [Change(Kind.CREATE, spec, "", "", _shape(spec))]
    changes: list[Change] = []
    if spec.partitions not in (BROKER_DEFAULT, state.partitions):
        changes.append(_partitions(spec, state.partitions))
    if spec.replication not in (BROKER_DEFAULT, state.replication):
        note = (
            f"Move its partitions to {spec.replication} brokers each with kafka-reassign-partitions, "
            f"or declare replication: {state.replication}."
        )
        changes.append(Change(Kind.BY_HAND, spec, "replication", str(state.replication), str(spec.replication), note))
    for name, declared in spec.config.items():
        now = state.config.get(name)
        if now is None or not same_value(declared, now):
            changes.append(Change(Kind.SET, spec, name, "" if now is None else now, declared))
    return changes


def same_value(declared: str, live: str) -> bool:
    """Whether both are the same to Kafka, which shows `TRUE`, `0.50` and `a, b` as `true`, `0.5` and `a,b`."""
    if _parts(declared) == _parts(live) or (declared.lower() == live.lower() and live in {"true", "false"}):
        return True
    for number in (int, float):  # whole numbers first: Kafka's have 64 bits, a float's are fewer
        try:
            return number(declared) == number(live)
        except ValueError:
            continue
    return False


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",")]


def _partitions(spec: TopicSpec, live: int) -> Change:
    before, after = str(live), str(spec.partitions)
    if spec.partitions > live:
        note = "Existing keys may move to other partitions; their order across the change is not kept."
        return Change(Kind.GROW, spec, "partitions", before, after, note)
    note = f"Kafka cannot take partitions away: declare partitions: {live}, or move to a new topic."
    return Change(Kind.BY_HAND, spec, "partitions", before, after, note)


def _shape(spec: TopicSpec) -> str:
    counts = [("partitions", spec.partitions), ("replication", spec.replication)]
    shape = [f"{name} {'as the brokers are set' if count == BROKER_DEFAULT else count}" for name, count in counts]
    return ", ".join([*shape, *(f"{name}={value}" for name, value in spec.config.items())])
