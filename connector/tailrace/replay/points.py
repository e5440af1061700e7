"""Parses points in a pipeline's history, as a person writes them. Pure.

24h, 24 h ago, 90 min, 3d, 2w      so long ago
yesterday 14:05, today 9:30        in this machine's time zone
2026-03-01T12:00:00Z, 2026-03-01   a time; without a zone, this machine's
0/1A2B3C8                          an LSN (Postgres)
1773403200.7                       a cluster time (MongoDB)
8267F1…                            a resume token (MongoDB)
event:7f9c…                        an event, by its id: the point right before it
oldest                             as far back as the log reaches
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tailrace.errors import ConfigError
from tailrace.positions.mongo import ClusterTime
from tailrace.positions.postgres import format_lsn, parse_lsn

FORMS = (
    "`24h` (so long ago), `yesterday 14:05`, `2026-03-01T12:00:00Z`, an LSN such as `0/1A2B3C8`, a cluster time such "
    "as `1773403200.7`, a resume token, `event:ID`, or `oldest`"
)
_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_ago = re.compile(r"(\d{1,9})\s*(s|min|m|h|d|w)(\s+ago)?").fullmatch
_day = re.compile(r"(today|yesterday)(?:\s+(\d{1,2}):(\d{2})(?::(\d{2}))?)?").fullmatch
_lsn = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}").fullmatch
_cluster_time = re.compile(r"\d{9,10}\.\d{1,10}").fullmatch
_token = re.compile(r"82[0-9A-Fa-f]{28,}").fullmatch


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in Unix milliseconds."""

    at_ms: int

    def __str__(self) -> str:
        return datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Lsn:
    value: int

    def __str__(self) -> str:
        return format_lsn(self.value)


@dataclass(frozen=True, slots=True)
class Token:
    data: str

    def __str__(self) -> str:
        return f"the resume token {self.data[:18]}…"


@dataclass(frozen=True, slots=True)
class EventId:
    id: str

    def __str__(self) -> str:
        return f"event:{self.id}"


@dataclass(frozen=True, slots=True)
class Oldest:
    def __str__(self) -> str:
        return "oldest"


Point = Moment | Lsn | ClusterTime | Token | EventId | Oldest


def parse(text: str, now: datetime) -> Point:
    """`now` is the current time with a time zone; times without one are in the local time zone."""
    text = text.strip()
    if text.startswith("event:") and len(text) > len("event:"):
        return EventId(text.removeprefix("event:"))
    if text.lower() == "oldest":
        return Oldest()
    if _lsn(text):
        return Lsn(parse_lsn(text))
    if _cluster_time(text) and (time := ClusterTime.parse(text)) and max(time.pair) < 1 << 32:
        return time
    if _token(text):
        return Token(text.upper())
    try:
        moment = _moment(text.lower(), now)
    except (ValueError, OverflowError):
        moment = None
    if moment is None:
        raise ConfigError(f"{text!r} is not a point in a pipeline's history", remedy=f"Write {FORMS}.")
    if moment > now:
        raise ConfigError(f"{text!r} is in the future", remedy=f"Give a point in the past: {FORMS}.")
    return Moment(round(moment.timestamp() * 1000))


def _moment(text: str, now: datetime) -> datetime | None:
    if found := _ago(text):
        return now - timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    if found := _day(text):
        day = now.astimezone().replace(tzinfo=None) - timedelta(days=found[1] == "yesterday")
        hour, minute, second = (int(part or 0) for part in found.groups()[1:])
        return day.replace(hour=hour, minute=minute, second=second, microsecond=0).astimezone()
    given = datetime.fromisoformat(text.upper())
    # With the UTC offset of that day, because daylight saving time may differ from today.
    return given if given.tzinfo is not None else given.astimezone()
