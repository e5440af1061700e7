"""What the server hears from us: how far we have read, and how far it may forget its log.

It never hears of a position that is not stored in Kafka (I6); with a replay window, of one that is further back still.
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
"""How often it is said that the window is given up: it comes and goes as others write."""


class Feedback:
    """Belongs to the source's thread; only `passed` may be asked from another."""

    def __init__(
        self,
        slot: str,
        start: LsnPosition,
        *,
        confirmed: int,
        holding: WindowTracker | None,
        warn: Callable[[str], None],
    ) -> None:
        """`confirmed` is what the slot has: a start alone confirms nothing. `warn` hears of a replay window that is
        given up.
        """
        self._slot = slot
        self._looks = Probes(slot)
        self._holding = holding
        self._warn = warn
        self._was_cut = False
        self._warned = -WARN_SECONDS
        self._stored: LsnPosition | None = None
        self.received = start.lsn
        self._confirmed = confirmed

    def find_disk(self, control: PgConnection) -> None:
        """A replay window is to leave room on the server's disk, as far as that can be known."""
        self._looks.find_disk(control)

    def look(self, control: PgConnection, verify: Callable[[], bool] = lambda: True) -> bool:
        """Looks at the server from time to time; whether there is something to tell it now.

        `verify` tells whether everything is published that must be, or raises.
        """
        if not self._looks.due():
            return False
        self._looks.take(control, verify)
        # The window may have to give way, whether anything is published or not.
        return self._stored is not None and self.advance(self._stored)

    def heard(self, lsn: int) -> None:
        """The server's log reaches as far as `lsn`: a look may be due earlier."""
        self._looks.heard(lsn)

    @property
    def is_pressed(self) -> bool:
        """Whether the server is about to give up the slot: positions are to be stored and confirmed soon."""
        return self._looks.room.is_short

    def advance(self, stored: LsnPosition) -> bool:
        """`stored` is stored in Kafka; whether there is something to tell the server now."""
        self._stored = stored
        self._looks.advance(stored.lsn)
        before, confirmed = self._confirmed, stored.lsn
        if self._holding is not None:
            confirmed = self._holding.advance(stored, self._looks.room, time.time_ns() // 1_000_000)
            self._tell_of_window(self._holding, stored)
        self._confirmed = max(before, confirmed)
        return self._confirmed > before

    def passed(self, lsn: int) -> str:
        """A snapshot all of whose rows lie at or before `lsn`; "" if none is known."""
        return self._looks.passed(lsn)

    @property
    def verified(self) -> int:
        """The `xmin` of the last look at which everything was published that must be; 0 if there was none."""
        return self._looks.verified

    @property
    def watched(self) -> int:
        """The same of the last look that the stored position has passed."""
        return self._looks.watched

    def update(self, *, reply: bool) -> bytes:
        """The next message; `reply` asks the server for one, too."""
        clock = postgres_micros(time.time_ns() // 1_000_000)
        return encode_status_update(self.received, self._confirmed, self._confirmed, clock, reply=reply)

    def _tell_of_window(self, holding: WindowTracker, stored: LsnPosition) -> None:
        room, now = self._looks.room, time.monotonic()
        if room.is_short and now - self._warned >= WARN_SECONDS:
            self._warned = now
            self._warn(
                f"the replay window is given up: the server drops the slot {self._slot} after "
                f"{(room.left or 0) >> 20} MiB more of WAL (max_slot_wal_keep_size), and {room.recent >> 20} MiB were "
                "written in the last seconds"
            )
        # Once: it comes and goes as others write and delete.
        if not self._was_cut and not room.is_short and holding.is_cut(stored, room):
            self._was_cut = True
            self._warn(
                f"the replay window is cut to {(room.disk or 0) >> 20} MiB: that much is free on the disk of the "
                "server's log, and it takes no more than it leaves"
            )
