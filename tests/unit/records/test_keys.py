"""Keys in each format, and keys that are rejected."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, Reason, RegistryUnavailable, Rejected
from tailrace.records.framing import SchemaId
from tailrace.records.keys import KeyFormat, key_writer
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import CompiledSchema, RegistryIds
from tailrace.schemas.json_schema import CompiledJsonSchema

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
GUID = "89791762-2336-4186-9674-299b90a802e2"


def avro(topic: str) -> CompiledSchema:
    return CompiledAvroSchema.compile(f"{topic}-key", Version(1), "string", "registry", registered=RegistryIds(7, GUID))


def json_text(topic: str) -> CompiledSchema:
    document = {"type": "string", "maxLength": 4}
    return CompiledJsonSchema.compile(f"{topic}-key", Version(1), document, "registry", registered=RegistryIds(8, GUID))


@given(st.binary() | st.none())
def test_bytes_are_unchanged(key: bytes | None) -> None:
    assert key_writer("bytes", "prefix", None)(key, "orders") == (key, None)


@given(TEXT)
def test_a_json_key_is_a_json_string(text: str) -> None:
    key, header = key_writer("json", "none", None)(text.encode(), "orders")
    assert key is not None
    assert json.loads(key) == text
    assert header is None


@given(TEXT)
def test_an_avro_key_is_an_avro_string_behind_its_schemas_id(text: str) -> None:
    key, header = key_writer("avro", "prefix", avro)(text.encode(), "orders")
    assert key is not None
    assert key[:5] == b"\x00\x00\x00\x00\x07"
    assert fastavro.schemaless_reader(io.BytesIO(key[5:]), "string", None) == text
    assert header is None


def test_in_header_mode_the_key_itself_has_no_id() -> None:
    assert key_writer("json", "header", json_text)(b"k-1", "orders") == (
        b'"k-1"',
        b"\x01" + bytes.fromhex(GUID.replace("-", "")),
    )


@pytest.mark.parametrize(("form", "schema_id"), [("json", "none"), ("json", "prefix"), ("avro", "header")])
def test_a_missing_key_is_missing_in_every_format(form: KeyFormat, schema_id: SchemaId) -> None:
    schema_of = avro if form == "avro" else json_text
    assert key_writer(form, schema_id, schema_of)(None, "orders") == (None, None)


@pytest.mark.parametrize(("form", "schema_id"), [("json", "none"), ("json", "prefix"), ("avro", "header")])
def test_a_key_that_is_not_text_is_rejected(form: KeyFormat, schema_id: SchemaId) -> None:
    with pytest.raises(Rejected, match="UTF-8") as caught:
        key_writer(form, schema_id, avro if form == "avro" else json_text)(b"\xff", "orders")
    assert caught.value.reason is Reason.PERMANENT_FAILURE


def test_a_key_that_breaks_its_schema_is_rejected() -> None:
    with pytest.raises(Rejected, match="orders-key") as caught:
        key_writer("json", "prefix", json_text)(b"too long", "orders")
    assert caught.value.reason is Reason.SCHEMA_VALIDATION_FAILED


def test_a_topics_schema_is_looked_up_once() -> None:
    asked: list[str] = []

    def schema_of(topic: str) -> CompiledSchema:
        asked.append(topic)
        return avro(topic)

    write = key_writer("avro", "prefix", schema_of)
    for topic in ["a", "b", "a", "a", "b"]:
        write(b"k", topic)
    assert asked == ["a", "b"]


def test_a_lookup_that_failed_is_repeated() -> None:
    away = [True]

    def schema_of(topic: str) -> CompiledSchema:
        if away.pop():
            away.append(False)
            raise RegistryUnavailable("away")
        return avro(topic)

    write = key_writer("avro", "prefix", schema_of)
    with pytest.raises(RegistryUnavailable):
        write(b"k", "a")
    assert write(b"k", "a")[0] == b"\x00\x00\x00\x00\x07\x02k"


def test_an_event_whose_key_schema_is_of_the_other_kind_is_rejected() -> None:
    with pytest.raises(Rejected, match="registered as json"):
        key_writer("avro", "prefix", json_text)(b"k", "orders")


def test_framed_keys_require_schemas_of_keys() -> None:
    with pytest.raises(ConfigError, match="schemas of keys"):
        key_writer("json", "prefix", None)
