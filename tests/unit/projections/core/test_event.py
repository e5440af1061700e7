"""Events are made of records."""

from __future__ import annotations

import pytest

from tailrace.errors import Reason, Rejected
from tailrace.projections.core.decoding import decode_json
from tailrace.projections.core.event import Event, read_event, restore_event
from tailrace.projections.core.store import Partition

HERE = Partition("shop.orders", 3)


def event(value: bytes | None = b"{}", *headers: tuple[str, bytes], key: bytes | None = b"o-1") -> Event:
    return read_event(HERE, 42, key, value, headers, 1000)


def test_the_connector_s_headers_identify_an_event() -> None:
    found = event(b"{}", ("id", b"e-1"), ("type", b"OrderPlaced"), ("position", b"0/1A:0"), ("timestamp", b"2000"))
    assert (found.id, found.type, found.position, found.time_ms) == ("e-1", "OrderPlaced", "0/1A:0", 2000)
    assert not found.is_replay
    assert found.redriven_for is None


def test_cloud_events_are_identified_by_their_headers() -> None:
    found = event(b"{}", ("ce_id", b"e-1"), ("ce_type", b"OrderPlaced"))
    assert (found.id, found.type) == ("e-1", "OrderPlaced")


def test_without_an_id_the_location_identifies_the_event() -> None:
    assert event().id == "shop.orders[3]@42/1000"
    assert event(b"{}", ("timestamp", b"soon")).time_ms == 1000


def test_replays_and_redrives_are_recognised() -> None:
    assert event(b"{}", ("tailrace.replay", b"r-1")).replay_id == "r-1"
    assert event(b"{}", ("tailrace.redriven", b"0-7"), ("tailrace.redriven.for", b"cards")).redriven_for == "cards"
    assert event(b"{}", ("tailrace.redriven", b"0-7")).redriven_for is None


def test_a_waiting_event_is_restored_complete() -> None:
    first = event(b'{"a": 1}', ("id", b"e-1"), ("type", b"T"), ("other", b"\xff"))
    first.entity, first.version = "o-1", 3
    again = restore_event(first.waiting(since_ms=5))
    assert (again.id, again.type, again.key, again.value, again.offset) == ("e-1", "T", b"o-1", b'{"a": 1}', 42)
    assert list(again.headers) == list(first.headers)
    assert again.time_ms == first.time_ms


@pytest.mark.parametrize(
    ("value", "headers", "data"),
    [
        (b'{"a": 1}', [], {"a": 1}),
        (b"\0\0\0\0\7[1, 2]", [], [1, 2]),
        (b'{"specversion":"1.0","data":{"a":1}}', [("content-type", b"application/cloudevents+json")], {"a": 1}),
        (b'{"a": 1}', [("content-type", b"application/json")], {"a": 1}),
    ],
)
def test_payloads(value: bytes, headers: list[tuple[str, bytes]], data: object) -> None:
    assert decode_json(event(value, *headers)) == data


@pytest.mark.parametrize("value", [b"", b"{", b"\0\0\0\0\7\xff\xfe", b"\0", b"NaN"])
def test_a_payload_that_is_not_json_is_poison(value: bytes) -> None:
    with pytest.raises(Rejected) as raised:
        decode_json(event(value))
    assert raised.value.reason is Reason.POISON_MESSAGE
    assert raised.value.remedy
