"""Forecasts when the server removes log that a pipeline needs, and estimates how many events are pending. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from tailrace.sources.observation import SourceObservation

WINDOW_SECONDS = 300.0
"""The growth of the log is measured over this time."""
EVENT_BYTES = 100
"""The least WAL that one event takes: bounds the estimate of pending events."""


class LogGrowth:
    """The rate at which the log grows, from its ends at several moments."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._ends: deque[tuple[float, int]] = deque()

    def look(self, now: float, end: int) -> float | None:
        """Takes the end of the log in bytes; returns bytes per second, or None before the second look."""
        if self._ends and end < self._ends[-1][1]:
            self._ends.clear()  # another server, or another timeline
        self._ends.append((now, end))
        while len(self._ends) > 2 and self._ends[1][0] <= now - self._window:
            self._ends.popleft()
        (first_at, first), (last_at, last) = self._ends[0], self._ends[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None


def lost_in(safe_bytes: int | None, growth: float | None) -> float | None:
    """Returns in how many seconds the log is lost; infinity without a limit or growth, None if it is not known."""
    if safe_bytes is None:
        return math.inf
    if safe_bytes <= 0:
        return 0.0
    if growth is None:
        return None
    return safe_bytes / growth if growth > 0 else math.inf


class _Baseline(NamedTuple):
    inserted: int
    published: int


class PendingEvents:
    """Estimates pending events where the log cannot be counted: rows inserted minus events published.

    Both are counted since the pipeline was last at the end of the log. The server's statistics are some seconds old and
    include rolled-back rows, so the lag in bytes bounds the estimate.
    """

    def __init__(self) -> None:
        self._baseline: _Baseline | None = None

    def look(self, seen: SourceObservation, published: int) -> int | None:
        """Takes what was seen, and the number of events published before; returns None if nothing is known."""
        if seen.pending is not None:
            return seen.pending
        if seen.lag_bytes is None:
            return None
        if not seen.behind:
            self._baseline = None if seen.inserted is None else _Baseline(seen.inserted, published)
            return 0
        most = seen.lag_bytes // EVENT_BYTES
        if seen.inserted is None or self._baseline is None or seen.inserted < self._baseline.inserted:
            return most
        pending = (seen.inserted - self._baseline.inserted) - (published - self._baseline.published)
        return max(0, min(pending, most))
