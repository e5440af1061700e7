"""Writes and reads the records of parked keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.dlq.dead_letter import DeadLetterId
from tailrace.dlq.parked_keys import (
    GiveUpRequest,
    ParkedKey,
    ParkingRequest,
    ParkingState,
    answered,
    entity_of,
    given_up,
    request_record,
    state_record,
    waiting_event,
    waiting_key,
    waiting_record,
)
from tailrace.errors import OffsetRecordCorrupt
from tailrace.event import Headers, OutboxEvent
from tailrace.kafka.client import KafkaOptions

OPTIONS = KafkaOptions("localhost:9092", "shop")
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def event(**changed: object) -> OutboxEvent:
    return OutboxEvent("e", "T", "order", b"k", b"{}", None, "0/1:0", 1700, [])._replace(**changed)  # type: ignore[arg-type]


@given(names, st.binary(max_size=20), st.none() | st.binary(max_size=30), st.none() | names, st.binary(max_size=9))
def test_a_waiting_event_is_read_back_unchanged(
    aggregate: str, key: bytes, payload: bytes | None, version: str | None, extra: bytes
) -> None:
    waits = event(
        aggregate=aggregate,
        key=key,
        payload=payload,
        version=version,
        extra=[("traceparent", extra), ("tailrace.payload", b"x")],
    )
    record = waiting_record(OPTIONS, waits)
    headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
    back = waiting_event(headers, record.value or b"")
    assert back == waits
    entity = entity_of(waits)
    assert entity is not None
    assert waiting_key(entity) == record.key


def test_keys_of_different_aggregates_are_different() -> None:
    record = waiting_record(OPTIONS, event(aggregate="a", key=b"bc"))
    assert waiting_key(("ab", b"c")) != record.key
    assert entity_of(event(key=None)) is None


@given(names, st.binary(max_size=20), st.integers(0, 2**60), st.booleans())
def test_the_state_of_a_key_is_read_and_removed(aggregate: str, key: bytes, released: int, releasing: bool) -> None:
    board = ParkingState()
    state = ParkedKey(5, "0/1:0", released, releasing)
    record = state_record(OPTIONS, (aggregate, key), state, 5)
    board.read(record.key, record.value)
    assert board.keys == {(aggregate, key): state}
    record = state_record(OPTIONS, (aggregate, key), None, 6)
    board.read(record.key, record.value)
    assert board.keys == {}


@pytest.mark.parametrize("payload", [None, b"", b"\xff{}"])
def test_a_request_is_open_until_it_is_answered(payload: bytes | None) -> None:
    board = ParkingState()
    request = ParkingRequest(DeadLetterId(0, 3), "redrive", "0/1:0", "me", "why", payload)
    record = request_record(OPTIONS, request, 1)
    board.read(record.key, record.value)
    assert board.requests == {DeadLetterId(0, 3): request}
    for record in answered(OPTIONS, request, "still wrong", 2):
        board.read(record.key, record.value)
    assert (board.requests, board.answers) == ({}, {DeadLetterId(0, 3): "still wrong"})
    for record in answered(OPTIONS, request, None, 3):
        board.read(record.key, record.value)
    assert board.answers == {}


@pytest.mark.parametrize(
    "record", [
        (b"key/!", b"{}"), (b"key/YQBi", b"{"), (b"key/YQBi", b'{"x": 1}'), (b"key/YQBi", b"[" * 100_000),
        (b"key/YQBi", b'{"since_ms": "1", "place": "0/1:0"}'), (b"key/YQBi", b'{"since_ms": 1e999, "place": "0/1:0"}'),
    ],
)  # fmt: skip
def test_an_unreadable_state_is_an_error(record: tuple[bytes, bytes]) -> None:
    with pytest.raises(OffsetRecordCorrupt):
        ParkingState().read(*record)


@pytest.mark.parametrize(
    "headers", [None, [], [("id", b"e")], [("id", None), ("type", b"T"), ("position", b"p"), ("timestamp", b"x")]]
)
def test_a_foreign_record_among_waiting_events_is_an_error(headers: Headers | None) -> None:
    with pytest.raises(OffsetRecordCorrupt, match="waiting events"):
        waiting_event(headers, b"{}")


@pytest.mark.parametrize(
    "record",
    [
        (None, b"x"),
        (b"", None),
        (b"request/0-1", b"[" * 100_000),
        (b"request/x", b"{}"),
        (b"request/0-1", b"["),
        (b"z", b""),
    ],
)
def test_unknown_records_are_ignored(record: tuple[bytes | None, bytes | None]) -> None:
    board = ParkingState()
    board.read(*record)
    assert (board.keys, board.requests, board.answers) == ({}, {}, {})


def test_a_request_by_key_is_open_until_it_is_carried_out() -> None:
    asked = GiveUpRequest(("order", b"a\0\xff"), "0/1:0", "ann", "gone")
    record, done = request_record(OPTIONS, asked, 1), given_up(OPTIONS, asked.entity, 2)
    subject = ParkingState()
    subject.read(record.key, record.value)
    assert subject.gives_up == {asked.entity: asked}
    subject.read(done.key, done.value)
    assert subject.gives_up == {}
    assert not subject.keys
