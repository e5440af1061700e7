"""Payloads in each format of the connector are decoded; the connector's own encoders write them."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent, Route
from tailrace.projections.core.decoding import PayloadReader, SchemaId, decode_json, decode_with_schema, split_schema_id
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.store import Partition
from tailrace.records.formats import RecordFormat, record_maker
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.avro.reader import reader
from tailrace.schemas.compiled import CompiledSchema, RegistryIds
from tailrace.schemas.json_schema import CompiledJsonSchema

ORDER = {"number": 5, "note": "žluť"}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "long"}, {"name": "note", "type": "string"}],
}
GUID = UUID(int=0xDEADBEEF)
FORMATS = [
    RecordFormat(),
    RecordFormat(schema_id="prefix"),
    RecordFormat(schema_id="header"),
    RecordFormat(cloudevents="binary", source="/s"),
    RecordFormat(schema_id="header", cloudevents="binary", source="/s"),
    RecordFormat(cloudevents="structured", source="/s"),
    RecordFormat(value="avro", schema_id="prefix"),
    RecordFormat(value="avro", schema_id="header"),
    RecordFormat(value="avro", schema_id="header", cloudevents="binary", source="/s"),
    RecordFormat(value="avro", schema_id="prefix", cloudevents="binary", source="/s"),
]


def event(form: RecordFormat, guid: str | None) -> Event:
    """As it comes out of the connector."""
    registered = RegistryIds(258, guid)
    schema: CompiledSchema
    if form.value == "avro":
        schema = CompiledAvroSchema.compile("Order", Version(1), AVRO, "Order/1.avsc", registered=registered)
    else:
        schema = CompiledJsonSchema.compile(
            "Order", Version(1), {"type": "object"}, "Order/1.json", registered=registered
        )
    row = OutboxEvent("e-1", "Order", "order", b"o-1", json.dumps(ORDER).encode(), None, "0/1:3", 1767323045678, [])
    record = record_maker(form, key_schema=None)(row, Route("orders"), (ORDER, schema))
    headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
    return read_event(Partition("orders", 0), 0, record.key, record.value, headers, record.timestamp)


def reader_of(name: SchemaId) -> PayloadReader:
    assert name in (258, str(GUID))
    return reader(AVRO, "a registry", {})


@pytest.mark.parametrize("guid", [None, str(GUID)], ids=["number", "guid"])
@pytest.mark.parametrize("form", FORMATS, ids=repr)
def test_every_format_is_decoded(form: RecordFormat, guid: str | None) -> None:
    came = event(form, guid)
    if form.value == "avro":
        assert decode_with_schema(came, reader_of) == ORDER
        return
    assert decode_json(came) == ORDER
    assert decode_with_schema(came, lambda name: json.loads) == ORDER


def test_avro_without_a_registry_is_rejected_with_a_remedy() -> None:
    for form in FORMATS:
        if form.value == "avro":
            with pytest.raises(Rejected) as refused:
                decode_json(event(form, None))
            assert refused.value.reason is Reason.POISON_MESSAGE
            assert "decode=RegistryDecoder(url)" in refused.value.remedy


def test_a_payload_that_does_not_match_its_schema_is_poison_and_not_quoted() -> None:
    came = event(RecordFormat(value="avro", schema_id="prefix"), None)
    came.value = (came.value or b"")[:-3]
    with pytest.raises(Rejected) as refused:
        decode_with_schema(came, reader_of)
    assert refused.value.reason is Reason.POISON_MESSAGE
    assert "schema 258" in refused.value.explanation


@pytest.mark.parametrize("header", [b"", b"\x01abc", b"\0", b"\x02" + b"1" * 16])
def test_a_schema_header_in_an_unknown_form_is_ignored(header: Any) -> None:
    came = read_event(Partition("t", 0), 0, None, b'{"a": 1}', [("__value_schema_id", header)], 0)
    assert split_schema_id(came) == (None, b'{"a": 1}')
    assert decode_with_schema(came, reader_of) == {"a": 1}
