"""Settings of retries: delays between attempts, and how often a refused record is sent."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tailrace.backoff import Backoff
from tailrace.config.kafka_settings import wrong
from tailrace.config.section import Section
from tailrace.config.values import Column, Seconds, Whole

LONGEST_SECONDS = 3600.0


class RetryColumns(Section):
    """Columns of the outbox with a row's own retry settings. A NULL or an unusable value means the pipeline's setting.

    With the layout `storage`, these are its columns `max_attempts`, `base_delay_ms`, `max_delay_ms` and
    `backoff_multiplier` unless others are given. With the layout `document`, `attempts: max_retries` is the limit of
    each row or document.
    """

    attempts: Column | None = Field(default=None, description="a column name", examples=["max_attempts"])
    """Column of the number of attempts, for `retries.record_attempts`."""
    base_ms: Column | None = Field(default=None, description="a column name", examples=["base_delay_ms"])
    """Column of the first delay in milliseconds, for `retries.base`."""
    maximum_ms: Column | None = Field(default=None, description="a column name", examples=["max_delay_ms"])
    """Column of the longest delay in milliseconds, for `retries.maximum`."""
    multiplier: Column | None = Field(default=None, description="a column name", examples=["backoff_multiplier"])
    """Column of the multiplier, for `retries.multiplier`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are given, each once."""
        return tuple(dict.fromkeys(self.model_dump(exclude_none=True).values()))


class RetrySettings(Section):
    """The delay before retry n is min(base x multiplier^(n-1), maximum), times a random factor of 1 ± jitter."""

    base: Seconds = Field(
        default=1,
        ge=0.01,
        le=LONGEST_SECONDS,
        description="seconds, from 0.01 to 3600",
        examples=["1"],
        allow_inf_nan=False,
    )
    """Seconds before the first retry."""
    maximum: Seconds = Field(
        default=60,
        ge=0.01,
        le=LONGEST_SECONDS,
        description="seconds, from 0.01 to 3600",
        examples=["60"],
        allow_inf_nan=False,
    )
    """Longest delay in seconds, before the random factor."""
    multiplier: Seconds = Field(
        default=2, ge=1, le=100, description="a number from 1 to 100", examples=["2"], allow_inf_nan=False
    )
    """Factor by which each delay is longer than the one before."""
    jitter: Seconds = Field(
        default=0.25, ge=0, le=0.9, description="a number from 0 to 0.9", examples=["0.25"], allow_inf_nan=False
    )
    """Each delay is multiplied by a random number between 1 - jitter and 1 + jitter."""
    record_attempts: Whole = Field(
        default=1, ge=1, le=1000, description="a whole number from 1 to 1000", examples=["5"]
    )
    """How often a record that its topic refuses is sent before its event is dead-lettered. The pipeline waits between
    attempts, because later events must not overtake it."""
    columns: RetryColumns = Field(
        default=RetryColumns(),
        description="settings such as `attempts: max_attempts`",
        examples=["{attempts: max_attempts}"],
    )
    """Columns of the outbox with a row's own settings."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.maximum < self.base:
            raise wrong("at least `base`", "raise retries.maximum, or lower retries.base", "retries", "maximum")
        return self

    def backoff(self) -> Backoff:
        return Backoff(self.base, self.maximum, self.multiplier, self.jitter)
