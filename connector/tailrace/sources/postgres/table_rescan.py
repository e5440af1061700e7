"""Reads a Postgres outbox again beside the pipeline, without touching the pipeline's slot.

`LogRescan` reads the log through a temporary copy of the slot: it begins at the slot's confirmed LSN, which a replay
window holds back, and disappears with its session. `TableRescan` reads the table itself, in the order of `order_by`,
for times that the log no longer covers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from tailrace.errors import (
    LogDiverged,
    ProtocolError,
    PublicationBroken,
    SlotAhead,
    TailraceError,
    UndecodableTransaction,
)
from tailrace.event import Chunk
from tailrace.positions.base import Position, other_kind
from tailrace.positions.postgres import LsnPosition
from tailrace.sources.bounded import BoundedSource
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.feedback import Feedback
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.replay_window import NO_WINDOW
from tailrace.sources.postgres.resume_check import check_resume, require_same_server
from tailrace.sources.postgres.snapshot import Snapshot, TableReader
from tailrace.sources.postgres.source import PostgresSource
from tailrace.sources.postgres.unpublished_rows import UnpublishedRowsCheck
from tailrace.wakeup import Wakeup

UNKNOWN_MS = 0
"""The time of rows without one: a recent time would let consumers apply events they have expired."""
PROOF_SECONDS = 60.0
"""How long the server may take to send the last transaction again: it decodes from the start of the slot."""
PROOF_ROWS, PROOF_BYTES = 1000, 1 << 20
LONGEST = 63
"""Maximum bytes in the name of a slot."""


class LogRescan(PostgresSource):
    """Reads the log through a copy of the slot that `options` names."""

    def __init__(self, options: PostgresOptions, *, name: str, wakeup: Wakeup) -> None:
        """`name` becomes part of the copy's name, for people who list the slots."""
        copy = copy_name(options.slot, name, secrets.token_hex(2))
        super().__init__(replace(options, slot=copy, replay_window=NO_WINDOW), wakeup=wakeup)
        self._original = options.slot

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Starts at `stored`, a position of the pipeline's own log."""
        start = _lsn(stored)
        options = self._options
        server = self._connect()
        require_same_server(start, server)
        self._published = self._read_published()
        found = server.log(self._original, options.table, self._published.fingerprint)
        slot = catalog.read_slot(self._control, self._original)
        # A slot that is in use can be copied.
        slot = None if slot is None else replace(slot, active_pid=None)
        try:
            check_resume(start, found, slot, server_lsn=server.lsn, adopt=False)
            catalog.copy_slot(self._stream, self._original, options.slot)
            self._partitions = UnpublishedRowsCheck(options.table, catalog.oldest_running(self._control))
            confirmed = start.lsn if slot is None else slot.confirmed_lsn
            self._feedback = Feedback(options.slot, start, confirmed=confirmed, window=None, warn=self._warn)
            self._begin(start)
        except PublicationBroken as error:
            raise PublicationBroken(
                f"since the plan was made: {error.what}", why=error.why, remedy="Make a new plan. Nothing was changed."
            ) from None
        except SlotAhead as error:
            raise SlotAhead(
                f"the log is no longer kept as far back as {start}: {error.what}",
                why="The pipeline has confirmed it since; source.replay_window sets how much is kept.",
                remedy="Make a new plan from a later point, or from the table (--from-table).",
            ) from None
        return start

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        try:
            return super().read(limit, limit_bytes, wait)
        except UndecodableTransaction as error:
            error.remedy = "Start after it, or read the table instead (--from-table)."
            raise

    def prove(self, stored: LsnPosition, patience: float) -> bool:
        """Reads up to `stored`; returns whether it got there in time. Raises LogDiverged."""
        self.open(stored, lambda _: None)
        deadline = time.monotonic() + patience
        while not self._transactions.arrived and time.monotonic() < deadline:
            self.read(PROOF_ROWS, PROOF_BYTES, 0.1)
        return self._transactions.arrived


def require_same_log(options: PostgresOptions, stored: LsnPosition, *, patience: float = PROOF_SECONDS) -> bool:
    """Raises LogDiverged if the server's log is not the one that was read up to `stored`. Changes nothing.

    Returns False if that is unknown: the position is of an older version, or the slot cannot be copied.
    """
    if stored.last is None or stored.creating or stored.table_read or stored.recovery:
        return False
    wakeup = Wakeup()
    log = LogRescan(options, name="proof", wakeup=wakeup)
    try:
        return log.prove(stored, patience)
    except LogDiverged:
        raise
    except TailraceError:
        return False
    finally:
        log.close()
        wakeup.close()


class TableRescan(BoundedSource):
    """Reads the rows of the table once more."""

    def __init__(
        self, options: PostgresOptions, *, within: tuple[int | None, int | None] = (None, None), only: str = ""
    ) -> None:
        """`within` limits the rows by the timestamp column: from the first time (ms) to before the second; `only` by
        a condition on the table `o`.
        """
        super().__init__()
        self._options = options
        self._within = within
        self._only = only

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Starts at `stored`, which holds the snapshot and how far the table is read."""
        start, options = _lsn(stored), self._options
        with options.connect(replication=True) as stream:
            require_same_server(start, catalog.identify(stream))
        self._end = replace(start, table_read=None)
        self._reader = TableReader(
            options.connect(),
            options.table,
            order_by=list(options.order_by),
            timestamp=options.timestamp,
            start=start,
            exported=None,
            within=self._within,
            untimed_ms=UNKNOWN_MS,
            whole=False,
            # Rows from before the first start were never published.
            without=Snapshot.parse(start.begun) if start.begun else None,
            is_marked=options.is_marked,
            left_out=start.first_read,
            only=self._only,
        )
        return start


def copy_name(slot: str, *parts: str) -> str:
    """Returns the name of a copy: the slot's name, shortened if needed, and the parts."""
    end = "_".join(["_replay", *parts])
    return slot[: LONGEST - len(end)] + end


def _lsn(stored: Position | None) -> LsnPosition:
    if stored is None:
        raise ProtocolError("a rescan has no start position", remedy="Report it.")
    if not isinstance(stored, LsnPosition):
        raise other_kind(stored, "Postgres")
    return stored
