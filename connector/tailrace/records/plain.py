"""Makes a Kafka record of an event. The payload is the value, byte for byte.

Headers, in this order: id, type, position, timestamp, tailrace.pipeline, then the additional columns of the table under
their own names. A column with the name of one of our headers is left out, because readers rely on ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tailrace.errors import Reason, Rejected
from tailrace.event import Headers, OutboxEvent, Record, Route

OUR_HEADERS = frozenset({"id", "type", "position", "timestamp"})
PIPELINE_HEADER = "tailrace.pipeline"
"""Names the pipeline that published a record: pipelines may share topics, and ids of their events may be equal."""
_RESERVED = OUR_HEADERS | {PIPELINE_HEADER}

_new_record = tuple.__new__
"""Avoids the argument handling of the constructor, because this runs for every event."""


def plain_maker(pipeline: str = "") -> Callable[..., Record]:
    """Returns a function that makes plain JSON records with the header of this pipeline; without the header if
    unnamed."""
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
    """The header of that name. Cached, because all events of a transaction have the same."""
    return "timestamp", str(committed_ms)


plain_record = plain_maker()
"""Makes the record of one event as plain JSON, without the pipeline's header."""


def chosen_key(event: OutboxEvent, column: str) -> bytes | None:
    """Returns the value of an additional column as the record's key."""
    for name, value in event.extra:
        if name == column:
            return value.encode() if isinstance(value, str) else value
    raise Rejected(
        Reason.PERMANENT_FAILURE,
        f"the column {column!r}, which the topic's spec names as the key, is NULL or missing",
        remedy="Have the service fill it, or choose another key in the topic's spec.",
    )
