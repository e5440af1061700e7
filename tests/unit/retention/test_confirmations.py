"""Which records are confirmations, of which events, and when."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.retention.confirmations import LAST_MS, Confirmation, ConfirmationFormat

NOW_MS = 1_800_000_000_000


def parse(value: object, *, id: str = "", time: str = "", key: bytes | None = b"k") -> list[Confirmation]:
    return ConfirmationFormat(id, time).parse(key, json.dumps(value).encode(), NOW_MS)


def test_the_key_or_a_path_names_the_events() -> None:
    assert parse({}) == [Confirmation("k", NOW_MS)]
    assert ConfirmationFormat().parse(b"k", b"not JSON, and not needed", 5) == [Confirmation("k", 5)]
    assert parse({"a": {"b": "e"}}, id="a.b") == [Confirmation("e", NOW_MS)]
    assert parse({"a": ["e", 7]}, id="a") == [Confirmation("e", NOW_MS), Confirmation("7", NOW_MS)]
    assert parse({"a": []}, id="a") == []


@pytest.mark.parametrize(
    ("given_time", "at_ms"),
    [
        (1_767_225_600, 1_767_225_600_000),
        (1_767_225_600.5, 1_767_225_600_500),
        (1_767_225_600_000, 1_767_225_600_000),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("2026-01-01", 1_767_225_600_000),
        (None, NOW_MS),
    ],
)
def test_times(given_time: object, at_ms: int) -> None:
    assert parse({"at": given_time}, time="at") == [Confirmation("k", at_ms)]


@pytest.mark.parametrize("value", [{}, {"a": None}, {"a": True}, {"a": {}}, {"a": ""}, {"a": ["x", None]}, [], 3, None])
def test_records_without_an_id_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="id of an event"):
        parse(value, id="a")


@pytest.mark.parametrize("at", ["soon", True, -1, 1e300, LAST_MS + 1000, [], float("nan"), "0000"])
def test_times_that_are_none_are_refused(at: object) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse({"at": at}, time="at")


def test_tombstones_and_keys_that_are_no_text_are_refused() -> None:
    for key, value in ((b"k", None), (None, b"{}"), (b"\xff", b"{}"), (b"a\0", b"{}"), (b"", b"{}")):
        with pytest.raises(ValueError, match=r"."):
            ConfirmationFormat().parse(key, value, NOW_MS)


@given(st.one_of(st.none(), st.binary(max_size=20)), st.one_of(st.none(), st.binary(max_size=40)), st.integers(-5, 5))
def test_any_bytes_are_a_confirmation_or_a_value_error(key: bytes | None, value: bytes | None, at_ms: int) -> None:
    for form in (ConfirmationFormat(), ConfirmationFormat("a.b", "t"), ConfirmationFormat("", "t")):
        try:
            found = form.parse(key, value, at_ms)
        except (ValueError, OverflowError):
            continue
        assert all(each.event_id and 0 <= each.confirmed_ms <= LAST_MS for each in found)
