"""What is to be done about an event that failed, and how that is told. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.errors import ConfigError, Reason, Rejected, TailraceError
from tailrace.projections.core.apply import HandlerTimeout
from tailrace.projections.core.dead_letters import Failure
from tailrace.projections.core.event import Event

CONFIG_ATTEMPTS = 2
"""A table or a column that is not there may have been made just now."""


def cut(part: Sequence[Event], index: int | None) -> list[Sequence[Event]]:
    """The parts to try next: around the event at `index`, or in halves if nobody knows which it was."""
    if index is None:
        index = len(part) // 2
        return [part[:index], part[index:]]
    return [piece for piece in (part[:index], part[index : index + 1], part[index + 1 :]) if piece]


def judgement(error: Exception, attempts: int, most: int) -> Failure | None:
    """Why an event is given up; None if it is worth another try."""
    if isinstance(error, Rejected):
        return Failure(error.reason, error.explanation, error.remedy, attempts)
    if attempts < (CONFIG_ATTEMPTS if isinstance(error, ConfigError) else most):
        return None
    if isinstance(error, HandlerTimeout):
        reason, why = Reason.PROCESSING_TIMEOUT, str(error)
    else:
        reason, why = Reason.MAX_RETRIES_EXCEEDED, f"the handler raised {described(error)}"
    return Failure(reason, why, "Mend the handler, then put it back with `tailrace dlq redrive`.", attempts)


def waited_too_long(seconds: float, version: int) -> Failure:
    return Failure(
        Reason.PERMANENT_FAILURE,
        f"version {version} of its entity waited {seconds:g} s for version {version - 1}, which did not come",
        "Find out what became of the earlier event; once that is applied, `tailrace dlq redrive` puts this one back.",
        1,
    )


def described(error: BaseException) -> str:
    """For a dead letter, which keeps the event anyway."""
    return error.what if isinstance(error, TailraceError) else f"{type(error).__name__}: {error}"


def told(error: BaseException) -> str:
    """For logs: an error's own text may quote the event, or the row that a database did not take."""
    if isinstance(error, TailraceError) and not isinstance(error, Rejected):
        return error.what
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    return f"{type(error).__name__}: {primary}" if primary else type(error).__name__
