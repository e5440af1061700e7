"""Plain records: the payload unchanged, Tailrace's headers in order, then those of the event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.event import Headers, OutboxEvent, Record, Route
from tailrace.records.plain import plain_record


def event(payload: bytes | None = b"{}", extra: Headers | None = None) -> OutboxEvent:
    return OutboxEvent("e-1", "Placed", "order", b"k", payload, "2", "0/1:3", 1700, extra or [])


def test_a_record_has_topic_key_value_headers_and_time() -> None:
    extra: Headers = [("traceparent", b"00-a"), ("tenant", b"t")]
    record = plain_record(event(extra=extra), Route("orders"))
    assert type(record) is Record
    assert record == Record(
        topic="orders",
        value=b"{}",
        key=b"k",
        headers=[
            ("id", "e-1"),
            ("type", "Placed"),
            ("position", "0/1:3"),
            ("timestamp", "1700"),
            ("traceparent", b"00-a"),
            ("tenant", b"t"),
        ],
        timestamp=1700,
    )


@pytest.mark.parametrize("name", ["id", "type", "position", "timestamp"])
def test_tailraces_header_wins_over_a_column_of_the_same_name(name: str) -> None:
    headers = plain_record(event(extra=[(name, b"forged"), ("ok", b"1")]), Route("t")).headers
    assert [key for key, _ in headers].count(name) == 1
    assert (name, b"forged") not in headers
    assert headers[-1] == ("ok", b"1")


@given(st.none() | st.binary())
def test_the_payload_is_the_value(payload: bytes | None) -> None:
    assert plain_record(event(payload), Route("t")).value is payload


def test_the_events_header_list_is_not_changed() -> None:
    subject = event(extra=[("a", b"1")])
    plain_record(subject, Route("t")).headers.append(("b", b"2"))
    assert subject.extra == [("a", b"1")]
