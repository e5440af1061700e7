"""Probes of the server beside the stream: which transactions are committed, where the log ends, how much space is left.

A probe pairs a snapshot with an LSN behind every commit that the snapshot shows. Once the pipeline's position is beyond
that LSN, all rows of the snapshot are known to be read: the position history stores the snapshot, and a recovery relies
on it.

The free space of the log's disk is known only if the server runs on this machine. Its processes then carry the client's
address in their title, so the data directory can be recognised as a local one.
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
"""The same if the server limits the WAL it keeps for a slot."""
PARTS = 16
"""With such a limit, a probe is also due after this part of it is written, but not before `SOONEST_SECONDS`."""
SOONEST_SECONDS = 0.1
RECENT_SECONDS = 5.0
PROCESSES = Path("/proc")
KEPT = 64
"""Most probes that wait for the position to pass them; of more, every second one is dropped."""


class Probes:
    """Used by the source's thread; `passed` may be called from another."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._next = self._verify_at = 0.0
        self._waiting: tuple[tuple[int, str], ...] = ()
        self._passed: tuple[int, str] = (0, "")
        self._folder: Path | None = None
        self._ends: deque[tuple[float, int]] = deque()
        """Recent ends of the log, with the time."""
        self._log_end = 0
        self.capacity = SlotCapacity()
        self.verified = 0
        self.watched = 0

    def find_disk(self, control: PgConnection) -> None:
        """Lets later probes measure the free space of the log's disk, if it is local."""
        self._folder = log_folder(control)

    def note_log_end(self, lsn: int) -> None:
        """Notes that the log reaches at least `lsn`."""
        self._log_end = max(self._log_end, lsn)

    def due(self) -> bool:
        now, limit = time.monotonic(), self.capacity.limit
        if now >= self._next or limit is None:
            return now >= self._next
        taken, end = self._ends[-1]
        return self._log_end - end > limit // PARTS and now >= taken + SOONEST_SECONDS

    def take(self, control: PgConnection, verify: Callable[[], bool]) -> None:
        """Takes a probe. `verify` is called after the snapshot; if it returns False, the snapshot is not used."""
        began = time.monotonic()
        self._next = began + EVERY_SECONDS
        # One statement: its snapshot is older than the end of the log that it reads. The insert LSN, not the flush
        # LSN: a row may be visible before it is flushed. A standby has no insert LSN.
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
        self.capacity = SlotCapacity(
            limit=limit << 20 if limit >= 0 else None,
            left=None if left is None else int(left),
            disk=None if self._folder is None else free_bytes(self._folder),
            recent=self._ends[-1][1] - self._ends[0][1],
        )
        if self.capacity.limit is not None:
            self._next = now + BOUNDED_SECONDS
        # The space may be probed often; the catalog is queried less often, because that costs more.
        if began < self._verify_at or not verify():
            return
        self._verify_at = began + EVERY_SECONDS
        self.verified = Snapshot.parse(str(snapshot)).xmin
        waiting = (*self._waiting, (parse_lsn(str(end)), str(snapshot)))
        self._waiting = waiting[::2] if len(waiting) > KEPT else waiting

    def advance(self, lsn: int) -> None:
        """Notes that the stored position is at `lsn`."""
        done = [probe for probe in self._waiting if probe[0] <= lsn]
        if done:
            self._passed = done[-1]
            self.watched = Snapshot.parse(done[-1][1]).xmin
            self._waiting = self._waiting[len(done) :]

    def passed(self, lsn: int) -> str:
        """Returns the last known snapshot whose rows all lie at or before `lsn`, or ""."""
        end, snapshot = self._passed
        return snapshot if end <= lsn else ""


def log_folder(control: PgConnection, processes: Path = PROCESSES) -> Path | None:
    """Returns the server's data directory if it is on this machine and this role may see it; else None."""
    # Roles without pg_read_all_settings do not see the setting: no row, no error.
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
    """Returns the free bytes on the disk of the server's log; None if unknown."""
    # pg_wal may be on its own disk. Without access to it, use the disk of the data directory.
    for path in (folder / "pg_wal", folder):
        try:
            found = os.statvfs(path)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return None
