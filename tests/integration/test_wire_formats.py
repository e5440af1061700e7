"""Every format through a real Kafka and a real registry, read as other people's programs read: with the registry
client's deserialisers, fastavro and the CloudEvents SDK.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from confluent_kafka import Message, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tailrace.event import OutboxEvent, Record, Route
from tailrace.records.formats import RecordFormat, record_maker
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import CompiledSchema, RegistryIds, SchemaSet
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.schemas.validation import PayloadValidator
from tailrace.testkit.stack import KafkaBroker, RegistryServer
from tailrace.testkit.topic_reader import read_all

ORDER = {"number": 5, "note": "žluť", "lines": [{"sku": "A-1", "price": "12.50"}], "placed": "2026-01-02T03:04:05.678Z"}
PAYLOAD = json.dumps(ORDER).encode()
LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
DOCUMENTS: dict[str, Any] = {
    "json": {"title": "Order", "type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}},
    "avro": {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "lines", "type": {"type": "array", "items": LINE}},
            {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    },
}
KEYS: dict[str, Any] = {
    # Without $schema, Apicurio takes it for Avro and refuses it as JSON Schema.
    "json": {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Key", "type": "string"},
    "avro": "string",
}


@dataclass
class Trip:
    """Registers a schema, validates an event, writes it in a format, and reads the record from the topic."""

    kafka: KafkaBroker
    registry: RegistryServer
    topic: str = field(default_factory=lambda: f"orders-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.client = SchemaRegistryClient({"url": self.registry.url})

    def compiled(self, kind: str, subject: str, document: Any) -> CompiledSchema:
        found = self.client.register_schema_full_response(
            subject, Schema(json.dumps(document), schema_type=kind.upper())
        )
        assert found.schema_id is not None
        registered = RegistryIds(found.schema_id, found.guid)
        compile_schema: Any = CompiledAvroSchema.compile if kind == "avro" else CompiledJsonSchema.compile
        made: CompiledSchema = compile_schema(subject, Version(1), document, self.registry.url, registered=registered)
        return made

    def send(self, form: RecordFormat, payload: bytes | None = PAYLOAD) -> Message:
        subject = f"{self.topic}-value"
        compiled_schemas = SchemaSet.of([self.compiled(form.value, subject, DOCUMENTS[form.value])])
        validator = PayloadValidator(
            compiled_schemas, max_bytes=1_000_000, subject=lambda _type, topic: f"{topic}-value"
        )
        make = record_maker(form, key_schema=lambda topic: self.compiled(form.key, f"{topic}-key", KEYS[form.key]))
        event = OutboxEvent(
            "e-1", "Order", "order", b"order-1", payload, None, "0/1:3", 1767323045678, [("tenant", b"t")]
        )
        record: Record = make(event, Route(self.topic), validator.validate(event, self.topic))
        self.kafka.create_topic(self.topic)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        producer.produce(
            record.topic, record.value, record.key, headers=list(record.headers), timestamp=record.timestamp
        )
        assert producer.flush(30) == 0
        (message,) = read_all(self.kafka.bootstrap, [self.topic])
        return message

    def read(self, kind: str, message: Message, part: str = MessageField.VALUE) -> Any:
        context = SerializationContext(self.topic, part, message.headers())
        data = message.value() if part == MessageField.VALUE else message.key()
        # The default strategy asks the registry for associations, which this one does not have: its answer to that may
        # never come while the machine is busy.
        conf = {"subject.name.strategy": topic_subject_name_strategy}
        if kind == "avro":
            return AvroDeserializer(self.client, conf=conf)(data, context)
        return JSONDeserializer(None, schema_registry_client=self.client, conf=conf)(data, context)


@pytest.fixture
def trip(kafka: KafkaBroker, registry: RegistryServer) -> Iterator[Trip]:
    trip = Trip(kafka, registry)
    yield trip
    trip.client.close()


def as_json(order: dict[str, Any]) -> dict[str, Any]:
    """Converts the values of an Avro reader to those of the JSON payload."""
    lines = [{**line, "price": str(line["price"])} for line in order["lines"]]
    placed = order["placed"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {**order, "lines": lines, "placed": placed}


def as_event(message: Message) -> Any:
    headers = dict(message.headers() or [])
    return from_kafka_event(KafkaMessage(headers, message.key(), message.value()))  # type: ignore[arg-type]


@pytest.mark.parametrize("schema_id", ["prefix", "header"])
@pytest.mark.parametrize("key", ["json", "avro"])
def test_json_is_read_by_the_registrys_client(trip: Trip, key: Any, schema_id: Any) -> None:
    message = trip.send(RecordFormat(schema_id=schema_id, key=key))
    assert trip.read("json", message) == ORDER
    assert trip.read(key, message, MessageField.KEY) == "order-1"
    assert dict(message.headers() or [])["tenant"] == b"t"


@pytest.mark.parametrize("schema_id", ["prefix", "header"])
@pytest.mark.parametrize("key", ["bytes", "avro"])
def test_avro_is_read_by_the_registrys_client(trip: Trip, key: Any, schema_id: Any) -> None:
    message = trip.send(RecordFormat(value="avro", schema_id=schema_id, key=key))
    assert as_json(trip.read("avro", message)) == ORDER
    if key == "bytes":
        assert message.key() == b"order-1"
    else:
        assert trip.read("avro", message, MessageField.KEY) == "order-1"


def test_avro_is_read_by_fastavro_with_the_registered_schema(trip: Trip) -> None:
    value = trip.send(RecordFormat(value="avro", schema_id="prefix")).value() or b""
    assert isinstance(value, bytes)
    schema = trip.client.get_schema(int.from_bytes(value[1:5], "big")).schema_str or ""
    assert as_json(fastavro.schemaless_reader(io.BytesIO(value[5:]), json.loads(schema), None)) == ORDER  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_a_cloudevent_is_read_by_the_sdk(trip: Trip, mode: Any) -> None:
    event = as_event(trip.send(RecordFormat(cloudevents=mode, source="/shop/orders")))
    assert (event.get_id(), event.get_type(), event.get_source()) == ("e-1", "Order", "/shop/orders")
    assert event.get_subject() == "order-1"
    assert event.get_data() == ORDER
    assert event.get_dataschema() == trip.registry.url


def test_a_cloudevent_with_avro_is_read_by_both(trip: Trip) -> None:
    message = trip.send(RecordFormat(value="avro", schema_id="header", cloudevents="binary", source="/shop/orders"))
    assert as_json(trip.read("avro", message)) == ORDER
    event = as_event(message)
    assert (event.get_id(), event.get_datacontenttype()) == ("e-1", "application/avro")


@pytest.mark.parametrize(
    "form",
    [
        RecordFormat(),
        RecordFormat(value="avro", schema_id="prefix", key="avro"),
        RecordFormat(schema_id="header"),
        RecordFormat(cloudevents="structured", source="/s"),
    ],
    ids=repr,
)
def test_a_tombstone_has_no_value_in_every_format(trip: Trip, form: RecordFormat) -> None:
    message = trip.send(form, None)
    assert message.value() is None
    assert message.key() is not None
