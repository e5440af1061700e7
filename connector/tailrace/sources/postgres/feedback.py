"""Status updates to the server: how far the log is read, and up to where it may be removed.

Only positions that are stored in Kafka are confirmed (I6); with a replay window, an earlier position.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.positions.postgres import LsnPosition
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.probes import Probes
from tailrace.sources.postgres.replay_window import WindowTracker
from tailrace.sources.postgres.replication_protocol import encode_status_update, postgres_micros

WARN_SECONDS = 600.0
"""Minimum interval between warnings about a window that is given up."""


class Feedback:
    """Belongs to the source's thread; only `passed` may be called from another."""

    def __init__(
        self,
        slot: str,
        start: LsnPosition,
        *,
        confirmed: int,
        window: WindowTracker | None,
        warn: Callable[[str], None],
    ) -> None:
        """`confirmed` is the slot's confirmed LSN. `warn` is called when the replay window is given up."""
        self._slot = slot
        self._probes = Probes(slot)
        self._window = window
        self._warn = warn
        self._was_cut = False
        self._warned = -WARN_SECONDS
        self._stored: LsnPosition | None = None
        self.received = start.lsn
        self._confirmed = confirmed

    def find_disk(self, control: PgConnection) -> None:
        """Finds the disk of the server's log if it can: the replay window must leave space on it."""
        self._probes.find_disk(control)

    def probe(self, control: PgConnection, verify: Callable[[], bool] = lambda: True) -> bool:
        """Probes the server if a probe is due; returns whether a status update must be sent.

        `verify` returns whether the publication is known to be complete, or raises.
        """
        if not self._probes.due():
            return False
        self._probes.take(control, verify)
        # The window may have to shrink, whether anything is published or not.
        return self._stored is not None and self.advance(self._stored)

    def note_log_end(self, lsn: int) -> None:
        """Notes that the server's log reaches `lsn`: a probe may be due earlier."""
        self._probes.note_log_end(lsn)

    @property
    def is_pressed(self) -> bool:
        """Whether the server may soon invalidate the slot: positions must be stored and confirmed quickly."""
        return self._probes.capacity.is_short

    def advance(self, stored: LsnPosition) -> bool:
        """Notes that `stored` is stored in Kafka; returns whether a status update must be sent."""
        self._stored = stored
        self._probes.advance(stored.lsn)
        before, confirmed = self._confirmed, stored.lsn
        if self._window is not None:
            confirmed = self._window.advance(stored, self._probes.capacity, time.time_ns() // 1_000_000)
            self._warn_about_window(self._window, stored)
        self._confirmed = max(before, confirmed)
        return self._confirmed > before

    def passed(self, lsn: int) -> str:
        """Returns a snapshot whose rows all lie at or before `lsn`, or "" if none is known."""
        return self._probes.passed(lsn)

    @property
    def verified(self) -> int:
        """The `xmin` of the last probe that found the publication complete; 0 if there was none."""
        return self._probes.verified

    @property
    def watched(self) -> int:
        """The same of the last probe that the stored position has passed."""
        return self._probes.watched

    def update(self, *, reply: bool) -> bytes:
        """Returns the next status update; `reply` asks the server for a keepalive."""
        clock = postgres_micros(time.time_ns() // 1_000_000)
        return encode_status_update(self.received, self._confirmed, self._confirmed, clock, reply=reply)

    def _warn_about_window(self, window: WindowTracker, stored: LsnPosition) -> None:
        room, now = self._probes.capacity, time.monotonic()
        if room.is_short and now - self._warned >= WARN_SECONDS:
            self._warned = now
            self._warn(
                f"the replay window is given up: the server drops the slot {self._slot} after "
                f"{(room.left or 0) >> 20} MiB more of WAL (max_slot_wal_keep_size), and {room.recent >> 20} MiB were "
                "written in the last seconds"
            )
        # Warned once: the free space changes as others write and delete.
        if not self._was_cut and not room.is_short and window.is_cut(stored, room):
            self._was_cut = True
            self._warn(
                f"the replay window is cut to {(room.disk or 0) >> 20} MiB: that much is free on the disk of the "
                "server's log, and the window leaves as much as it takes"
            )
