"""Makes the records of the storage layout: the event's metadata is inside the value, and three headers name the event.

    value     the payload, with a further field `metadata`: the column event_metadata, outbox_id and sequence_number
    headers   event_type, aggregate_id and, if the metadata has them, correlation_id, traceparent and tracestate

Payload and metadata are passed on as text, byte for byte, so no number changes. The schema validates the payload alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import orjson

from tailrace.errors import Reason, Rejected
from tailrace.event import Headers, OutboxEvent, Record, Route
from tailrace.outbox.specs import METADATA, SEQUENCE, STORAGE
from tailrace.records.plain import chosen_key
from tailrace.schemas.validation import ValidatedPayload

FIELD = "metadata"
OUTBOX_ID = "outbox_id"
CARRIED = ("correlation_id", "traceparent", "tracestate")
"""Fields of the metadata that are sent as headers, too."""
_INSIDE = frozenset({METADATA, SEQUENCE, STORAGE.timestamp, STORAGE.stream})
"""Columns that are not sent as headers: they are inside the value, or are the topic."""

RecordMaker = Callable[[OutboxEvent, Route, ValidatedPayload], Record]


def with_metadata(make: RecordMaker) -> RecordMaker:
    """Returns a function that makes records of the storage layout with `make`."""

    def make_record(event: OutboxEvent, route: Route, checked: ValidatedPayload) -> Record:
        if route.key_column is not None:
            event, route = event._replace(key=chosen_key(event, route.key_column)), Route(route.topic)
        return make(published(event), route, checked)

    return make_record


def published(event: OutboxEvent) -> OutboxEvent:
    """Returns the event with its metadata in the payload, and with the headers of this layout as further columns."""
    columns = {name: value.encode() if isinstance(value, str) else value for name, value in event.extra}
    raw = columns.get(METADATA) or b"{}"
    metadata = _object(raw, METADATA)
    headers: Headers = [("event_type", event.type)]
    headers += [(name, value) for name, value in event.extra if name not in _INSIDE]
    headers += [(name, value) for name in CARRIED if isinstance(value := metadata.get(name), str)]
    payload = event.payload
    if payload is not None:
        added = {OUTBOX_ID: event.id, SEQUENCE: _number(columns.get(SEQUENCE))}
        if added.keys() & metadata.keys():
            # Copied from another event: those of this event replace them.
            kept = {name: value for name, value in json.loads(raw).items() if name not in added}
            raw = json.dumps(kept, ensure_ascii=False).encode()
        inside = _joined(raw.strip(), orjson.dumps(added))
        if b'"metadata"' in payload and FIELD in _object(payload, "payload"):
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"the payload has a field {FIELD!r}, which this layout writes itself",
                remedy="Have the service write it under another name, or as the event's metadata.",
            )
        payload = _joined(_whole(payload), b'{"metadata": %b}' % inside)
    return event._replace(payload=payload, extra=headers)


def _joined(first: bytes, second: bytes) -> bytes:
    """Returns one JSON object with the fields of two."""
    return second if first[1:-1].strip() == b"" else b"%b, %b" % (first[:-1], second[1:])


def _whole(payload: bytes) -> bytes:
    """Returns the text of a JSON object without blanks around it; the database has parsed it."""
    text = payload.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):
        raise Rejected(
            Reason.POISON_MESSAGE,
            "the payload is not a JSON object, so it cannot contain the event's metadata",
            remedy="Have the service write an object.",
        )
    return text


def _object(raw: bytes, what: str) -> dict[str, object]:
    try:
        found = orjson.loads(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Rejected(
            Reason.POISON_MESSAGE,
            f"the {what} is not a JSON object",
            remedy="Have the service write an object there.",
        )
    return found


def _number(raw: bytes | None) -> int | None:
    try:
        return None if raw is None else int(raw)
    except ValueError:
        raise Rejected(Reason.POISON_MESSAGE, f"the {SEQUENCE} is not a whole number") from None
