"""Generates an AsyncAPI 3 document: topics, events, their headers and schemas.

The document is self-contained: it includes the schemas of the folder or the registry, and references between them point
into the document. This module does no input or output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from tailrace.codegen.asyncapi.embedding import key_of, needed_by
from tailrace.codegen.asyncapi.schemas import Schemas, legal_names
from tailrace.errors import ConfigError
from tailrace.records.formats import RecordFormat
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.strict_json import Json

ASYNCAPI = "3.0.0"
KAFKA_BINDING = "0.5.0"
CONTENT_TYPES = {"json": "application/json", "avro": "application/avro"}
STRUCTURED = "application/cloudevents+json"

_NUMBERS = ("retention.ms", "retention.bytes", "delete.retention.ms", "max.message.bytes")
_STRATEGIES = {
    "{type}": "RecordNameStrategy",
    "{topic}-value": "TopicNameStrategy",
    "{topic}-{type}": "TopicRecordNameStrategy",
}

_PARAMETER = re.compile(r"\{(\w+)\}")
"""The part of a topic's name that depends on the event."""

MessageKey = tuple[str, str, Version]
"""An event's type, and its schema's subject and version."""


class Message(NamedTuple):
    """An event type in one version, and the schema of its payload."""

    type: str
    schema: CompiledSchema


@dataclass(frozen=True, slots=True)
class Channel:
    """A topic and its messages. Values that are None or not positive are left to the brokers and not written."""

    topic: str
    messages: tuple[Message, ...] = ()
    description: str = ""
    partitions: int | None = None
    replicas: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """Where the topics are. `bootstrap` is host:port, comma-separated; `subject` is the registry's template."""

    bootstrap: str
    secure: bool = False
    registry: str | None = None
    subject: str = "{type}"


def asyncapi(
    title: str,
    version: str,
    server: Server,
    channels: Sequence[Channel],
    compiled_schemas: Iterable[CompiledSchema],
    format: RecordFormat,
    *,
    description: str = "",
) -> dict[str, Json]:
    """Returns the document. `compiled_schemas` are all registered schemas: references of the channels' schemas are
    resolved there."""
    registered = {key_of(compiled): compiled for compiled in compiled_schemas}
    messages = {_key(message): message for channel in channels for message in channel.messages}
    named = legal_names({key: f"{type_name}.v{number}" for key in messages for type_name, _, number in [key]})
    topics = list(legal_names({index: channel.topic for index, channel in enumerate(channels)}).values())
    schemas = Schemas(needed_by([message.schema for message in messages.values()], registered))
    return {
        "asyncapi": ASYNCAPI,
        "info": _stated(title=title, version=version, description=description),
        "defaultContentType": _content_type(format),
        "servers": _servers(server),
        "channels": {topic: _channel(channel, named) for topic, channel in zip(topics, channels, strict=True)},
        "operations": {
            f"send.{topic}": _operation(topic, channel, named) for topic, channel in zip(topics, channels, strict=True)
        },
        "components": {
            "messages": {named[key]: _message(each, schemas, server, format) for key, each in messages.items()},
            "schemas": schemas.components(),
        },
    }


def _servers(server: Server) -> dict[str, Json]:
    """Returns one server per address of the bootstrap list, because an AsyncAPI server has one host."""
    bindings = {}
    if server.registry is not None:
        # Remove the login: the document is public.
        parts = urlsplit(server.registry)
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        kafka = {"schemaRegistryUrl": address, "schemaRegistryVendor": "confluent", "bindingVersion": KAFKA_BINDING}
        bindings = {"kafka": kafka}
    protocol = "kafka-secure" if server.secure else "kafka"
    hosts = [host.strip() for host in server.bootstrap.split(",") if host.strip()]
    return {
        f"kafka-{number}" if number > 1 else "kafka": _stated(host=host, protocol=protocol, bindings=bindings)
        for number, host in enumerate(hosts, 1)
    }


def _channel(channel: Channel, named: Mapping[MessageKey, str]) -> dict[str, Json]:
    names = [named[_key(message)] for message in channel.messages]
    kafka = _stated(
        partitions=channel.partitions if (channel.partitions or 0) > 0 else None,
        replicas=channel.replicas if (channel.replicas or 0) > 0 else None,
        topicConfiguration=_topic_configuration(channel),
        bindingVersion=KAFKA_BINDING,
    )
    return _stated(
        address=channel.topic,
        description=channel.description,
        parameters={name: {"description": f"the event's {name}"} for name in _PARAMETER.findall(channel.topic)},
        messages={name: {"$ref": f"#/components/messages/{name}"} for name in names},
        bindings={"kafka": kafka},
    )


def _topic_configuration(channel: Channel) -> dict[str, Json]:
    """Returns the settings that the binding knows. It wants numbers and lists where Kafka has text."""
    found: dict[str, Json] = {}
    if "cleanup.policy" in channel.config:
        found["cleanup.policy"] = [policy.strip() for policy in channel.config["cleanup.policy"].split(",")]
    for name in _NUMBERS:
        if name in channel.config:
            try:
                found[name] = int(channel.config[name])
            except ValueError:
                raise ConfigError(
                    f"{name} of the topic {channel.topic} is {channel.config[name][:80]!r}, not a whole number",
                    remedy="Correct it in the topic's spec.",
                ) from None
    return found


def _operation(topic: str, channel: Channel, named: Mapping[MessageKey, str]) -> dict[str, Json]:
    names = [named[_key(message)] for message in channel.messages]
    return _stated(
        action="send",
        channel={"$ref": f"#/channels/{topic}"},
        summary=f"Committed events, exactly once and in order per key, to {channel.topic}.",
        messages=[{"$ref": f"#/channels/{topic}/messages/{name}"} for name in names],
    )


def _message(message: Message, schemas: Schemas, server: Server, format: RecordFormat) -> dict[str, Json]:
    compiled = message.schema
    document = compiled.document if isinstance(compiled.document, dict) else {}
    structured = format.cloudevents == "structured"
    metadata = "The value has a further field `metadata`, with outbox_id and sequence_number." * format.has_metadata
    return _stated(
        name=message.type,
        title=f"{message.type}, version {compiled.version}",
        summary=document.get("doc" if compiled.kind == "avro" else "description"),
        description=metadata,
        contentType=_content_type(format),
        correlationId={"location": "$message.payload#/id" if structured else "$message.header#/id"},
        headers=_headers(message, format),
        payload=_envelope(message, schemas) if structured else {"$ref": schemas.place(compiled)},
        bindings={"kafka": _record(server, format)},
    )


def _content_type(format: RecordFormat) -> str:
    return STRUCTURED if format.cloudevents == "structured" else CONTENT_TYPES[format.value]


def _headers(message: Message, format: RecordFormat) -> dict[str, Json]:
    """Returns the headers of every record. Additional columns of the outbox table may be there as well."""
    own: dict[str, Json] = {
        "id": _text("The event's id, the same in every delivery."),
        "type": {"type": "string", "const": message.type},
        "position": _text("The position in the database's log; it grows with every commit."),
        "timestamp": {**_text("When it was committed, in milliseconds since 1970."), "pattern": "^[0-9]+$"},
    }
    if format.has_metadata:
        own |= {"event_type": own["type"], "aggregate_id": _text("The aggregate that the event is about.")}
    if format.schema_id == "header":
        own["__value_schema_id"] = _text("The id of the value's schema, as registry clients expect it.")
        if format.key != "bytes":
            own["__key_schema_id"] = _text("The id of the key's schema.")
    if format.cloudevents == "binary":
        own |= {f"ce_{name}": schema for name, schema in _attributes(message).items()}
    if format.cloudevents != "none":
        own["content-type"] = {"type": "string"}
    return {"type": "object", "required": list(own), "properties": own}


def _attributes(message: Message) -> dict[str, Json]:
    """Returns the attributes of every CloudEvent."""
    return {
        "specversion": {"type": "string", "const": "1.0"},
        "id": _text("The event's id."),
        "source": {**_text("Where the event comes from."), "format": "uri-reference"},
        "type": {"type": "string", "const": message.type},
        "time": {**_text("When it was committed."), "format": "date-time"},
    }


def _envelope(message: Message, schemas: Schemas) -> dict[str, Json]:
    """Returns the schema of a structured CloudEvent. Its data is JSON; an Avro schema only describes it for people."""
    compiled = message.schema
    is_json = compiled.kind == "json"
    data = {"$ref": f"{schemas.place(compiled)}/schema"} if is_json else _stated(description=schemas.place(compiled))
    attributes = _attributes(message) | {"datacontenttype": {"type": "string", "const": "application/json"}}
    envelope = {"type": "object", "required": [*attributes, "data"], "properties": attributes | {"data": data}}
    return {"schemaFormat": schemas.format(compiled), "schema": envelope} if is_json else envelope


def _record(server: Server, format: RecordFormat) -> dict[str, Json]:
    """Returns the Kafka binding of a message: its key, and how readers find the schema."""
    written = format.schema_id != "none"
    return _stated(
        key=_text("The subject of the event. Events with the same key are in one partition, in commit order."),
        schemaIdLocation={"prefix": "payload", "header": "header"}.get(format.schema_id),
        schemaIdPayloadEncoding="4" if format.schema_id == "prefix" else None,
        schemaLookupStrategy=_STRATEGIES.get(server.subject, server.subject) if written else None,
        bindingVersion=KAFKA_BINDING,
    )


def _text(description: str) -> dict[str, Json]:
    return {"type": "string", "description": description}


def _stated(**fields: Json) -> dict[str, Json]:
    """Returns the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


def _key(message: Message) -> MessageKey:
    return message.type, *key_of(message.schema)
