"""Decides what happens to an event that failed: another attempt, or a dead letter and its reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.errors import ConfigError, Reason, Rejected, TailraceError
from tailrace.projections.core.apply import HandlerTimeout
from tailrace.projections.core.dead_letters import Failure
from tailrace.projections.core.event import Event

CONFIG_ATTEMPTS = 2
"""A missing table or column may have been created a moment ago."""


def split_batch(batch: Sequence[Event], index: int | None) -> list[Sequence[Event]]:
    """Splits a failed batch around the event at `index`, or in halves if it is unknown which event failed."""
    if index is None:
        index = len(batch) // 2
        return [batch[:index], batch[index:]]
    return [part for part in (batch[:index], batch[index : index + 1], batch[index + 1 :]) if part]


def final_failure(error: Exception, attempts: int, max_attempts: int) -> Failure | None:
    """Returns why an event is given up; None if it should be tried again."""
    if isinstance(error, Rejected):
        return Failure(error.reason, error.explanation, error.remedy, attempts)
    if attempts < (CONFIG_ATTEMPTS if isinstance(error, ConfigError) else max_attempts):
        return None
    if isinstance(error, HandlerTimeout):
        reason, why = Reason.PROCESSING_TIMEOUT, str(error)
    else:
        text = error.what if isinstance(error, TailraceError) else f"{type(error).__name__}: {error}"
        reason, why = Reason.MAX_RETRIES_EXCEEDED, f"the handler raised {text}"
    return Failure(reason, why, "Fix the handler, then publish the event again with `tailrace dlq redrive`.", attempts)


def waited_too_long(seconds: float, version: int) -> Failure:
    """Returns the failure of an event whose earlier version did not arrive in time."""
    return Failure(
        Reason.PERMANENT_FAILURE,
        f"version {version} of its entity waited {seconds:g} s for version {version - 1}, which did not arrive",
        "Find out why the earlier event is missing. Once it is applied, publish this one again with"
        " `tailrace dlq redrive`.",
        1,
    )


def log_text(error: BaseException) -> str:
    """Describes an error for logs without the error's own text, which may quote the event or a row."""
    if isinstance(error, TailraceError) and not isinstance(error, Rejected):
        return error.what
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    return f"{type(error).__name__}: {primary}" if primary else type(error).__name__
