"""The replay window: how far behind the stored position the slot is confirmed.

The server keeps the WAL that is not confirmed, so a pipeline can be rewound into the window. The window is given up
completely before the server would invalidate the slot: a lost slot costs more than an impossible rewind. The confirmed
LSN never goes back: some servers would move the slot back and claim WAL that is already removed.

The server keeps WAL from the slot's `restart_lsn`, which lies before the confirmed LSN. It advances only when the
confirmed LSN passes the last decoded list of running transactions, and the next list is chosen only then. So it moves
in steps as large as the window, and the server keeps up to twice as much.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.positions.postgres import LsnPosition

MARKS = 256
"""Steps that a time window is divided into; it may be longer than configured by one step."""
GIVES_WAY = 4
"""The window is given up when less than 1/4 is left of the WAL that the server may keep for the slot,"""
RECENT_TIMES = 4
"""or less than 4 times the WAL of the last five seconds: the server logs running transactions, and can then remove
WAL, every 15 seconds, and an idle position is stored every five seconds.
"""
RESERVE = 64 << 20
"""The window leaves half of the WAL that the server may keep for the slot free, and at least this much."""
STEPS = 2
"""The server keeps at most this many times the window."""


_AGES = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_SIZES = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_part = re.compile(rf"([1-9]\d{{0,8}}) *({'|'.join((*_AGES, *_SIZES))})").fullmatch


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """The configured window: an age, a size, or both; the shorter one counts."""

    seconds: float | None = None
    size: int | None = None

    def __bool__(self) -> bool:
        return self.seconds is not None or self.size is not None

    @classmethod
    def parse(cls, text: str) -> ReplayWindow:
        """Parses `24 h`, `2 GiB`, or both with a comma between; raises ValueError for anything else."""
        parts = [part.strip() for part in text.split(",")] if text else []
        found = [match.groups() for part in parts if (match := _part(part))]
        ages = [float(int(number) * _AGES[unit]) for number, unit in found if unit in _AGES]
        sizes = [int(number) << _SIZES[unit] for number, unit in found if unit in _SIZES]
        if len(found) < len(parts) or len(ages) > 1 or len(sizes) > 1:
            raise ValueError(f"{text!r} is not an age, a size, or both")
        return cls(ages[0] if ages else None, sizes[0] if sizes else None)


class SlotCapacity(NamedTuple):
    """How much WAL the server can keep for the slot, in bytes; None means no limit, or unknown.

    `limit` is the most it may keep, `left` how much more may be written, `disk` the free space on the disk of the log,
    `recent` what was written in the last seconds.
    """

    limit: int | None = None
    left: int | None = None
    disk: int | None = None
    recent: int = 0

    @property
    def is_short(self) -> bool:
        """Whether the server may invalidate the slot soon."""
        if self.limit is None or self.left is None:
            return False
        return self.left < max(self.limit // GIVES_WAY, RECENT_TIMES * self.recent)


def max_window_bytes(limit: int) -> int:
    """Returns the largest window if the server keeps at most `limit` bytes for the slot."""
    return max(0, limit - max(limit // 2, RESERVE))


NO_WINDOW = ReplayWindow()


class WindowTracker:
    """Computes the LSN to confirm. `past` has earlier positions of the pipeline, perhaps also of other logs."""

    def __init__(self, window: ReplayWindow, confirmed: int, start: LsnPosition, past: Iterable[LsnPosition]) -> None:
        self._window = window
        self._step_ms = (window.seconds or 0) * 1000 / MARKS
        known = {(each.lsn, each.at_ms) for each in past if each.is_alike(start) and each.lsn <= start.lsn}
        self._marks: deque[tuple[int, int]] = deque(sorted(known))
        if not self._marks:
            # No earlier position is known: keep what the slot has for one window from now.
            self._marks.append((confirmed, start.at_ms))
        self._held = confirmed

    @property
    def held(self) -> int:
        return self._held

    def advance(self, stored: LsnPosition, room: SlotCapacity, now_ms: int) -> int:
        """Returns the LSN to confirm when `stored` is the stored position."""
        if self._window.seconds is not None and stored.at_ms - self._marks[-1][1] >= self._step_ms:
            self._marks.append((stored.lsn, stored.at_ms))
        self._held = max(self._held, min(stored.lsn, self._wanted(stored, room, now_ms)))
        return self._held

    def is_cut(self, stored: LsnPosition, room: SlotCapacity) -> bool:
        """Whether the window is limited by the free disk space."""
        return room.disk is not None and self._held == stored.lsn - room.disk // STEPS

    def _wanted(self, stored: LsnPosition, room: SlotCapacity, now_ms: int) -> int:
        if room.is_short:
            return stored.lsn
        # The window may take half of the free disk space: when the disk fills up, the window shrinks first.
        bounds = [self._window.size, None if room.limit is None else max_window_bytes(room.limit), room.disk]
        known = [bound for bound in bounds if bound is not None]
        wanted = stored.lsn - min(known) // STEPS if known else 0
        if self._window.seconds is not None:
            oldest = now_ms - self._window.seconds * 1000
            # The first mark becomes the last one that is old enough: everything younger is kept.
            while len(self._marks) > 1 and self._marks[1][1] <= oldest:
                self._marks.popleft()
            if self._marks[0][1] <= oldest:
                wanted = max(wanted, self._marks[0][0])
        return wanted
