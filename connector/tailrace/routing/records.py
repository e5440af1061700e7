"""OutboxEvent -> Record: what Kafka is given. The payload is the value, byte for byte.

Headers, in this order: id, type, position, timestamp, then the table's further columns under their
own names. A further column that bears one of our names is left out: readers must be able to rely on ours.
"""

from __future__ import annotations

from tailrace.event import Headers, OutboxEvent, Record

OUR_HEADERS = frozenset({"id", "type", "position", "timestamp"})

_new_record = tuple.__new__
"""Without the argument handling of its own constructor: this runs once per event."""


def record_for(event: OutboxEvent, topic: str) -> Record:
    """The record of one event."""
    event_id, type_name, _, key, payload, _, place, committed_ms, extra = event
    headers: Headers = [
        ("id", event_id),
        ("type", type_name),
        ("position", place),
        ("timestamp", str(committed_ms)),
    ]
    for header in extra:
        if header[0] not in OUR_HEADERS:
            headers.append(header)
    return _new_record(Record, (topic, payload, key, headers, committed_ms))
