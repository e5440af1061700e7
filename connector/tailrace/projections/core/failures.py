"""Decides what happens to an event that failed, another attempt or a dead letter, and writes dead letters. Pure.

Dead letters have the format that pipelines use: `tailrace dlq` lists and shows them, and publishes them again to the
topic they were read from. A dead letter keeps the record as it was: key, value and all headers. A header whose name it
needs itself, such as that of an earlier redrive, is kept as `tailrace.kept.<name>`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.dlq.record import build_dead_letter, cut, payload_contents, reason_headers
from tailrace.errors import ConfigError, Reason, Rejected, TailraceError
from tailrace.event import Headers, Record
from tailrace.projections.core.apply import HandlerTimeout
from tailrace.projections.core.event import Event

CONFIG_ATTEMPTS = 2
"""A missing table or column may have been created a moment ago."""
LIMIT_BYTES = 850_000
"""With key and headers such a record stays below 1 MB, the default limit of topics and producers."""
LAST_MS = 253_370_764_800_000
"""The year 9999, the last that `datetime` knows: the producer chooses the time."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an event was given up, and after how many attempts."""

    reason: Reason
    explanation: str
    remedy: str
    attempts: int


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


def dead_letter_record(
    event: Event,
    failure: Failure,
    *,
    group: str,
    topic: str,
    limit_bytes: int = LIMIT_BYTES,
    keep_payload: bool = True,
) -> Record:
    """Makes the dead letter of `event` for the dead-letter `topic`; `group` is the consumer group.

    Written twice, it differs at most in reason and attempts. Of a value larger than `limit_bytes`, and of every value
    without `keep_payload`, only hash and length are kept. The record's timestamp is the event's time. Send it without
    that timestamp, or to a topic with LogAppendTime: otherwise Kafka deletes dead letters of old events at once.
    """
    time_ms = min(max(event.time_ms, 0), LAST_MS)
    source, number = event.partition
    rejected = Rejected(failure.reason, failure.explanation, remedy=failure.remedy)
    position = event.position or event.location
    said = reason_headers(rejected, position, source, time_ms, by=group, stage="TASK_PUT", details=keep_payload)
    said += [
        ("tailrace.consumer", cut(group)),
        ("tailrace.consumer.partition", str(number)),
        ("tailrace.consumer.offset", str(event.offset)),
        ("tailrace.consumer.timestamp", str(time_ms)),
        ("tailrace.attempts", str(failure.attempts)),
        ("__connect.errors.partition", str(number)),
        ("__connect.errors.offset", str(event.offset)),
        ("kafka_dlt-original-partition", struct.pack(">i", number)),
        ("kafka_dlt-original-offset", struct.pack(">q", event.offset)),
        ("kafka_dlt-original-consumer-group", cut(group)),
    ]
    carried: Headers = list(event.headers)
    contents = payload_contents(event.value, event.key, carried)
    return build_dead_letter(
        topic, contents, said, time_ms, limit_bytes=limit_bytes, keep_payload=keep_payload, rename=True
    )
