"""Parsing the points that users give."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tailrace.errors import ConfigError
from tailrace.positions.mongo import ClusterTime
from tailrace.replay.points import EventId, Lsn, Moment, Oldest, Point, Token, parse

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
TOKEN = "8267F1A2B3000000012B0229296E04"


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """UTC+1 in winter, UTC+2 in summer."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ms(*parts: int) -> int:
    return round(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("24h", Moment(ms(2026, 3, 1, 9))),
        ("24 h ago", Moment(ms(2026, 3, 1, 9))),
        ("90 min", Moment(ms(2026, 3, 2, 7, 30))),
        ("90m ago", Moment(ms(2026, 3, 2, 7, 30))),
        ("2W", Moment(ms(2026, 2, 16, 9))),
        ("yesterday 14:05", Moment(ms(2026, 3, 1, 13, 5))),
        ("Yesterday", Moment(ms(2026, 2, 28, 23))),
        ("today 9:30:15", Moment(ms(2026, 3, 2, 8, 30, 15))),
        ("2026-03-01T12:00:00Z", Moment(ms(2026, 3, 1, 12))),
        ("2026-03-01 12:00", Moment(ms(2026, 3, 1, 11))),
        ("2026-03-01", Moment(ms(2026, 2, 28, 23))),
        ("2025-07-01 12:00", Moment(ms(2025, 7, 1, 10))),
        ("0/1A2B3C8", Lsn(0x1A2B3C8)),
        ("1a/FFFFFFFF", Lsn((0x1A << 32) | 0xFFFFFFFF)),
        ("1773403200.7", ClusterTime(1773403200, 7)),
        (TOKEN.lower(), Token(TOKEN)),
        ("event:7f9c", EventId("7f9c")),
        ("event:0/1", EventId("0/1")),
        ("oldest", Oldest()),
    ],
)
def test_points(text: str, point: Point) -> None:
    assert parse(f" {text} ", NOW) == point


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "7f9c24e8",
        "event:",
        "0/",
        "0/123456789",
        "1773403200",
        "82",
        "yesterday 25:00",
        "24",
        "2026-13-01",
        "1773403200.9999999999",
    ],
)
def test_garbage_is_refused_with_the_right_forms(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, NOW)
    assert "yesterday 14:05" in caught.value.remedy
    assert "0/1A2B3C8" in caught.value.remedy


@pytest.mark.parametrize("text", ["today 10:01", "2026-03-02T09:00:01Z", "2027-01-01"])
def test_the_future_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="future"):
        parse(text, NOW)
