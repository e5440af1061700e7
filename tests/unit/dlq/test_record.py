"""Dead letters contain everything that fits, are limited in size, and never have a null value."""

from __future__ import annotations

import base64
import hashlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.dlq.record import CARRIED_BYTES, HEADER_BYTES, dead_letter
from tailrace.errors import Reason, Rejected
from tailrace.event import Column, Headers, OutboxEvent, Record, Row

ROW = Row((Column("id", 25), Column("payload", 17), Column("note", 25)), (b"e", b"\xff\0", None), "0/1:0", 1700)
REJECTED = Rejected(Reason.SCHEMA_VALIDATION_FAILED, "$.a: expected string, got 1.", remedy="Fix it.")


def event(payload: bytes | None = b'{"a":1}', key: bytes | None = b"k", extra: Headers | None = None) -> OutboxEvent:
    return OutboxEvent("e-1", "Placed", "order", key, payload, None, "0/1:0", 1700, extra or [])


def letter(
    subject: OutboxEvent | None,
    *,
    topic: str | None = "orders",
    rejected: Rejected = REJECTED,
    limit: int = 1000,
) -> Record:
    return dead_letter(ROW, subject, topic, rejected, letter_topic="dlq", pipeline="shop", limit_bytes=limit)


def header(record: Record, name: str) -> str | None:
    found = [value for key, value in record.headers if key == name]
    assert len(found) <= 1
    if not found or found[0] is None:
        return None
    return found[0] if isinstance(found[0], str) else found[0].decode("latin-1" if "timestamp" in name else "utf-8")


def test_a_dead_letter_contains_the_original_and_its_origin() -> None:
    record = letter(event(extra=[("traceparent", b"00-a")]))
    assert (record.topic, record.value, record.key, record.timestamp) == ("dlq", b'{"a":1}', b"k", 1700)
    expected = {
        "tailrace.reason": "schema_validation_failed",
        "tailrace.explanation": "$.a: expected string, got 1. Remedy: Fix it.",
        "tailrace.pipeline": "shop",
        "tailrace.position": "0/1:0",
        "tailrace.topic": "orders",
        "tailrace.payload": "original",
        "tailrace.payload.length": "7",
        "tailrace.payload.sha256": hashlib.sha256(b'{"a":1}').hexdigest(),
        "id": "e-1",
        "type": "Placed",
        "position": "0/1:0",
        "timestamp": "1700",
        "traceparent": "00-a",
        "tailrace.aggregate": "order",
        "__connect.errors.connector.name": "shop",
        "__connect.errors.task.id": "0",
        "__connect.errors.stage": "VALUE_CONVERTER",
        "__connect.errors.exception.class.name": "tailrace.Rejected",
        "__connect.errors.exception.message": "$.a: expected string, got 1. Remedy: Fix it.",
        "__connect.errors.topic": "orders",
        "kafka_dlt-exception-fqcn": "tailrace.Rejected",
        "kafka_dlt-exception-message": "$.a: expected string, got 1. Remedy: Fix it.",
        "kafka_dlt-original-timestamp": (1700).to_bytes(8, "big").decode("latin-1"),
        "kafka_dlt-original-topic": "orders",
    }
    assert {name: header(record, name) for name, _ in record.headers} == expected


def test_without_a_known_topic_there_is_no_topic_header() -> None:
    assert header(letter(event(), topic=None), "tailrace.topic") is None


@pytest.mark.parametrize(("size", "kept"), [(1000, True), (1001, False)])
def test_a_payload_beyond_the_limit_is_replaced_by_a_summary(size: int, kept: bool) -> None:
    payload = b"x" * size
    record = letter(event(payload))
    digest = hashlib.sha256(payload).hexdigest()
    assert header(record, "tailrace.payload.length") == str(size)
    assert header(record, "tailrace.payload.sha256") == digest
    if kept:
        assert record.value == payload
    else:
        assert header(record, "tailrace.payload") == "omitted"
        assert record.value is not None
        assert orjson.loads(record.value) == {"omitted": True, "length": size, "sha256": digest}


def test_a_null_payload_is_marked_and_has_a_value() -> None:
    record = letter(event(None))
    assert record.value == b'{"omitted":false,"payload":null}'
    assert header(record, "tailrace.payload") == "null"
    assert header(record, "tailrace.payload.length") is None


def test_only_hash_and_length_of_a_payload_are_kept_if_configured() -> None:
    record = dead_letter(
        ROW, event(), None, REJECTED, letter_topic="d", pipeline="p", limit_bytes=1000, keep_payload=False
    )
    assert header(record, "tailrace.payload") == "omitted"
    assert b'"a"' not in (record.value or b"")
    assert all(b"got 1" not in (v.encode() if isinstance(v, str) else v or b"") for _, v in record.headers)


def test_headers_contain_what_a_redrive_needs() -> None:
    assert header(letter(event()._replace(version="3")), "tailrace.version") == "3"
    assert orjson.loads(header(letter(None), "tailrace.columns") or "") == [["id", 25], ["payload", 17], ["note", 25]]


@pytest.mark.parametrize("name", ["tailrace.reason", "__connect.errors.topic", "kafka_dlt-original-topic"])
def test_a_column_cannot_forge_headers_of_dead_letters(name: str) -> None:
    record = letter(event(extra=[(name, b"forged")]))
    assert "forged" not in (header(record, name) or "")
    assert header(record, "tailrace.headers.omitted") == name


def test_an_empty_payload_is_not_null() -> None:
    record = letter(event(b""))
    assert (record.value, header(record, "tailrace.payload")) == (b"", "original")


def test_an_unreadable_row_is_kept_column_by_column() -> None:
    record = letter(None, topic=None)
    assert record.value is not None
    assert orjson.loads(record.value) == {"id": "e", "payload": {"base64": "/wA="}, "note": None}
    assert (record.key, header(record, "tailrace.payload")) == (None, "row")
    assert header(record, "tailrace.position") == "0/1:0"
    assert header(letter(None, limit=5), "tailrace.payload") == "omitted"


def test_columns_about_delivery_are_left_out_of_an_unreadable_row() -> None:
    """They change after the row was written, and `verify` finds its dead letter by the hash of the row."""
    columns = (Column("id", 25), Column("processed", 16))
    hashes = set()
    for processed in (b"f", b"t"):
        record = dead_letter(
            Row(columns, (b"e-1", processed), "0/1:0", 1700), None, None, REJECTED,
            letter_topic="dlq", pipeline="shop", limit_bytes=1000, ignored=frozenset({"processed"}),
        )  # fmt: skip
        assert (record.value, header(record, "tailrace.columns")) == (b'{"id":"e-1"}', '[["id",25]]')
        hashes.add(header(record, "tailrace.payload.sha256"))
    assert len(hashes) == 1


@given(st.lists(st.none() | st.binary(), min_size=1, max_size=5))
def test_any_row_can_be_read_back_from_its_dead_letter(values: list[bytes | None]) -> None:
    columns = tuple(Column(f"c{index}", 25) for index in range(len(values)))
    row = Row(columns, tuple(values), "p", 1)
    record = dead_letter(row, None, None, REJECTED, letter_topic="d", pipeline="p", limit_bytes=10_000)
    assert record.value is not None
    back = [
        base64.b64decode(text["base64"]) if isinstance(text, dict) else None if text is None else text.encode()
        for text in orjson.loads(record.value).values()
    ]
    assert back == values


@pytest.mark.parametrize("text", ["x" * 10_000, "é" * 5000, "😀" * 3000, "a" + "é" * 5000])
def test_the_explanation_is_limited_and_keeps_whole_characters(text: str) -> None:
    record = letter(event(), rejected=Rejected(Reason.POISON_MESSAGE, text))
    explanation = header(record, "tailrace.explanation")
    assert explanation is not None
    assert text.startswith(explanation)
    assert HEADER_BYTES - 4 < len(explanation.encode()) <= HEADER_BYTES


def test_headers_and_keys_that_do_not_fit_are_omitted_and_named() -> None:
    extra: Headers = [
        ("big", b"x" * 5000),
        *((f"c{index}", b"x" * 4000) for index in range(30)),
        ("last", b"1"),
    ]
    record = letter(event(key=b"k" * 5000, extra=extra))
    carried = sum(len(name) + len(value or "") for name, value in record.headers)
    assert carried < CARRIED_BYTES + 8 * HEADER_BYTES
    left_out = (header(record, "tailrace.headers.omitted") or "").split(",")
    assert left_out[0] == "big"
    assert header(record, "c0") is not None
    assert header(record, "big") is None
    assert (record.key, header(record, "tailrace.key.omitted")) == (None, "5000")


def test_a_column_cannot_forge_our_headers() -> None:
    record = letter(event(extra=[("tailrace.reason", b"forged")]))
    assert header(record, "tailrace.reason") == "schema_validation_failed"


@given(st.none() | st.binary(), st.none() | st.binary(), st.text(), st.none() | st.text())
def test_any_event_becomes_a_dead_letter_with_a_value(
    payload: bytes | None, key: bytes | None, text: str, topic: str | None
) -> None:
    rejected = Rejected(Reason.PERMANENT_FAILURE, text)
    record = letter(event(payload, key), topic=topic, rejected=rejected)
    assert record.value is not None
    assert all(isinstance(value, str | bytes) for _, value in record.headers)
