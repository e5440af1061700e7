"""Looks at the server beside the stream: which transactions had committed, where the log ended, what room is left.

A look pairs a snapshot with a place in the log behind every commit that it shows. Once the pipeline's position is
beyond that place, what the snapshot shows is known to be passed: the ledger notes it, and a recovery relies on it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tailrace.positions.postgres import parse_lsn
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.replay_window import SlotCapacity
from tailrace.sources.postgres.snapshot import Snapshot

EVERY_SECONDS = 5.0
BOUNDED_SECONDS = 1.0
"""The same where the server keeps only so much for a slot;"""
PARTS = 16
"""there a look is also due as soon as one part in so many of it is known to be written, but not more often than
`SOONEST_SECONDS`.
"""
SOONEST_SECONDS = 0.1
RECENT_SECONDS = 5.0
PROCESSES = Path("/proc")
KEPT = 64
"""Looks that wait for the position to pass them; of more, every second one is let go."""


class Probes:
    """Taken by the source's thread; `passed` may be asked from another."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._next = self._verify_at = 0.0
        self._waiting: tuple[tuple[int, str], ...] = ()
        self._passed: tuple[int, str] = (0, "")
        self._folder: Path | None = None
        self._ends: deque[tuple[float, int]] = deque()
        """When the log ended where, lately."""
        self._heard = 0
        self.room = SlotCapacity()
        self.verified = 0
        self.watched = 0

    def find_disk(self, control: PgConnection) -> None:
        """From here on, looks tell how much room its disk has, if that can be known."""
        self._folder = log_folder(control)

    def heard(self, lsn: int) -> None:
        """The log reaches at least as far as `lsn`."""
        self._heard = max(self._heard, lsn)

    def due(self) -> bool:
        now, limit = time.monotonic(), self.room.limit
        if now >= self._next or limit is None:
            return now >= self._next
        taken, end = self._ends[-1]
        return self._heard - end > limit // PARTS and now >= taken + SOONEST_SECONDS

    def take(self, control: PgConnection, verify: Callable[[], bool]) -> None:
        """`verify` is called after the snapshot was taken: if not all that it shows is in the log, the look is void."""
        began = time.monotonic()
        self._next = began + EVERY_SECONDS
        # One statement: its snapshot is older than the end of the log that it then asks for. Where rows are put into
        # the log, not how far that is written: a row may be seen before it is. A standby has no such place to tell.
        rows = control.query(
            "SELECT pg_current_snapshot(), pg_current_wal_insert_lsn(), s.safe_wal_size, "
            "(SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') "
            "FROM (SELECT NOT pg_is_in_recovery() AS writes) w "
            "LEFT JOIN pg_replication_slots s ON s.slot_name = $1 WHERE w.writes",
            [self._slot],
        )
        if not rows:
            return
        snapshot, end, left, limit_mb = rows[0]
        limit, now = int(limit_mb or -1), time.monotonic()
        self._ends.append((now, parse_lsn(str(end))))
        while self._ends[0][0] < now - RECENT_SECONDS and len(self._ends) > 2:
            self._ends.popleft()
        self.room = SlotCapacity(
            limit=limit << 20 if limit >= 0 else None,
            left=None if left is None else int(left),
            disk=None if self._folder is None else free_bytes(self._folder),
            recent=self._ends[-1][1] - self._ends[0][1],
        )
        if self.room.limit is not None:
            self._next = now + BOUNDED_SECONDS
        # Looks at the room may follow each other quickly; the catalogue is asked less often, since that costs more.
        if began < self._verify_at or not verify():
            return
        self._verify_at = began + EVERY_SECONDS
        self.verified = Snapshot.parse(str(snapshot)).xmin
        waiting = (*self._waiting, (parse_lsn(str(end)), str(snapshot)))
        self._waiting = waiting[::2] if len(waiting) > KEPT else waiting

    def advance(self, lsn: int) -> None:
        """The pipeline's stored position is at `lsn`."""
        done = [look for look in self._waiting if look[0] <= lsn]
        if done:
            self._passed = done[-1]
            self.watched = Snapshot.parse(done[-1][1]).xmin
            self._waiting = self._waiting[len(done) :]

    def passed(self, lsn: int) -> str:
        """The last snapshot that lies wholly at or before `lsn`, as far as is known; "" if none."""
        end, snapshot = self._passed
        return snapshot if end <= lsn else ""


def log_folder(control: PgConnection, processes: Path = PROCESSES) -> Path | None:
    """Where the server's data is, as a path of this machine; None if it is another machine's, or may not be known."""
    # Roles without pg_read_all_settings do not see where it is: no row, no error.
    process, port, folder = control.query(
        "SELECT pg_backend_pid(), inet_client_port(), (SELECT setting FROM pg_settings WHERE name = 'data_directory')"
    )[0]
    try:
        title = (processes / str(process) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    came_from = f"({port})" if port else "[local]"
    if folder is None or not title.startswith("postgres:") or came_from not in title:
        return None
    return Path(folder)


def free_bytes(folder: Path) -> int | None:
    """What may still be written there by the server; None if it cannot be told."""
    # The log may have been put on a disk of its own. Who may not look inside takes the disk of the data for it.
    for place in (folder / "pg_wal", folder):
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return None
