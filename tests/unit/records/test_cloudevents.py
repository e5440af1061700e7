"""CloudEvents, read with the CloudEvents SDK."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Reason, Rejected
from tailrace.event import Headers, OutboxEvent, Record, Route
from tailrace.records.formats import RecordFormat, record_maker
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.json_schema import CompiledJsonSchema

MODES = ["binary", "structured"]


def event(**changes: Any) -> OutboxEvent:
    base = OutboxEvent("e-1", "Placed", "order", b"o-1", b'{"a": 1}', "2", "0/1:3", 1767323045678, [])
    return base._replace(**changes)


def made(mode: Any, subject: OutboxEvent, schema: CompiledSchema | None = None, **more: Any) -> Record:
    make = record_maker(RecordFormat(cloudevents=mode, source="/shop/orders", **more), key_schema=None)
    return make(subject, Route("orders"), (None, schema))


def parsed(record: Record) -> BaseCloudEvent:
    headers = {name: value.encode() if isinstance(value, str) else value or b"" for name, value in record.headers}
    return from_kafka_event(KafkaMessage(headers, record.key, record.value))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_an_event_is_read_with_all_its_attributes(mode: str) -> None:
    found = parsed(made(mode, event()))
    assert found.get_specversion() == "1.0"
    assert found.get_id() == "e-1"
    assert found.get_type() == "Placed"
    assert found.get_source() == "/shop/orders"
    assert found.get_subject() == "o-1"
    assert found.get_extension("partitionkey") == "o-1"
    assert found.get_time() == datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert found.get_datacontenttype() == "application/json"
    assert found.get_dataschema() is None
    assert found.get_data() == {"a": 1}


def test_a_structured_event_contains_the_payload_byte_for_byte() -> None:
    payload = b' {"a":1.10,  "b":"\\u00e9", "a b":[ ]} '
    value = made("structured", event(payload=payload)).value
    assert value is not None
    assert value.endswith(b',"data":' + payload + b"}")
    assert json.loads(value)["data"] == json.loads(payload)


def test_the_value_of_a_binary_event_is_the_payload() -> None:
    payload = b'{"a":1}'
    assert made("binary", event(payload=payload)).value is payload


@pytest.mark.parametrize("mode", MODES)
def test_our_own_headers_come_first(mode: str) -> None:
    record = made(mode, event(extra=[("tenant", b"t")]))
    assert record.headers[:5] == [
        ("id", "e-1"),
        ("type", "Placed"),
        ("position", "0/1:3"),
        ("timestamp", "1767323045678"),
        ("tenant", b"t"),
    ]


def test_the_time_is_written_in_utc_with_its_milliseconds() -> None:
    assert dict(made("binary", event(committed_ms=1767323045070)).headers)["ce_time"] == "2026-01-02T03:04:05.070Z"


def test_the_media_types_are_those_of_the_binding() -> None:
    assert dict(made("binary", event()).headers)["content-type"] == "application/json"
    assert dict(made("structured", event()).headers)["content-type"] == "application/cloudevents+json; charset=UTF-8"


@pytest.mark.parametrize("mode", MODES)
def test_a_tombstone_has_no_value_and_is_still_an_event(mode: str) -> None:
    record = made(mode, event(payload=None))
    assert record.value is None
    assert "content-type" not in dict(record.headers)
    found = parsed(record)
    assert (found.get_id(), found.get_type(), found.get_data()) == ("e-1", "Placed", None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", [None, b"", b"\xff\xfe", b"a\x00b", b"line\nline"])
def test_a_key_that_is_not_plain_text_is_not_an_attribute(mode: str, key: bytes | None) -> None:
    record = made(mode, event(key=key))
    assert record.key == key
    attributes = dict(record.headers) if mode == "binary" else json.loads(record.value or b"")
    assert not {"ce_subject", "ce_partitionkey", "subject", "partitionkey"} & set(attributes)


def test_an_encoded_key_is_not_the_partitionkey() -> None:
    record = made("binary", event(), key="json")
    assert record.key == b'"o-1"'
    assert dict(record.headers)["ce_subject"] == "o-1"
    assert "ce_partitionkey" not in dict(record.headers)


@pytest.mark.parametrize("changes", [{"id": ""}, {"type": ""}, {"id": "a\nb"}, {"type": "a\x7f"}])
@pytest.mark.parametrize("mode", MODES)
def test_an_invalid_attribute_is_rejected(mode: str, changes: dict[str, str]) -> None:
    with pytest.raises(Rejected, match="control characters") as caught:
        made(mode, event(**changes))
    assert caught.value.reason is Reason.PERMANENT_FAILURE


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("https://registry.example.org/schemas/ids/7", True),
        ("schemas/Placed/1.json", False),
        ("https://me:secret@registry.example.org/schemas/ids/7", False),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_dataschema_is_set_if_the_schema_has_an_address(mode: str, file: str, shown: bool) -> None:
    found = parsed(made(mode, event(), CompiledJsonSchema.compile("Placed", Version(1), {}, file)))
    assert found.get_dataschema() == (file if shown else None)


@pytest.mark.parametrize("name", ["ce_id", "CE_Source", "content-type", "Content-Type", "ce_time"])
@pytest.mark.parametrize("mode", MODES)
def test_a_column_cannot_replace_an_attribute(mode: str, name: str) -> None:
    extra: Headers = [(name, b"forged"), ("ok", b"1")]
    record = made(mode, event(extra=extra))
    assert (name, b"forged") not in record.headers
    assert ("ok", b"1") in record.headers
    assert parsed(record).get_source() == "/shop/orders"


def test_a_column_may_be_an_extension_of_a_binary_event() -> None:
    found = parsed(made("binary", event(extra=[("ce_traceparent", b"00-a")])))
    assert found.get_extension("traceparent") == "00-a"


@pytest.mark.parametrize("payload", [b"", b"no json", b"\xff", b'{"a":1', b'{"a":1}}'])
def test_invalid_json_is_rejected_in_a_structured_event(payload: bytes) -> None:
    with pytest.raises(Rejected, match="not usable JSON") as caught:
        made("structured", event(payload=payload))
    assert caught.value.reason is Reason.POISON_MESSAGE


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("mode", MODES)
@given(value=st.dictionaries(st.text(), JSON, max_size=4), moment=st.integers(0, 253402300799999))
def test_every_object_is_read_back_equal_with_its_time(mode: str, value: Any, moment: int) -> None:
    found = parsed(made(mode, event(payload=json.dumps(value).encode(), committed_ms=moment)))
    assert found.get_data() == value
    stamp = found.get_time()
    assert stamp is not None
    assert round(stamp.timestamp() * 1000) == moment
