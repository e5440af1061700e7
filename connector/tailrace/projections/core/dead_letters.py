"""An event that a projection gave up on -> its dead letter, in the format that pipelines write.

Pure. So `tailrace dlq` lists it, shows it, and publishes it again to the topic it was read from. The letter keeps the
record as it came: key, value and all headers. A header under a name that letters speak under themselves, such as that
of an earlier redrive, is kept as `tailrace.kept.<name>`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tailrace.dlq.record import cut, enclosed, explained, payload_contents
from tailrace.errors import Reason, Rejected
from tailrace.event import Headers, Record
from tailrace.projections.core.event import Event

LIMIT_BYTES = 850_000
"""With key and headers such a letter stays below 1 MB, which topics and producers take unless told otherwise."""
LAST_MS = 253_370_764_800_000
"""The year 9999: times are said by whoever published the event, and calendars end there."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a handler did not get an event done, after how many attempts."""

    reason: Reason
    explanation: str
    remedy: str
    attempts: int


def letter(
    event: Event,
    failure: Failure,
    *,
    group: str,
    topic: str,
    limit_bytes: int = LIMIT_BYTES,
    keep_payload: bool = True,
) -> Record:
    """The dead letter of `event`, for the letters' `topic`; `group` is the consumer's.

    Written twice, it differs at most in why and after how many attempts. A value larger than `limit_bytes` is kept by
    hash and length, as every value is without `keep_payload`. The record's timestamp is the event's time: it is to
    be written without, or on a topic that stamps records itself, or Kafka deletes the letters of old events at once.
    """
    time_ms = min(max(event.time_ms, 0), LAST_MS)
    source, number = event.partition
    rejected = Rejected(failure.reason, failure.explanation, remedy=failure.remedy)
    position = event.position or event.place
    said = explained(rejected, position, source, time_ms, by=group, stage="TASK_PUT", details=keep_payload)
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
    return enclosed(topic, contents, said, time_ms, limit_bytes=limit_bytes, keep_payload=keep_payload, rename=True)
