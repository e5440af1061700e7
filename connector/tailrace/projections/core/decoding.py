"""The payload of a record -> data, whatever form the connector gave it. Pure.

    plain JSON                   the value
    JSON or Avro with an id      behind a zero byte and four of schema id, or the id in the header `__value_schema_id`
    CloudEvents                  structured: the payload is in `data`; binary: the value, with or without an id

JSON needs no registry: the schema id in front of it is skipped. Avro needs its writer schema, and so a registry
(`decode=RegistryDecoder(url)`, see `registry.py`). For other formats, pass your own `decode` function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import orjson

from tailrace.errors import Reason, Rejected
from tailrace.projections.core.event import Event
from tailrace.records.cloudevents import CONTENT_TYPE
from tailrace.records.framing import VALUE_HEADER

Decode = Callable[[Event], Any]
SchemaName = int | str
"""The number, or the GUID, that a registry gave a schema."""
Read = Callable[[bytes], Any]
"""Reads what stands behind a frame; ValueError if it is not what its schema says."""
FRAME = 5
STRUCTURED = b"application/cloudevents+json"

_NO_REGISTRY = (
    "If the topic carries Avro, give the projection `decode=RegistryDecoder(url)`; for other formats, your own "
    "`decode` function."
)
_WRONG = "Correct the service that wrote it; then have it write the event again."


def parsed(event: Event) -> Any:  # noqa: ANN401 - JSON is what it is
    """The payload as JSON; Rejected if it is none."""
    name, body = unframed(event)
    try:
        data = orjson.loads(body)
    except ValueError as error:
        framed = " behind its frame" if len(body) < len(event.value or b"") else ""
        raise Rejected(
            Reason.POISON_MESSAGE,
            f"the payload is no JSON{framed}: {error}",
            remedy=_WRONG if name is None else _NO_REGISTRY,
        ) from None
    if (event.said.get(CONTENT_TYPE) or b"").startswith(STRUCTURED) and isinstance(data, dict):
        return data.get("data")
    return data


def decoded(event: Event, reader_of: Callable[[SchemaName], Read]) -> Any:  # noqa: ANN401 - JSON or Avro
    """The payload, read by the schema that it names; as JSON if it names none."""
    name, body = unframed(event)
    if name is None:
        return parsed(event)
    try:
        return reader_of(name)(body)
    except ValueError as error:
        raise Rejected(
            Reason.POISON_MESSAGE, f"the payload is not of the schema {name} that it names: {error}", remedy=_WRONG
        ) from None


def unframed(event: Event) -> tuple[SchemaName | None, bytes]:
    """Which schema a value was written with, if it tells, and what is left of it without that."""
    value = event.value or b""
    header = event.said.get(VALUE_HEADER)
    if header is not None:
        # What stands there in no known form tells nothing.
        if header[:1] == b"\x01" and len(header) == 17:
            return str(UUID(bytes=header[1:])), value
        return (int.from_bytes(header[1:], "big") if header[:1] == b"\0" and len(header) == FRAME else None), value
    # No JSON begins with a zero byte.
    if value[:1] == b"\0" and len(value) >= FRAME:
        return int.from_bytes(value[1:FRAME], "big"), value[FRAME:]
    return None, value
