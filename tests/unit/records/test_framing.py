"""Schema ids as bytes, parsed by the client library."""

from __future__ import annotations

import io

import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.records import framing
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import RegistryIds


def schema(registered: RegistryIds | None) -> CompiledAvroSchema:
    return CompiledAvroSchema.compile("orders-value", Version(1), "string", "registry", registered=registered)


@given(st.integers(0, 2**31 - 1))
def test_the_id_is_written_before_the_value(number: int) -> None:
    found = SchemaId("AVRO")
    rest = found.from_bytes(io.BytesIO(framing.before(schema(RegistryIds(number))) + b"value"))
    assert (found.id, found.guid, rest.read()) == (number, None, b"value")


@given(st.uuids())
def test_the_guid_is_written_into_the_header(guid: object) -> None:
    found = SchemaId("JSON")
    rest = found.from_bytes(io.BytesIO(framing.in_header(schema(RegistryIds(5, str(guid))))))
    assert (found.id, found.guid, rest.read()) == (None, guid, b"")


def test_without_a_guid_the_id_is_written_into_the_header() -> None:
    found = SchemaId("JSON")
    found.from_bytes(io.BytesIO(framing.in_header(schema(RegistryIds(5)))))
    assert (found.id, found.guid) == (5, None)


@pytest.mark.parametrize("write", [framing.before, framing.in_header])
def test_a_schema_without_ids_stops_the_pipeline(write: object) -> None:
    with pytest.raises(ConfigError, match="orders-value") as caught:
        write(schema(None))  # type: ignore[operator]
    assert "schemas.registry" in caught.value.remedy
