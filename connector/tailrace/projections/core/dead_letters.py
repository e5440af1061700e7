"""Writes the dead letter of an event that a projection gave up on, in the format that pipelines use. Pure.

So `tailrace dlq` lists it, shows it, and publishes it again to the topic it was read from. The dead letter keeps the
record as it was: key, value and all headers. A header whose name the dead letter needs itself, such as that of an
earlier redrive, is kept as `tailrace.kept.<name>`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tailrace.dlq.record import build_dead_letter, cut, payload_contents, reason_headers
from tailrace.errors import Reason, Rejected
from tailrace.event import Headers, Record
from tailrace.projections.core.event import Event

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
