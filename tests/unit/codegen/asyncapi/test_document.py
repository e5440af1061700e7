"""The AsyncAPI document is valid, self-contained, and describes the records as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from helpers.fetched import asyncapi_schema
from tailrace.codegen.asyncapi.document import Channel, Message, Server, asyncapi
from tailrace.errors import ConfigError
from tailrace.event import OutboxEvent, Route
from tailrace.records.formats import RecordFormat, record_maker
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.folder import load_folder
from tailrace.schemas.json_schema import DRAFTS, CompiledJsonSchema

FILES = {
    "OrderPlaced/1.json": '{"description": "An order was placed.", "type": "object", "required": ["to"],'
    ' "properties": {"to": {"$ref": "../Address/1.json"}, "lines": {"items": {"$ref": "#/$defs/line"}}},'
    ' "$defs": {"line": {"type": "object", "properties": {"price": {"minimum": 0}}}}}',
    "OrderPlaced/2.json": '{"prefixItems": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}}',
    "Address/1.json": '{"$schema": "http://json-schema.org/draft-06/schema#", "type": "object"}',
    "OrderPaid/1.avsc": '{"type": "record", "name": "shop.Paid", "doc": "An order was paid.",'
    ' "fields": [{"name": "sum", "type": "Money"}]}',
    "Money/1.avsc": '{"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}',
    "Anything/1.json": "true",
}
FORMATS = [
    RecordFormat(),
    RecordFormat(schema_id="prefix"),
    RecordFormat(schema_id="header", key="json"),
    RecordFormat(value="avro", schema_id="prefix", key="avro"),
    RecordFormat(cloudevents="binary", source="/shop"),
    RecordFormat(cloudevents="structured", source="/shop"),
]
SERVER = Server("a:9092, b:9092", registry="https://me:secret@registry.example.org/api", subject="{topic}-{type}")


@pytest.fixture(scope="module")
def compiled_schemas(tmp_path_factory: pytest.TempPathFactory) -> list[CompiledSchema]:
    folder: Path = tmp_path_factory.mktemp("schemas")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return list(load_folder(folder))


@pytest.fixture(scope="module")
def official() -> jsonschema_rs.Validator:
    """The official JSON Schema of AsyncAPI."""
    return jsonschema_rs.validator_for(asyncapi_schema("3.0.0"), offline=True)


def exported(compiled_schemas: list[CompiledSchema], format: RecordFormat) -> dict[str, Any]:
    messages = tuple(
        Message(compiled.subject, compiled) for compiled in compiled_schemas if compiled.subject[0] in "OA"
    )
    orders = Channel(
        "shop.orders",
        messages,
        "Whatever happens to orders.",
        partitions=6,
        replicas=-1,
        config={"cleanup.policy": "compact, delete", "retention.ms": "-1", "segment.bytes": "1000000"},
    )
    return asyncapi("Shop", "1.2.0", SERVER, [orders, Channel("all events", messages[:1])], compiled_schemas, format)


def broken(official: jsonschema_rs.Validator, document: Any) -> list[str]:
    return [f"{error.instance_path}: {error.message[:200]}" for error in official.iter_errors(document)]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, child in node.items():
            if key == "$ref" and isinstance(child, str):
                yield child
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def found(document: Any, reference: str) -> Any:
    assert reference.startswith("#/"), reference
    for part in reference[2:].split("/"):
        document = document[part.replace("~1", "/").replace("~0", "~")]
    return document


@pytest.mark.timeout(900)  # The first run fetches the schema.
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_the_official_schema_accepts_the_document(
    official: jsonschema_rs.Validator, compiled_schemas: list[CompiledSchema], format: RecordFormat
) -> None:
    document = exported(compiled_schemas, format)
    assert broken(official, document) == []
    assert broken(official, orjson.loads(orjson.dumps(document))) == []


def test_the_official_schema_rejects_invalid_documents(
    official: jsonschema_rs.Validator, compiled_schemas: list[CompiledSchema]
) -> None:
    for place in ("#/channels/shop.orders", "#/components/messages/OrderPlaced.v1", "#/operations/send.shop.orders"):
        document = exported(compiled_schemas, RecordFormat())
        found(document, place)["unknown"] = 1
        assert broken(official, document), place
    document = exported(compiled_schemas, RecordFormat())
    found(document, "#/components/schemas/OrderPlaced.v1/schema")["type"] = 7
    assert broken(official, document)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_every_reference_points_into_the_document(compiled_schemas: list[CompiledSchema], format: RecordFormat) -> None:
    document = exported(compiled_schemas, format)
    targets = set(references(document))
    assert {"#/components/schemas/Address.v1/schema", "#/channels/all_events"} <= targets
    for reference in targets:
        found(document, reference)


def test_a_document_without_topics_or_schemas_is_valid(official: jsonschema_rs.Validator) -> None:
    assert broken(official, asyncapi("Shop", "1", Server("a:1"), [], [], RecordFormat())) == []
    bare = asyncapi("Shop", "1", Server("a:1", secure=True), [Channel("t")], [], RecordFormat())
    assert broken(official, bare) == []
    assert bare["servers"] == {"kafka": {"host": "a:1", "protocol": "kafka-secure"}}


def test_servers_topics_and_operations_are_listed(compiled_schemas: list[CompiledSchema]) -> None:
    document = exported(compiled_schemas, RecordFormat())
    assert [server["host"] for server in document["servers"].values()] == ["a:9092", "b:9092"]
    registry = document["servers"]["kafka"]["bindings"]["kafka"]
    assert registry["schemaRegistryUrl"] == "https://registry.example.org/api"
    assert "secret" not in str(document)
    orders = document["channels"]["shop.orders"]
    assert orders["bindings"]["kafka"] == {
        "partitions": 6,
        "topicConfiguration": {"cleanup.policy": ["compact", "delete"], "retention.ms": -1},
        "bindingVersion": "0.5.0",
    }
    assert document["channels"]["all_events"]["address"] == "all events"
    operation = document["operations"]["send.shop.orders"]
    assert operation["action"] == "send"
    assert {"$ref": "#/channels/shop.orders/messages/OrderPlaced.v2"} in operation["messages"]


def test_an_error_in_a_topic_setting_names_the_topic() -> None:
    with pytest.raises(ConfigError, match=r"retention\.ms of the topic t"):
        asyncapi("S", "1", Server("a:1"), [Channel("t", config={"retention.ms": "a week"})], [], RecordFormat())


def test_each_schema_has_its_format(compiled_schemas: list[CompiledSchema]) -> None:
    schemas = exported(compiled_schemas, RecordFormat())["components"]["schemas"]
    assert {name: schema["schemaFormat"].rpartition("/")[2] for name, schema in schemas.items()} == {
        "Address.v1": "schema+json;version=draft-07",
        "Anything.v1": "schema+json;version=draft-07",
        "OrderPaid.v1": "vnd.apache.avro;version=1.9.0",
        "OrderPlaced.v1": "schema+json;version=draft-07",
        "OrderPlaced.v2": "schema+json;version=2020-12",
        "Money.v1": "vnd.apache.avro;version=1.9.0",
    }
    assert schemas["OrderPaid.v1"]["schema"]["fields"][0]["type"]["fields"]
    assert schemas["Anything.v1"]["schema"] is True


@pytest.mark.parametrize(
    ("format", "says"),
    [
        (RecordFormat(), {}),
        (
            RecordFormat(schema_id="prefix"),
            {
                "schemaIdLocation": "payload",
                "schemaIdPayloadEncoding": "4",
                "schemaLookupStrategy": "TopicRecordNameStrategy",
            },
        ),
        (
            RecordFormat(schema_id="header"),
            {"schemaIdLocation": "header", "schemaLookupStrategy": "TopicRecordNameStrategy"},
        ),
    ],
    ids=str,
)
def test_the_document_says_where_the_schema_id_is(
    compiled_schemas: list[CompiledSchema], format: RecordFormat, says: Any
) -> None:
    message = exported(compiled_schemas, format)["components"]["messages"]["OrderPlaced.v1"]
    binding = message["bindings"]["kafka"]
    assert {name: text for name, text in binding.items() if name.startswith("schema")} == says
    assert binding["key"]["type"] == "string"
    assert (message["name"], message["summary"]) == ("OrderPlaced", "An order was placed.")


@pytest.mark.parametrize("format", [format for format in FORMATS if format.schema_id == "none"], ids=str)
def test_a_written_record_is_valid_according_to_the_document(
    compiled_schemas: list[CompiledSchema], format: RecordFormat
) -> None:
    """Validates headers and value of a record against the document's schemas."""
    placed = next(
        compiled for compiled in compiled_schemas if (compiled.subject, compiled.version) == ("OrderPlaced", Version(1))
    )
    value = {"to": {}, "lines": [{"price": 1}]}
    event = OutboxEvent("e-1", "OrderPlaced", "order", b"k", orjson.dumps(value), "1", "0/1:0", 1_700_000_000_000, [])
    record = record_maker(format, key_schema=None)(event, Route("shop.orders"), (value, placed))
    document = exported(compiled_schemas, format)
    message = document["components"]["messages"]["OrderPlaced.v1"]
    headers = {name: text.decode() if isinstance(text, bytes) else text for name, text in record.headers}
    assert record.value is not None
    assert whole(document, message["headers"]).is_valid(headers)
    assert set(message["headers"]["properties"]) <= set(headers)
    payload = message["payload"]
    schema = payload["schema"] if "schema" in payload else {"$ref": payload["$ref"] + "/schema"}
    written = orjson.loads(record.value)
    assert whole(document, schema).is_valid(written)
    wrong = {**written, "data": {"to": 1}, "to": 1}
    assert not whole(document, schema).is_valid(wrong)
    if format.cloudevents != "none":
        assert str(headers["content-type"]).startswith(message["contentType"])


def whole(document: Any, schema: Any) -> CompiledJsonSchema:
    """Returns a validator of one schema of the document."""
    around = {"$schema": DRAFTS[2], "allOf": [schema], "components": document["components"]}
    return CompiledJsonSchema.compile("T", Version(1), around, "asyncapi.json")


def test_types_with_similar_names_get_different_names(official: jsonschema_rs.Validator) -> None:
    alike = [CompiledJsonSchema.compile(name, Version(1), {"const": name}, name) for name in ("a b", "a/b", "a_b")]
    channel = Channel("t", tuple(Message(compiled.subject, compiled) for compiled in alike))
    document = asyncapi("S", "1", Server("a:1"), [channel, Channel("t")], alike, RecordFormat())
    assert broken(official, document) == []
    assert list(document["components"]["messages"]) == ["a_b.v1", "a_b.v1-2", "a_b.v1-3"]
    assert list(document["channels"]) == ["t", "t-2"]
    for message in document["components"]["messages"].values():
        assert found(document, message["payload"]["$ref"])["schema"]["const"] == message["name"]
