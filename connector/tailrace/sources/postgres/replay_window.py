"""The replay window: how far behind the stored position the slot is confirmed. Pure.

What is confirmed, the server may forget; what is held back, it keeps, and a pipeline can be reset to it. The window
gives way, wholly, before the server has to give the slot up: a slot that is lost costs more than a rewind that is not
possible. And it never goes back: some servers would let the slot follow, and claim WAL that is gone.

The server counts from the slot's `restart_lsn`, which lies further back than what is confirmed. It moves only when the
confirmed place passes the one where the server last decoded a list of running transactions, and the next such place is
chosen only then: so it moves in steps as large as the window, and the server keeps up to twice as much.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.positions.postgres import LsnPosition

MARKS = 256
"""How many steps a window of time is divided into: it is longer than asked for by one of them, at most."""
GIVES_WAY = 4
"""The window is given up when less than a part of 1 : this is left of what the server may keep,"""
RECENT_TIMES = 4
"""or less than so many times what was written in the last five seconds: the server notes the running transactions, and
lets go of what lies before them, every 15 seconds, and an idle position is stored every five.
"""
RESERVE = 64 << 20
"""Of what the server may keep for the slot, the window leaves half, and not less than this: at 20 MiB a second it is
gone in three seconds.
"""
STEPS = 2
"""How many times the window the server keeps at most."""


_AGES = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_SIZES = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_part = re.compile(rf"([1-9]\d{{0,8}}) *({'|'.join((*_AGES, *_SIZES))})").fullmatch


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """By age, by size, or by both: then the one that reaches less far back."""

    seconds: float | None = None
    size: int | None = None

    def __bool__(self) -> bool:
        return self.seconds is not None or self.size is not None

    @classmethod
    def parse(cls, text: str) -> ReplayWindow:
        """`24 h`, `2 GiB`, or both with a comma between, each at most once; ValueError for anything else."""
        parts = [part.strip() for part in text.split(",")] if text else []
        found = [match.groups() for part in parts if (match := _part(part))]
        ages = [float(int(number) * _AGES[unit]) for number, unit in found if unit in _AGES]
        sizes = [int(number) << _SIZES[unit] for number, unit in found if unit in _SIZES]
        if len(found) < len(parts) or len(ages) > 1 or len(sizes) > 1:
            raise ValueError(f"{text!r} is not an age, a size, or both")
        return cls(ages[0] if ages else None, sizes[0] if sizes else None)


class SlotCapacity(NamedTuple):
    """What the server says about the slot's future: the most WAL it may keep, and how much may still come; and what is
    free on the disk of its log. In bytes; None where there is no bound, or it is not known. `recent` is what was
    written lately.
    """

    limit: int | None = None
    left: int | None = None
    disk: int | None = None
    recent: int = 0

    @property
    def is_short(self) -> bool:
        """Whether the server is about to give up the slot."""
        if self.limit is None or self.left is None:
            return False
        return self.left < max(self.limit // GIVES_WAY, RECENT_TIMES * self.recent)


def max_window_bytes(limit: int) -> int:
    """What a window may make the server keep that may keep so much for a slot."""
    return max(0, limit - max(limit // 2, RESERVE))


NO_WINDOW = ReplayWindow()


class WindowTracker:
    """Where to confirm the slot. `past` are places where the pipeline was, perhaps in other logs, too."""

    def __init__(self, window: ReplayWindow, confirmed: int, start: LsnPosition, past: Iterable[LsnPosition]) -> None:
        self._window = window
        self._step_ms = (window.seconds or 0) * 1000 / MARKS
        known = {(each.lsn, each.at_ms) for each in past if each.is_alike(start) and each.lsn <= start.lsn}
        self._marks: deque[tuple[int, int]] = deque(sorted(known))
        if not self._marks:
            # Nothing is known of when the pipeline was where: what the slot has is held for a whole window from here.
            self._marks.append((confirmed, start.at_ms))
        self._held = confirmed

    @property
    def held(self) -> int:
        return self._held

    def advance(self, stored: LsnPosition, room: SlotCapacity, now_ms: int) -> int:
        """The LSN that may be confirmed when `stored` is where the pipeline is."""
        if self._window.seconds is not None and stored.at_ms - self._marks[-1][1] >= self._step_ms:
            self._marks.append((stored.lsn, stored.at_ms))
        self._held = max(self._held, min(stored.lsn, self._wanted(stored, room, now_ms)))
        return self._held

    def is_cut(self, stored: LsnPosition, room: SlotCapacity) -> bool:
        """Whether the disk, and nothing else, makes the window as small as it is."""
        return room.disk is not None and self._held == stored.lsn - room.disk // STEPS

    def _wanted(self, stored: LsnPosition, room: SlotCapacity, now_ms: int) -> int:
        if room.is_short:
            return stored.lsn
        # As much again as the window is free on the disk, then: when others fill it, the window goes first.
        bounds = [self._window.size, None if room.limit is None else max_window_bytes(room.limit), room.disk]
        known = [bound for bound in bounds if bound is not None]
        wanted = stored.lsn - min(known) // STEPS if known else 0
        if self._window.seconds is not None:
            oldest = now_ms - self._window.seconds * 1000
            # The mark that is let go of is the last one that is old enough: everything younger stays.
            while len(self._marks) > 1 and self._marks[1][1] <= oldest:
                self._marks.popleft()
            if self._marks[0][1] <= oldest:
                wanted = max(wanted, self._marks[0][0])
        return wanted
