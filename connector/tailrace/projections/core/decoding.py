"""Decodes payloads in every format that the connector writes, except Avro. Pure.

    plain JSON                   the value
    JSON or Avro with schema id  after a zero byte and 4 bytes of schema id, or the id in the header `__value_schema_id`
    CloudEvents                  structured: the payload is in `data`; binary: the value, with or without schema id

JSON needs no registry: the schema id in front of it is skipped. Avro needs its writer schema, and so a registry
(`decode=RegistryDecoder(url)`, see `registry_decoder.py`). For other formats, pass your own `decode` function.
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
SchemaId = int | str
"""The number or the GUID of a schema in a registry."""
PayloadReader = Callable[[bytes], Any]
"""Reads the payload after the schema id; raises ValueError if it does not match its schema."""
PREFIX_BYTES = 5
STRUCTURED = b"application/cloudevents+json"

_NO_REGISTRY = (
    "If the topic carries Avro, give the projection `decode=RegistryDecoder(url)`; for other formats, your own "
    "`decode` function."
)
_FIX_PRODUCER = "Fix the service that wrote it; then have it write the event again."


def decode_json(event: Event) -> Any:  # noqa: ANN401 - any JSON value
    """Parses the payload as JSON; raises Rejected if it is not JSON."""
    schema, body = split_schema_id(event)
    try:
        data = orjson.loads(body)
    except ValueError as error:
        prefixed = " after its schema id" if len(body) < len(event.value or b"") else ""
        raise Rejected(
            Reason.POISON_MESSAGE,
            f"the payload is not JSON{prefixed}: {error}",
            remedy=_FIX_PRODUCER if schema is None else _NO_REGISTRY,
        ) from None
    if (event.header_values.get(CONTENT_TYPE) or b"").startswith(STRUCTURED) and isinstance(data, dict):
        return data.get("data")
    return data


def decode_with_schema(event: Event, reader_of: Callable[[SchemaId], PayloadReader]) -> Any:  # noqa: ANN401
    """Decodes the payload with the schema whose id it carries; as JSON if it carries none."""
    schema, body = split_schema_id(event)
    if schema is None:
        return decode_json(event)
    try:
        return reader_of(schema)(body)
    except ValueError as error:
        raise Rejected(
            Reason.POISON_MESSAGE, f"the payload does not match its schema {schema}: {error}", remedy=_FIX_PRODUCER
        ) from None


def split_schema_id(event: Event) -> tuple[SchemaId | None, bytes]:
    """Splits a value into its schema id, None if it has none, and its payload."""
    value = event.value or b""
    header = event.header_values.get(VALUE_HEADER)
    if header is not None:
        # A header in an unknown form is ignored.
        if header[:1] == b"\x01" and len(header) == 17:
            return str(UUID(bytes=header[1:])), value
        if header[:1] == b"\0" and len(header) == PREFIX_BYTES:
            return int.from_bytes(header[1:], "big"), value
        return None, value
    # JSON never starts with a zero byte.
    if value[:1] == b"\0" and len(value) >= PREFIX_BYTES:
        return int.from_bytes(value[1:PREFIX_BYTES], "big"), value[PREFIX_BYTES:]
    return None, value
