"""OutboxEvent -> Record: what Kafka is given. The payload is the value, byte for byte.

Headers, in this order: id, type, position, timestamp, tailrace.pipeline, then the table's further columns under their
own names. A further column that bears one of our names is left out: readers must be able to rely on ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tailrace.errors import Reason, Rejected
from tailrace.event import Headers, OutboxEvent, Record, Route

OUR_HEADERS = frozenset({"id", "type", "position", "timestamp"})
PIPELINE_HEADER = "tailrace.pipeline"
"""Which pipeline published a record: pipelines may share topics, and the ids of their events may be the same."""
_RESERVED = OUR_HEADERS | {PIPELINE_HEADER}

_new_record = tuple.__new__
"""Without the argument handling of its own constructor: this runs once per event."""


def plain_maker(pipeline: str = "") -> Callable[..., Record]:
    """A function that makes records of plain JSON, with the header of this pipeline; without one if it has no name."""
    own: Headers = [(PIPELINE_HEADER, pipeline)] if pipeline else []

    def make(event: OutboxEvent, route: Route, checked: object = None) -> Record:
        event_id, type_name, _, key, payload, _, place, committed_ms, extra, _ = event
        headers: Headers = [("id", event_id), ("type", type_name), ("position", place), _timestamp(committed_ms), *own]
        for header in extra:
            if header[0] not in _RESERVED:
                headers.append(header)
        topic, key_column = route
        if key_column is not None:
            key = chosen_key(event, key_column)
        return _new_record(Record, (topic, payload, key, headers, committed_ms))

    return make


@lru_cache(maxsize=1)
def _timestamp(committed_ms: int) -> tuple[str, str]:
    """The header of that name: the same for all events of a transaction."""
    return "timestamp", str(committed_ms)


plain_record = plain_maker()
"""The record of one event as plain JSON, which was checked but is sent as it came; names no pipeline."""


def chosen_key(event: OutboxEvent, column: str) -> bytes | None:
    """The value of a further column, as the record's key."""
    for name, value in event.extra:
        if name == column:
            return value.encode() if isinstance(value, str) else value
    raise Rejected(
        Reason.PERMANENT_FAILURE,
        f"the column {column!r}, which the topic's spec names as the key, is NULL or not there",
        remedy="Have the service fill it, or choose another key in the topic's spec.",
    )
