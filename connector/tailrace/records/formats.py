"""The format of a pipeline's records: chosen once at the start, as one function from event to Record.

The default is `plain_record`. All other formats extend it, so that key, topic, time and our own headers (id, type,
position, timestamp, tailrace.pipeline) are the same in all of them. A column with the name of a header that the format
writes is left out, because readers rely on those headers. An event without a payload has a null value in every format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import Headers, OutboxEvent, Record, Route
from tailrace.records import cloudevents, framing
from tailrace.records.framing import SchemaId
from tailrace.records.keys import KeyFormat, KeySchema, key_writer
from tailrace.records.metadata import with_metadata
from tailrace.records.plain import OUR_HEADERS, plain_maker, plain_record
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.messages import cut
from tailrace.schemas.strict_json import NotJsonError, parse
from tailrace.schemas.validation import ValidatedPayload

RecordMaker = Callable[[OutboxEvent, Route, ValidatedPayload], Record]

_new_record = tuple.__new__
"""Avoids the argument handling of the constructor, because this runs for every event."""
_FRAMES = frozenset({framing.KEY_HEADER, framing.VALUE_HEADER})
_CONTENT_TYPES = {"json": "application/json", "avro": "application/avro"}


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How records are written. `source` is the CloudEvents attribute. Raises ConfigError for combinations that
    readers cannot read."""

    value: Literal["json", "avro"] = "json"
    schema_id: SchemaId = "none"
    cloudevents: Literal["none", "binary", "structured"] = "none"
    key: KeyFormat = "bytes"
    source: str = ""
    has_metadata: bool = False
    """Whether the event's metadata is written inside the value (`records/metadata.py`)."""

    def __post_init__(self) -> None:
        if "avro" in (self.value, self.key) and self.schema_id == "none":
            raise ConfigError(
                "format.schema_id is none, and Avro cannot be read without its schema",
                remedy="Set format.schema_id: prefix or header.",
            )
        if self.value == "avro" and self.has_metadata:
            raise ConfigError(
                "the layout storage puts the event's metadata into the value, which works for JSON only",
                remedy="Remove format.value: avro, or use another layout for this table.",
            )
        if self.cloudevents == "structured" and (self.value, self.schema_id) != ("json", "none"):
            raise ConfigError(
                "a structured CloudEvent is one JSON text without a schema id",
                remedy="Set format.cloudevents: binary, or leave format.value and format.schema_id out.",
            )
        if self.cloudevents == "binary" and (self.value, self.schema_id) == ("json", "prefix"):
            raise ConfigError(
                "a CloudEvent whose content-type is application/json cannot begin with a schema id",
                remedy="Set format.schema_id: header, which does not change the value.",
            )
        if self.cloudevents != "none" and not self.source:
            raise ConfigError("a CloudEvent needs a source", remedy="Set format.source, such as /shop/orders.")


def record_maker(format: RecordFormat, *, key_schema: KeySchema | None, pipeline: str = "") -> RecordMaker:
    """Returns the function that makes a pipeline's records. `key_schema` returns the schema of a topic's keys."""
    if format.has_metadata:
        return with_metadata(
            record_maker(replace(format, has_metadata=False), key_schema=key_schema, pipeline=pipeline)
        )
    write_key = key_writer(format.key, format.schema_id, key_schema)
    plain = plain_maker(pipeline) if pipeline else plain_record
    if format == RecordFormat():
        return plain
    ours = len(OUR_HEADERS) + bool(pipeline)
    reserved = _reserved(format)
    write_value = _value_writer(format)
    envelope = _envelope(format)

    def make(event: OutboxEvent, route: Route, checked: ValidatedPayload) -> Record:
        topic, payload, key, headers, timestamp = plain(event, route)
        schema = checked[1]
        if len(headers) > ours:
            headers = [header for header in headers if not reserved(header[0])]
        value, value_frame = (None, None) if payload is None else write_value(payload, checked)
        written, key_frame = write_key(key, topic)
        if envelope is not None:
            value = envelope(event, key, schema, value, headers)
        if key_frame is not None:
            headers.append((framing.KEY_HEADER, key_frame))
        if value_frame is not None:
            headers.append((framing.VALUE_HEADER, value_frame))
        return _new_record(Record, (topic, value, written, headers, timestamp))

    return make


def _reserved(format: RecordFormat) -> Callable[[str], bool]:
    """Returns a test whether a column must not become a header. CloudEvents readers ignore the case of names."""
    names = _FRAMES if format.schema_id != "none" else frozenset()
    if format.cloudevents == "none":
        return names.__contains__
    if format.cloudevents == "binary":
        taken = names | cloudevents.HEADERS
        return lambda name: name.lower() in taken
    # Some readers take a structured event with any header of binary mode for a binary one.
    return lambda name: name.lower().startswith(cloudevents.PREFIX) or name.lower() == cloudevents.CONTENT_TYPE


def _value_writer(format: RecordFormat) -> Callable[[bytes, ValidatedPayload], tuple[bytes, bytes | None]]:
    """Returns a function from (payload, validated) to the value and the content of the schema id's header."""
    kind, schema_id = format.value, format.schema_id
    frames: dict[CompiledSchema, tuple[bytes, bytes | None]] = {}

    def frame(schema: CompiledSchema) -> tuple[bytes, bytes | None]:
        if schema_id == "prefix":
            return framing.before(schema), None
        return b"", framing.in_header(schema)

    def framed(payload: bytes, checked: ValidatedPayload) -> tuple[bytes, bytes | None]:
        content, schema = checked
        if schema is None:
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                "the event has no schema, so there is no schema id to write",
                remedy="Register a schema for its type, or set format.schema_id: none.",
            )
        if schema.kind != kind:
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"version {schema.version} of {cut(schema.subject)} is of the kind {schema.kind}, "
                f"but values are written as {kind}",
                remedy=f"Register a schema of the kind {kind}, or set format.value: {schema.kind}.",
            )
        found = frames.get(schema)
        if found is None:
            found = frames[schema] = frame(schema)
        before, header = found
        if kind == "json":
            return before + payload, header
        # Bytes were already written by `encode_text`.
        return before + (content if type(content) is bytes else schema.encode(content)), header

    def plain(payload: bytes, checked: ValidatedPayload) -> tuple[bytes, None]:
        if checked[1] is None and format.cloudevents == "structured":
            _require_json(payload)
        return payload, None

    return plain if schema_id == "none" else framed


def _envelope(
    format: RecordFormat,
) -> Callable[[OutboxEvent, bytes | None, CompiledSchema | None, bytes | None, Headers], bytes | None] | None:
    """Returns a function that makes a CloudEvent: it adds to the headers and returns the value to send."""
    if format.cloudevents == "none":
        return None
    as_it_is = format.key == "bytes"
    in_headers = cloudevents.attribute_writer(format.source, prefix=cloudevents.PREFIX, key_as_it_is=as_it_is)
    in_value = cloudevents.attribute_writer(format.source, prefix="", key_as_it_is=as_it_is)
    content_type = (cloudevents.CONTENT_TYPE, _CONTENT_TYPES[format.value])
    is_binary = format.cloudevents == "binary"

    def envelope(
        event: OutboxEvent, key: bytes | None, schema: CompiledSchema | None, value: bytes | None, headers: Headers
    ) -> bytes | None:
        if is_binary or value is None:
            headers += in_headers(event, key, schema)
            if value is not None:
                headers.append(content_type)
            return value
        headers.append((cloudevents.CONTENT_TYPE, cloudevents.STRUCTURED))
        return cloudevents.structured(in_value(event, key, schema), value)

    return envelope


def _require_json(payload: bytes) -> None:
    try:
        parse(payload)
    except NotJsonError as error:
        raise Rejected(
            Reason.POISON_MESSAGE,
            f"the payload is not usable JSON, which a structured CloudEvent requires: {error}",
            remedy="Have the service write JSON, or set format.cloudevents: binary.",
        ) from None
