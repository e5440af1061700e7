"""Record formats: invalid combinations are refused, and the registry client's deserialisers read the others."""

from __future__ import annotations

import functools
import io
import json
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import OutboxEvent, Record, Route
from tailrace.records.formats import RecordFormat, record_maker
from tailrace.records.plain import plain_record
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import CompiledSchema, RegistryIds
from tailrace.schemas.json_schema import CompiledJsonSchema

TOPIC = "orders"
DOCUMENTS: dict[str, Any] = {
    "json": {"title": "Order", "type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
    "avro": {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": ["null", "string"], "default": None}],
    },
}
KEYS: dict[str, Any] = {"json": {"title": "Key", "type": "string"}, "avro": "string"}


class Registry:
    """The client library's in-memory registry, and compiled schemas that are registered there."""

    def __init__(self) -> None:
        self.client = SchemaRegistryClient.new_client({"url": "mock://here"})

    def schema(self, kind: str, subject: str, document: Any, *, guid: bool = True) -> CompiledSchema:
        text = json.dumps(document)
        found = self.client.register_schema_full_response(subject, Schema(text, schema_type=kind.upper()))
        registered = RegistryIds(found.schema_id or 0, found.guid if guid else None)
        if kind == "avro":
            return CompiledAvroSchema.compile(subject, Version(1), document, "registry", registered=registered)
        return CompiledJsonSchema.compile(subject, Version(1), document, "registry", registered=registered)

    def read(self, kind: str, record: Record, part: str = MessageField.VALUE) -> Any:
        context = SerializationContext(record.topic, part, record.headers)
        data = record.value if part == MessageField.VALUE else record.key
        if kind == "avro":
            return AvroDeserializer(self.client)(data, context)
        return JSONDeserializer(None, schema_registry_client=self.client)(data, context)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@functools.cache
def shared() -> Registry:
    """One registry for all examples of a property test, because registering a schema again changes nothing."""
    return Registry()


def event(payload: bytes | None, **changes: Any) -> OutboxEvent:
    return OutboxEvent("e-1", "Order", "order", b"order-1", payload, None, "0/1:3", 1700, [])._replace(**changes)


def made(form: RecordFormat, registry: Registry, value: Any, *, guid: bool = True, **changes: Any) -> Record:
    schema = registry.schema(form.value, f"{TOPIC}-value", DOCUMENTS[form.value], guid=guid)
    assert schema.is_valid(value)
    make = record_maker(form, key_schema=lambda topic: registry.schema(form.key, f"{topic}-key", KEYS[form.key]))
    return make(event(json.dumps(value).encode(), **changes), Route(TOPIC), (value, schema))


def test_the_default_is_the_plain_record_itself() -> None:
    assert record_maker(RecordFormat(), key_schema=None) is plain_record


@pytest.mark.parametrize("guid", [True, False])
@pytest.mark.parametrize("schema_id", ["prefix", "header"])
@pytest.mark.parametrize("value", ["json", "avro"])
def test_a_framed_value_is_read_by_the_registrys_own_deserialiser(
    registry: Registry, value: Any, schema_id: Any, guid: bool
) -> None:
    content = {"n": 5, "s": "žluť, and long enough"}
    record = made(RecordFormat(value=value, schema_id=schema_id), registry, content, guid=guid)
    assert registry.read(value, record) == content
    assert record.key == b"order-1"
    assert [name for name, _ in record.headers][:4] == ["id", "type", "position", "timestamp"]


@pytest.mark.parametrize("schema_id", ["prefix", "header"])
@pytest.mark.parametrize("key", ["json", "avro"])
@pytest.mark.parametrize("value", ["json", "avro"])
def test_a_framed_key_is_read_by_the_registrys_own_deserialiser(
    registry: Registry, value: Any, key: Any, schema_id: Any
) -> None:
    content = {"n": 5, "s": "long enough"}
    record = made(RecordFormat(value=value, key=key, schema_id=schema_id), registry, content)
    assert registry.read(key, record, MessageField.KEY) == "order-1"
    assert registry.read(value, record) == content


def test_a_header_holds_the_guid_and_the_value_is_unchanged(registry: Registry) -> None:
    record = made(RecordFormat(schema_id="header"), registry, {"n": 1})
    guid = registry.client.get_latest_version(f"{TOPIC}-value").guid or ""
    assert dict(record.headers)["__value_schema_id"] == b"\x01" + bytes.fromhex(guid.replace("-", ""))
    assert record.value == b'{"n": 1}'


@pytest.mark.parametrize("schema_id", ["prefix", "header"])
@given(n=st.integers(-(2**63), 2**63 - 1), s=st.none() | st.text(st.characters(exclude_categories=["Cs"])))
def test_every_avro_value_is_read_back_equal(schema_id: Any, n: int, s: str | None) -> None:
    registry = shared()
    record = made(RecordFormat(value="avro", schema_id=schema_id), registry, {"n": n, "s": s})
    data = (record.value or b"")[5:] if schema_id == "prefix" else record.value or b""
    # The deserialiser refuses values of fewer than six bytes; fastavro reads them all.
    assert fastavro.schemaless_reader(io.BytesIO(data), DOCUMENTS["avro"], None) == {"n": n, "s": s}
    if len(record.value or b"") > 5:
        assert registry.read("avro", record) == {"n": n, "s": s}


FORMATS = [
    RecordFormat(),
    RecordFormat(schema_id="prefix"),
    RecordFormat(schema_id="header"),
    RecordFormat(value="avro", schema_id="prefix"),
    RecordFormat(value="avro", schema_id="header"),
    RecordFormat(cloudevents="binary", source="/s"),
    RecordFormat(cloudevents="structured", source="/s"),
    RecordFormat(value="avro", schema_id="prefix", cloudevents="binary", source="/s"),
    RecordFormat(schema_id="header", cloudevents="binary", source="/s"),
]


@pytest.mark.parametrize("form", FORMATS, ids=repr)
def test_a_tombstone_has_no_value_in_any_format(form: RecordFormat) -> None:
    record = record_maker(form, key_schema=None)(event(None), Route(TOPIC), (None, None))
    assert type(record) is Record
    assert record.value is None
    assert record.key == b"order-1"
    assert "__value_schema_id" not in dict(record.headers)


@pytest.mark.parametrize("form", FORMATS, ids=repr)
def test_our_headers_topic_key_and_time_are_the_same_in_every_format(form: RecordFormat, registry: Registry) -> None:
    record = made(form, registry, {"n": 1}, extra=[("tenant", b"t")])
    plain = plain_record(event(b"", extra=[("tenant", b"t")]), Route(TOPIC))
    assert record.headers[:5] == plain.headers
    assert (record.topic, record.key, record.timestamp) == (plain.topic, plain.key, plain.timestamp)


@pytest.mark.parametrize("form", [one for one in FORMATS if one.schema_id != "none"], ids=repr)
def test_an_event_without_a_schema_is_rejected_where_ids_are_written(form: RecordFormat) -> None:
    with pytest.raises(Rejected, match="has no schema") as caught:
        record_maker(form, key_schema=None)(event(b"{}"), Route(TOPIC), (None, None))
    assert caught.value.reason is Reason.SCHEMA_VALIDATION_FAILED
    assert "Register" in caught.value.remedy


@pytest.mark.parametrize(("value", "other"), [("json", "avro"), ("avro", "json")])
def test_a_schema_of_the_other_kind_is_rejected(registry: Registry, value: Any, other: str) -> None:
    schema = registry.schema(other, "Order", DOCUMENTS[other])
    make = record_maker(RecordFormat(value=value, schema_id="prefix"), key_schema=None)
    with pytest.raises(Rejected, match=f"of the kind {other}"):
        make(event(b'{"n":1}'), Route(TOPIC), ({"n": 1}, schema))


def test_an_unregistered_schema_stops_the_pipeline() -> None:
    schema = CompiledJsonSchema.compile("Order", Version(1), {}, "schemas/Order/1.json")
    make = record_maker(RecordFormat(schema_id="prefix"), key_schema=None)
    with pytest.raises(ConfigError, match=r"schemas/Order/1\.json"):
        make(event(b"{}"), Route(TOPIC), ({}, schema))


@pytest.mark.parametrize("name", ["__value_schema_id", "__key_schema_id"])
@pytest.mark.parametrize("schema_id", ["prefix", "header"])
def test_a_column_cannot_replace_the_schema_id(registry: Registry, schema_id: Any, name: str) -> None:
    content = {"n": 5, "s": "long enough"}
    forged = (name, b"\x00\x00\x00\x00\x63")
    record = made(RecordFormat(value="avro", schema_id=schema_id), registry, content, extra=[forged, ("ok", b"1")])
    assert forged not in record.headers
    assert ("ok", b"1") in record.headers
    assert registry.read("avro", record) == content


def test_a_binary_cloudevent_may_carry_avro(registry: Registry) -> None:
    content = {"n": 5, "s": "long enough"}
    form = RecordFormat(value="avro", schema_id="header", cloudevents="binary", source="/shop")
    record = made(form, registry, content)
    assert dict(record.headers)["content-type"] == "application/avro"
    assert dict(record.headers)["ce_id"] == "e-1"
    assert registry.read("avro", record) == content


def test_the_key_may_come_from_another_column(registry: Registry) -> None:
    form = RecordFormat(schema_id="prefix", key="json")
    schema = registry.schema("json", "Order", DOCUMENTS["json"])
    make = record_maker(form, key_schema=lambda topic: registry.schema("json", f"{topic}-key", KEYS["json"]))
    record = make(event(b"{}", extra=[("tenant", b"t-9")]), Route(TOPIC, "tenant"), ({}, schema))
    assert registry.read("json", record, MessageField.KEY) == "t-9"


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"value": "avro"}, "Avro"),
        ({"key": "avro"}, "Avro"),
        ({"cloudevents": "structured", "schema_id": "header", "source": "/s"}, "structured"),
        ({"cloudevents": "structured", "schema_id": "prefix", "value": "avro", "source": "/s"}, "structured"),
        ({"cloudevents": "binary", "schema_id": "prefix", "source": "/s"}, "application/json"),
        ({"cloudevents": "binary"}, "source"),
    ],
)
def test_unreadable_formats_are_refused_at_the_start(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        RecordFormat(**settings)
    assert caught.value.remedy


def test_framed_keys_without_schemas_of_keys_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="schemas of keys"):
        record_maker(RecordFormat(schema_id="prefix", key="avro"), key_schema=None)
