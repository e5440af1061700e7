"""An event as a CloudEvent 1.0 on Kafka: attributes in headers (binary), or in the value with the data (structured).

    id, type       as in the row                        time          the commit, in UTC
    source         from the settings                    dataschema    the schema's address, if it has one
    subject        the key, where it is text            partitionkey  the same, where the key is sent as it is

The payload itself is never read or written anew: in a structured event it stands between our own bytes. An event
without a payload has no value in either mode, which Kafka takes for a deletion; it is sent in binary mode, the only
one that knows events without data.
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
"""The text of an attribute: some, and no control characters."""


def attribute_writer(source: str, *, prefix: str, key_as_it_is: bool) -> AttributeWriter:
    """A function of (event, key, contract) for every attribute but datacontenttype, their names behind `prefix`.

    `key` is the record's, before it takes any form.
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
        # An address with a login in it is nobody else's business.
        if schema is not None and schema.file.startswith(("https://", "http://")) and "@" not in schema.file:
            pairs.append((data_schema, schema.file))
        return pairs

    return attributes


def structured(attributes: list[tuple[str, str]], payload: bytes) -> bytes:
    """The value of structured mode: `payload`, which must be JSON, stands in it byte for byte."""
    head = orjson.dumps({**dict(attributes), "datacontenttype": "application/json"})
    return b'%b,"data":%b}' % (head[:-1], payload)


def _text(key: bytes | None) -> str | None:
    """A key that may be an attribute."""
    try:
        text = "" if key is None else key.decode()
    except UnicodeDecodeError:
        return None
    return text if _usable(text) else None


@lru_cache(maxsize=64)  # the events of a transaction have the same time
def _time(milliseconds: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
