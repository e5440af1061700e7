"""Settings of dead letters: contents, retention, failure policies and the webhook."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tailrace.config.kafka_settings import revealed, wrong
from tailrace.config.section import Section
from tailrace.config.values import Seconds, WebhookHeaders, WebhookUrl, Whole
from tailrace.errors import Reason

Policy = Literal["dead_letter", "park", "halt"]


def reason_name(name: str) -> str:
    if name not in {reason.value for reason in Reason}:
        raise wrong(
            f"a reason, one of {', '.join(reason.value for reason in Reason)}",
            "correct the name, such as `poison_message: halt`",
        )
    return name


ReasonName = Annotated[str, AfterValidator(reason_name)]


class WebhookSettings(Section):
    """The webhook that is called for new dead letters and all other alerts."""

    url: WebhookUrl = Field(description="an http or https address", examples=["https://hooks.example.org/tailrace"])
    """Address of the webhook. Its path is treated as a secret."""
    headers: WebhookHeaders = Field(
        default={}, description="headers by name", examples=["{Authorization: '${env:HOOK_TOKEN}'}"]
    )
    """HTTP headers of the call. Values are treated as secrets."""
    interval: Seconds = Field(
        default=60,
        ge=1,
        le=86_400,
        description="seconds between two calls for the same reason and type, from 1 to 86400",
        examples=["60"],
        allow_inf_nan=False,
    )
    """Shortest time between two calls for the same reason and type."""
    timeout: Seconds = Field(
        default=5, gt=0, le=60, description="seconds, up to 60", examples=["5"], allow_inf_nan=False
    )
    """Seconds to wait for an answer of the webhook."""

    def header_values(self) -> dict[str, str]:
        """Returns the headers with secrets revealed, only for the call."""
        return {name: str(value) for name, value in revealed(self.headers).items()}


class DeadLetterSettings(Section):
    """Dead letters. Their topic is kafka.dead_letter_topic."""

    payload: Literal["keep", "hash"] = Field(default="keep", description="keep or hash", examples=["keep"])
    """Whether a dead letter keeps the payload or only its length and SHA-256."""
    retention_days: Whole = Field(default=30, ge=1, le=3650, description="days, from 1 to 3650", examples=["30"])
    """Retention of the dead-letter topic, when Tailrace creates it."""
    reasons: dict[ReasonName, Policy] = Field(
        default={},
        description="dead_letter, park or halt by reason",
        examples=["{poison_message: halt}"],
    )
    """Policies that differ from `on_invalid`, by reason."""
    park_keys: Whole = Field(
        default=10_000, ge=1, le=1_000_000, description="keys, from 1 to 1000000", examples=["10000"]
    )
    """Most keys that may be parked at once. Beyond it the pipeline stops."""
    park_hours: Seconds = Field(
        default=168, gt=0, le=8760, description="hours, up to 8760", examples=["168"], allow_inf_nan=False
    )
    """Longest time a key may be parked. Beyond it the pipeline stops."""
    webhook: WebhookSettings | None = Field(
        default=None, description="settings such as `url: https://…`", examples=["{url: 'https://hooks.example.org'}"]
    )
    """An HTTP endpoint that is notified of new dead letters."""

    @model_validator(mode="after")
    def _kept_while_parked(self) -> Self:
        if self.park_hours > self.retention_days * 24:
            raise wrong(
                f"at most retention_days, {self.retention_days * 24} hours",
                "raise retention_days, or lower park_hours: a parked key needs its dead letter",
                "dead_letters",
                "park_hours",
            )
        return self


def reasons_with(policy: Policy, on_invalid: Policy, letters: DeadLetterSettings) -> frozenset[Reason]:
    """Returns the reasons to which this policy applies."""
    chosen = {reason: letters.reasons.get(reason.value, on_invalid) for reason in Reason}
    return frozenset(reason for reason, each in chosen.items() if each == policy)
