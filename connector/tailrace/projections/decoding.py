"""The payload of a record -> data: JSON as the connector publishes it, whatever its framing. Pure.

Plain JSON, JSON behind a registry's frame (a zero byte and four of schema id), and CloudEvents (structured: the payload
is in `data`; binary: the value is the payload). For other formats, such as Avro, give the projection a `decode`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from tailrace.errors import Reason, Rejected
from tailrace.projections.event import Event

Decode = Callable[[Event], Any]
FRAME = 5
STRUCTURED = b"application/cloudevents+json"


def parsed(event: Event) -> Any:  # noqa: ANN401 - JSON is what it is
    """The payload as JSON; Rejected if it is none."""
    value = event.value or b""
    framed = value[:1] == b"\0" and len(value) > FRAME
    try:
        data = orjson.loads(value[FRAME:] if framed else value)
    except ValueError as error:
        raise Rejected(
            Reason.POISON_MESSAGE,
            f"the payload is no JSON{' behind its frame' if framed else ''}: {error}",
            remedy="If the topic carries another format, such as Avro, give the projection a `decode`."
            if framed
            else "Correct the service that wrote it; then have it write the event again.",
        ) from None
    if (event.said.get("content-type") or b"").startswith(STRUCTURED) and isinstance(data, dict):
        return data.get("data")
    return data
