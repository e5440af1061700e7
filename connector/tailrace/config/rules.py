"""Settings of business rules."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from tailrace.config.kafka_settings import wrong
from tailrace.config.section import Section
from tailrace.config.values import Folder, PathColumn, Seconds, Whole

_is_rule = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*|[\w.-]+").fullmatch


def rule_name(name: str) -> str:
    if not _is_rule(name):
        raise wrong(
            "module:function, or the name of an entry point of the group tailrace.rules",
            "write it like `shop_rules:amount_is_positive`",
        )
    return name


RuleName = Annotated[str, AfterValidator(rule_name)]
TypePattern = Annotated[str, Field(min_length=1, max_length=255)]


class SequenceSettings(Section):
    """The check of sequence numbers: in each aggregate, each event's number is one more than the one before.

    Two layouts have defaults. `storage`: `sequence_number`, `[aggregate_type, aggregate_id]` and
    `event_metadata#/replay_of`. `document`: `entity_version` and `[entity_type, entity_id]`.
    """

    number: PathColumn | None = Field(
        default=None,
        description="a column name, or a path in a JSON column",
        examples=["sequence_number", "payload#/revision"],
    )
    """Column of the sequence number, or a path into a JSON column. Required, except with the layouts `storage`
    and `document`."""
    aggregate: tuple[PathColumn, ...] = Field(
        default=(), description="a list of columns", examples=["[aggregate_type, aggregate_id]"]
    )
    """Columns that together name an aggregate. Default: those of the event's aggregate and key."""
    replay: PathColumn | None = Field(
        default=None,
        description="a column name, or a path in a JSON column",
        examples=["event_metadata#/replay_of"],
    )
    """Column, or path into a JSON column, whose value marks a row as a replay unless it is null. Such rows are not
    checked."""
    aggregates: Whole = Field(
        default=100_000, ge=1, le=10_000_000, description="a whole number from 1 to 10000000", examples=["100000"]
    )
    """How many aggregates are remembered, those with the most recent events. Each takes about 200 bytes of memory."""


class RuleSettings(Section):
    """Business rules: functions that check events by type, after validation."""

    checks: dict[TypePattern, Annotated[tuple[RuleName, ...], Field(min_length=1)]] = Field(
        default={},
        description="lists of rules by event type, which may be a shell pattern",
        examples=["{'Order*': ['shop_rules:amount_is_positive']}"],
    )
    """Rules by event type: `module:function`, or the name of an entry point of the group `tailrace.rules`. The type may
    be a shell pattern such as `Order*`. Nothing else is loaded."""
    folder: Folder | None = Field(default=None, description="a folder of Python modules", examples=["rules"])
    """Folder with modules of rules, relative to this file. Installed packages come first."""
    timeout: Seconds = Field(
        default=1, ge=0.01, le=10, description="seconds, from 0.01 to 10", examples=["1"], allow_inf_nan=False
    )
    """Seconds that one rule may take for one event. An event whose rule takes longer is dead-lettered with the reason
    `processing_timeout`."""
    sequence: SequenceSettings | None = Field(
        default=None,
        description="settings such as `number: sequence_number`",
        examples=["{number: sequence_number}"],
    )
    """Check of the sequence numbers of each aggregate: gaps and repeats are dead-lettered."""
