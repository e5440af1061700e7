"""Tests of the records of the storage layout: the value with metadata inside, and its headers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import OutboxEvent, Route
from tailrace.records.formats import RecordFormat, record_maker

make = record_maker(RecordFormat(has_metadata=True), key_schema=None, pipeline="p")


def stored(payload: bytes | None, metadata: bytes | None = b"{}", **further: bytes) -> OutboxEvent:
    extra = [("aggregate_id", b"s-1"), ("sequence_number", b"7"), ("target_topic", b"t"), ("created_at", b"now")]
    extra += [("event_metadata", metadata)] if metadata is not None else []
    extra += list(further.items())
    return OutboxEvent("outbox_1", "STORED", "store", b"k", payload, "1.0.0", "0/1:0", 5, extra)


def value(payload: bytes, metadata: bytes | None = b"{}") -> Any:
    return json.loads(make(stored(payload, metadata), Route("t"), (None, None)).value or b"")


def test_the_metadata_is_inside_the_value_and_three_headers_name_the_event() -> None:
    event = stored(b'{"a": 1.10}', b'{"correlation_id": "c-1", "user": "u"}', tenant=b"eu")
    record = make(event, Route("t"), (None, None))
    assert record.value == (
        b'{"a": 1.10, "metadata": {"correlation_id": "c-1", "user": "u", "outbox_id":"outbox_1","sequence_number":7}}'
    )
    assert record.key == b"k"
    assert record.headers == [
        ("id", "outbox_1"), ("type", "STORED"), ("position", "0/1:0"), ("timestamp", "5"), ("tailrace.pipeline", "p"),
        ("event_type", "STORED"), ("aggregate_id", b"s-1"), ("tenant", b"eu"), ("correlation_id", "c-1"),
    ]  # fmt: skip


@pytest.mark.parametrize("metadata", [b"{}", b" { } ", None])
@pytest.mark.parametrize("payload", [b"{}", b"{ }"])
def test_empty_objects(payload: bytes, metadata: bytes | None) -> None:
    assert value(payload, metadata) == {"metadata": {"outbox_id": "outbox_1", "sequence_number": 7}}


def test_the_ids_of_another_event_are_replaced() -> None:
    """A service that copies the metadata of an event it has read."""
    copied = b'{"outbox_id": "outbox_0", "sequence_number": 3, "n": 12345678901234567890123, "at": "\xc3\xa9"}'
    inside = value(b"{}", copied)["metadata"]
    assert inside == {"outbox_id": "outbox_1", "sequence_number": 7, "n": 12345678901234567890123, "at": "\u00e9"}


def test_a_topic_may_choose_another_key() -> None:
    record = make(stored(b"{}"), Route("t", "target_topic"), (None, None))
    assert (record.topic, record.key) == ("t", b"t")


def test_a_tombstone_has_the_headers_only() -> None:
    record = make(stored(None), Route("t"), (None, None))
    assert record.value is None
    assert ("event_type", "STORED") in record.headers


@pytest.mark.parametrize(
    ("payload", "metadata", "reason", "said"),
    [
        (b"[1]", b"{}", Reason.POISON_MESSAGE, "not a JSON object"),
        (b"null", b"{}", Reason.POISON_MESSAGE, "not a JSON object"),
        (b"{}", b"[]", Reason.POISON_MESSAGE, "event_metadata is not a JSON object"),
        (b'{"metadata": {}}', b"{}", Reason.PERMANENT_FAILURE, "writes itself"),
    ],
)
def test_what_cannot_contain_metadata_is_rejected(payload: bytes, metadata: bytes, reason: Reason, said: str) -> None:
    with pytest.raises(Rejected, match=said) as caught:
        make(stored(payload, metadata), Route("t"), (None, None))
    assert caught.value.reason is reason


def test_a_field_of_that_name_further_inside_is_no_problem() -> None:
    assert value(b'{"x": {"metadata": 1}, "y": "\\"metadata\\""}')["x"] == {"metadata": 1}


@pytest.mark.parametrize("number", [b"x", b"1.5"])
def test_a_sequence_that_is_no_number_is_rejected(number: bytes) -> None:
    event = stored(b"{}")
    extra = [(name, number if name == "sequence_number" else each) for name, each in event.extra]
    with pytest.raises(Rejected, match="sequence_number"):
        make(event._replace(extra=extra), Route("t"), (None, None))


objects = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4) | st.lists(st.none()), max_size=4)


@given(objects, objects, st.booleans())
def test_nothing_of_payload_and_metadata_is_lost(payload: Any, metadata: Any, blanks: bool) -> None:
    payload.pop("metadata", None)
    indent = 1 if blanks else None
    texts = [json.dumps(each, indent=indent).encode() for each in (payload, metadata)]
    added = {"outbox_id": "outbox_1", "sequence_number": 7}
    assert value(*texts) == {**payload, "metadata": {**metadata, **added}}


def test_avro_cannot_contain_metadata() -> None:
    with pytest.raises(ConfigError, match="metadata"):
        RecordFormat(value="avro", schema_id="prefix", has_metadata=True)


def test_a_structured_cloudevent_has_the_whole_value_as_data() -> None:
    form = RecordFormat(cloudevents="structured", source="/s", has_metadata=True)
    record = record_maker(form, key_schema=None)(stored(b'{"a": 1}'), Route("t"), (None, None))
    assert json.loads(record.value or b"")["data"]["metadata"]["outbox_id"] == "outbox_1"
