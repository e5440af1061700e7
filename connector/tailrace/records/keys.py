"""Writes a record's key as bytes, a JSON string or an Avro string.

If schema ids are written, the keys of a topic have their own schema, looked up once per topic. With `prefix`, its id
precedes the key, and Kafka chooses the partition by both: a new version of the key's schema moves every key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import orjson

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.records import framing
from tailrace.records.framing import SchemaId
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.messages import cut

KeyFormat = Literal["bytes", "json", "avro"]
KeySchema = Callable[[str], CompiledSchema]
WrittenKey = tuple[bytes | None, bytes | None]
"""The key, and the content of its schema id's header."""


class _Known(NamedTuple):
    schema: CompiledSchema
    before: bytes
    header: bytes | None


def key_writer(form: KeyFormat, schema_id: SchemaId, schema_of: KeySchema | None) -> Callable[..., WrittenKey]:
    """Returns a function of (key, topic). An event without a key has none in any format."""
    if form == "bytes":
        return lambda key, topic: (key, None)
    if schema_id == "none":
        return lambda key, topic: (key if key is None else orjson.dumps(_text(key)), None)
    if schema_of is None:
        raise ConfigError(
            f"format.key: {form} needs schemas of keys, but there is no registry",
            remedy="Name a registry under schemas.registry, or set format.key: bytes.",
        )
    known: dict[str, _Known] = {}

    def write(key: bytes | None, topic: str) -> WrittenKey:
        if key is None:
            return None, None
        found = known.get(topic)
        if found is None:
            found = known[topic] = _look_up(schema_of(topic), form, schema_id)
        schema, before, header = found
        return before + _encoded(_text(key), schema), header

    return write


def _look_up(schema: CompiledSchema, form: KeyFormat, schema_id: SchemaId) -> _Known:
    if schema.kind != form:
        raise Rejected(
            Reason.SCHEMA_VALIDATION_FAILED,
            f"format.key is {form}, but {schema.subject} ({schema.file}) is registered as {schema.kind}",
            remedy=f"Set format.key: {schema.kind}, or register the other kind of schema.",
        )
    if schema_id == "prefix":
        return _Known(schema, framing.before(schema), None)
    return _Known(schema, b"", framing.in_header(schema))


def _encoded(text: str, schema: CompiledSchema) -> bytes:
    if schema.kind == "avro":
        return schema.encode(text)
    if not schema.is_valid(text):
        raise Rejected(
            Reason.SCHEMA_VALIDATION_FAILED,
            f"the key violates version {schema.version} of {cut(schema.subject)}: " + schema.explain(text, len(text)),
            remedy=f"Correct the service, or the schema {schema.file}.",
        )
    return orjson.dumps(text)


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise Rejected(
            Reason.PERMANENT_FAILURE,
            f"the key, {len(key)} bytes, is not UTF-8 and cannot be written as a string",
            remedy="Have the service write text as the key, or set format.key: bytes.",
        ) from None
