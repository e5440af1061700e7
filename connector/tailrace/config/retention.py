"""Settings of the retention of outbox rows."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tailrace.config.kafka_settings import wrong
from tailrace.config.section import Section
from tailrace.config.values import Topic, Whole, not_bool

_UNITS = {"": 1, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_duration = re.compile(r"(\d{1,10})\s*(s|min|m|h|d|w|y|)").fullmatch
LONGEST = 100 * _UNITS["y"]


def age_seconds(text: str) -> int | None:
    """Returns the seconds of an age such as 30d; None if it is none."""
    found = _duration(text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found else LONGEST + 1
    return seconds if seconds <= LONGEST else None


def parse_duration(given: object) -> object:
    """Returns seconds: of a number, or of a text such as 30d."""
    if not isinstance(given, str):
        return not_bool(given)
    if (seconds := age_seconds(given)) is None:
        raise wrong("a duration of at most 100y", "write it like 300, 12h, 30d or 3y")
    return seconds


Duration = Annotated[float, BeforeValidator(parse_duration)]


class ConfirmationSettings(Section):
    """A topic whose records confirm events. Where a record names several events, each of them is confirmed."""

    topic: Topic = Field(description="a topic name", examples=["orders.confirmed"])
    """Topic of the confirmations."""
    id: str = Field(default="", max_length=255, description="a path in the JSON value", examples=["block.event_ids"])
    """Where a record names the event, or a list of events: a path of names separated by `.` in its JSON value. Empty:
    the key of the record."""
    time: str = Field(default="", max_length=255, description="a path in the JSON value", examples=["confirmed_at"])
    """Where a record has the time of the confirmation: Unix seconds or milliseconds, or ISO 8601. Empty, or if it is
    missing: the timestamp of the record."""
    delay: Duration = Field(
        default=86_400, ge=0, le=LONGEST, description="a duration such as 1d", examples=["1d"], allow_inf_nan=False
    )
    """How long after its confirmation an event is kept, in seconds or like 12h."""
    keep_unknown: Duration = Field(
        default=604_800, ge=0, le=LONGEST, description="a duration such as 7d", examples=["7d"], allow_inf_nan=False
    )
    """How long a confirmation is kept whose event is not in the outbox, after its delay."""


class RetentionSettings(Section):
    after: Duration | None = Field(
        default=None, ge=0, le=LONGEST, description="a duration such as 30d", examples=["30d"], allow_inf_nan=False
    )
    """Only rows older than that, by `outbox.columns.timestamp`."""
    confirmations: ConfirmationSettings | None = Field(
        default=None, description="settings such as `topic: orders.confirmed`", examples=["{topic: orders.confirmed}"]
    )
    """Only rows whose event was confirmed on a topic."""
    consumers: tuple[str, ...] = Field(
        default=(), description="a list of projection apps, each as module:app", examples=["[shop.projections:app]"]
    )
    """Only rows whose event all projections of these apps have passed, as module:app."""
    partitions: Literal["delete", "drop"] = Field(default="delete", description="delete or drop", examples=["delete"])
    """Delete rows one by one, or only drop whole partitions in which all rows may be deleted. Postgres only."""
    batch_rows: Whole = Field(
        default=1000, ge=1, le=100_000, description="a whole number from 1 to 100000", examples=["1000"]
    )
    """Rows deleted in one transaction."""
    tick: Duration = Field(
        default=300, ge=1, le=86_400, description="seconds, from 1 to 86400", examples=["300"], allow_inf_nan=False
    )
    """Seconds between two runs of `tailrace retention run`."""

    @model_validator(mode="after")
    def _has_condition(self) -> Self:
        if self.after is None and self.confirmations is None and not self.consumers:
            raise wrong(
                "at least one condition: after, confirmations or consumers", "add `after: 30d` under `retention:`"
            )
        return self

    def require_outbox(self, *, is_mongo: bool, is_timed: bool) -> None:
        """Refuses conditions that this outbox cannot meet."""
        if self.partitions == "drop" and is_mongo:
            raise wrong("delete, for MongoDB", "remove it", "retention", "partitions")
        needs = "after" if self.after is not None else "partitions" if self.partitions == "drop" else ""
        if needs and not is_timed:
            raise wrong(
                "a column with the time of a row",
                "name it in outbox.columns.timestamp",
                "retention",
                needs,
            )
