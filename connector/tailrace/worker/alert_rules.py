"""Decides when people must be alerted: a slow leak of dead letters, a log in danger, a recovery. No I/O, no clock.

Each rule alerts once, and again only after what it found has passed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

LEAK_SECONDS = 3600.0
"""The period in which a leak is looked for."""
LEAK_PARTS = 12
"""The period is divided into this many parts."""
LEAKING_PARTS = 6
"""Dead letters in this many parts are a leak, however few they are."""
DANGER_SECONDS = 3600.0
"""The log is in danger if the forecast says that it is lost within this time."""
DANGER_SHARE = 0.2
"""The same if less than this share of what the server keeps for a slot is left."""
SAFE_FACTOR = 1.5
"""The danger has passed when the figures are better than these bounds by this factor."""
OUTAGE_SECONDS = 60.0
"""The end of a shorter outage is not worth an alert."""


class Leak(NamedTuple):
    """A steady rate of dead letters: how many in how many seconds."""

    dead_letters: int
    seconds: float


class LeakRule:
    """Finds a small but steady rate of dead letters, which no single alert about new ones shows."""

    def __init__(self, period: float = LEAK_SECONDS, *, parts: int = LEAK_PARTS, leaking: int = LEAKING_PARTS) -> None:
        self._part = period / parts
        self._parts = parts
        self._leaking = leaking
        self._counts: deque[int] = deque(maxlen=parts)
        self._part_began: float | None = None
        self._total = 0
        self._raised = False

    def look(self, now: float, total: int) -> Leak | None:
        """Takes the number of dead letters since the process started; returns a leak that is new."""
        if self._part_began is None or total < self._total:
            self._part_began, self._total = now, total
            return None
        while now - self._part_began >= self._part:
            # Those since the last look count for the first part that has ended.
            self._counts.append(total - self._total)
            self._total = total
            self._part_began += self._part
        leaking = sum(count > 0 for count in self._counts)
        if self._raised and leaking < self._leaking // 2:
            self._raised = False
        if self._raised or leaking < self._leaking:
            return None
        self._raised = True
        return Leak(sum(self._counts), len(self._counts) * self._part)


class Danger(NamedTuple):
    """Why the log is in danger, as half a sentence."""

    what: str


class LogDangerRule:
    """Finds that the server will soon remove log that the pipeline has not read."""

    def __init__(self, seconds: float = DANGER_SECONDS, share: float = DANGER_SHARE) -> None:
        self._seconds = seconds
        self._share = share
        self._raised = False

    def look(self, lost_in: float | None, safe: int | None, limit: int | None, *, lost: bool = False) -> Danger | None:
        """Takes the forecast, the bytes that are left of the limit, and whether log is lost; returns a new danger."""
        lost_in = math.inf if lost_in is None else lost_in
        left = safe / limit if safe is not None and limit else math.inf
        if self._raised:
            passed = lost_in > SAFE_FACTOR * self._seconds and left > SAFE_FACTOR * self._share
            self._raised = lost or not passed
            return None
        found = (
            "the server has removed log that the pipeline needs"
            if lost
            else f"the server keeps {left:.0%} of its limit for the slot free: {safe} bytes"
            if left < self._share
            else f"at the current rate, the log that the pipeline needs is lost in {lost_in:.0f} s"
            if lost_in < self._seconds
            else ""
        )
        self._raised = bool(found)
        return Danger(found) if found else None


class RecoveryRule:
    """Finds that a pipeline runs again after a failure, a long outage or the loss of its log."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._error = ""
        self._failed = ""
        self._log_recovered = False

    def failed_before(self, code: str) -> None:
        """Notes the error with which the last run of the pipeline failed; empty if it did not."""
        self._failed = code

    def interrupted(self, code: str, now: float) -> None:
        """Notes an error after which the pipeline waits."""
        self._since = now if self._since is None else self._since
        self._error = code

    def log_recovered(self) -> None:
        """Notes that events of a lost log were published from the outbox."""
        self._log_recovered = True

    def started(self, now: float) -> str:
        """Notes that the pipeline runs; returns what to report, or an empty text."""
        outage = now - self._since if self._since is not None else 0.0
        found = ""
        if self._log_recovered:
            found = "the pipeline runs again: its log was lost, and the missed events were published from the outbox"
        elif self._failed:
            found = f"the pipeline runs again after it had failed with {self._failed}"
        elif outage >= OUTAGE_SECONDS:
            found = f"the pipeline runs again after {outage:.0f} s of {self._error}"
        self._since, self._failed, self._log_recovered = None, "", False
        return found
