"""Writes events as CloudEvents 1.0: attributes in headers (binary), or in the value with the data (structured).

    id, type       as in the row                        time          the commit, in UTC
    source         from the settings                    dataschema    the schema's address, if it has one
    subject        the key, if it is text               partitionkey  the same, if the key is sent unchanged

The payload is never parsed or rewritten: a structured event embeds its bytes. An event without a payload has a null
value in both modes, which Kafka treats as a deletion; it is sent in binary mode, the only one for events without data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import orjson

from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent
from tailrace.schemas.compiled import CompiledSchema

PREFIX = "ce_"
CONTENT_TYPE = "content-type"
STRUCTURED = "application/cloudevents+json; charset=UTF-8"
HEADERS = frozenset(
    PREFIX + name for name in ("specversion", "id", "type", "source", "time", "subject", "partitionkey", "dataschema")
) | {CONTENT_TYPE}

AttributeWriter = Callable[[OutboxEvent, bytes | None, CompiledSchema | None], list[tuple[str, str]]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_usable = re.compile("[^\x00-\x1f\x7f-\x9f]+").fullmatch
"""A valid attribute: not empty, without control characters."""


def attribute_writer(source: str, *, prefix: str, key_as_it_is: bool) -> AttributeWriter:
    """Returns a function of (event, key, schema) that yields every attribute except datacontenttype, named with
    `prefix`.

    `key` is the record's key before it is formatted.
    """
    fixed: list[tuple[str, str]] = [(prefix + "specversion", "1.0"), (prefix + "source", source)]
    id_name, type_name, time_name = prefix + "id", prefix + "type", prefix + "time"
    subject, partition_key, data_schema = prefix + "subject", prefix + "partitionkey", prefix + "dataschema"

    def attributes(event: OutboxEvent, key: bytes | None, schema: CompiledSchema | None) -> list[tuple[str, str]]:
        if not _usable(event.id) or not _usable(event.type):
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                "the event's id or type is empty or has control characters, which a CloudEvent may not have",
                remedy="Have the service write plain text there.",
            )
        pairs = [*fixed, (id_name, event.id), (type_name, event.type), (time_name, _time(event.committed_ms))]
        text = _text(key)
        if text is not None:
            pairs.append((subject, text))
            if key_as_it_is:
                pairs.append((partition_key, text))
        # A URL that contains a login must not be published.
        if schema is not None and schema.file.startswith(("https://", "http://")) and "@" not in schema.file:
            pairs.append((data_schema, schema.file))
        return pairs

    return attributes


def structured(attributes: list[tuple[str, str]], payload: bytes) -> bytes:
    """Returns the value of structured mode. `payload` must be JSON and is embedded byte for byte."""
    head = orjson.dumps({**dict(attributes), "datacontenttype": "application/json"})
    return b'%b,"data":%b}' % (head[:-1], payload)


def _text(key: bytes | None) -> str | None:
    """Returns the key as text if it is a valid attribute."""
    try:
        text = "" if key is None else key.decode()
    except UnicodeDecodeError:
        return None
    return text if _usable(text) else None


@lru_cache(maxsize=64)  # the events of a transaction have the same time
def _time(milliseconds: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
