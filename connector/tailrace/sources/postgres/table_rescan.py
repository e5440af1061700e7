"""An outbox of Postgres read once more, beside the pipeline, whose slot is not touched.

The log comes through a copy of the slot: it begins where the slot is confirmed, which with a replay window is long ago,
and holds the log back for as long as the reading takes. It is temporary, so it goes with its session, whatever ends
that. Where the log no longer reaches, the table itself is read: in the order of `order_by`, which is as near to commit
order as its columns are.
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
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.sources.bounded import BoundedSource
from tailrace.sources.postgres import catalog as catalogue
from tailrace.sources.postgres.feedback import Feedback
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.replay_window import NO_WINDOW
from tailrace.sources.postgres.resume_check import check_resume, require_same_server
from tailrace.sources.postgres.snapshot import Snapshot, TableReader
from tailrace.sources.postgres.source import PostgresSource
from tailrace.sources.postgres.unpublished_rows import PartitionWatch
from tailrace.wakeup import Wakeup

UNKNOWN_MS = 0
"""Of a row that has no time: to call it new would let consumers apply what they have long forgotten."""
PROOF_SECONDS = 60.0
"""How long a server may take to send the last transaction once more: it decodes its log from the slot's begin on."""
PROOF_ROWS, PROOF_BYTES = 1000, 1 << 20
LONGEST = 63
"""Bytes in the name of a slot."""


class LogRescan(PostgresSource):
    """Follows the log of the slot that `options` names, through a copy of it."""

    def __init__(self, options: PostgresOptions, *, name: str, wake: Wakeup) -> None:
        """`name` is part of the copy's name, for those who look at the slots meanwhile."""
        copy = copy_name(options.slot, name, secrets.token_hex(2))
        super().__init__(replace(options, slot=copy, replay_window=NO_WINDOW), wake=wake)
        self._original = options.slot

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Starts at `stored`, which is one of the pipeline's own log."""
        start = _lsn(stored)
        options = self._options
        self._control = self._connections.open()
        self._stream = self._connections.open(replication=True)
        catalogue.require_able(self._control)
        server = catalogue.identify(self._stream)
        require_same_server(start, server)
        self._published = self._read_published()
        self._status_interval = self._choose_status_interval()
        where = (server.system_id, server.timeline, server.database)
        found = LogIdentity(*where, self._original, options.table, self._published.fingerprint)
        slot = catalogue.read_slot(self._control, self._original)
        # That the pipeline reads it does not matter to a copy.
        slot = None if slot is None else replace(slot, active_pid=None)
        try:
            check_resume(start, found, slot, server_lsn=server.lsn, adopt=False)
            catalogue.copy_slot(self._stream, self._original, options.slot)
            self._members = PartitionWatch(options.table, catalogue.oldest_running(self._control))
            confirmed = start.lsn if slot is None else slot.confirmed_lsn
            self._feedback = Feedback(options.slot, start, confirmed=confirmed, holding=None, warn=self._warn)
            self._begin(start)
        except PublicationBroken as error:
            raise PublicationBroken(
                f"since the plan was made, {error.what}", why=error.why, remedy="Make a new plan. Nothing was changed."
            ) from None
        except SlotAhead as error:
            raise SlotAhead(
                f"the log is no longer kept as far back as {start}: {error.what}",
                why="The pipeline has let go of it since; source.replay_window says how much it keeps.",
                remedy="Make a new plan from a later point, or from the table (--from-table).",
            ) from None
        return start

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        try:
            return super().read(limit, limit_bytes, wait)
        except UndecodableTransaction as error:
            error.remedy = "Begin behind it, or read the table instead (--from-table)."
            raise

    def prove(self, stored: LsnPosition, patience: float) -> bool:
        """Reads up to `stored`; whether it came there in time. Raises LogDiverged."""
        self.open(stored, lambda _: None)
        deadline = time.monotonic() + patience
        while not self._transactions.arrived and time.monotonic() < deadline:
            self.read(PROOF_ROWS, PROOF_BYTES, 0.1)
        return self._transactions.arrived


def require_same_log(options: PostgresOptions, stored: LsnPosition, *, patience: float = PROOF_SECONDS) -> bool:
    """Raises LogDiverged if the server's log is not the one that was read up to `stored`; changes nothing.

    False if it cannot be told: a position of an older version, a slot that cannot be copied or is in use.
    """
    if stored.last is None or stored.creating or stored.table_read or stored.recovery:
        return False
    wake = Wakeup()
    log = LogRescan(options, name="proof", wake=wake)
    try:
        return log.prove(stored, patience)
    except LogDiverged:
        raise
    except TailraceError:
        return False
    finally:
        log.close()
        wake.close()


class TableRescan(BoundedSource):
    """Reads the rows of the table once more."""

    def __init__(self, options: PostgresOptions, *, within: tuple[int | None, int | None] = (None, None)) -> None:
        """`within` are times (ms) of the column for them, from the first to before the second."""
        super().__init__()
        self._options = options
        self._within = within

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """`stored` says which rows, by a snapshot, and how far they are read."""
        start, options = _lsn(stored), self._options
        with options.connect(replication=True) as stream:
            require_same_server(start, catalogue.identify(stream))
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
            # What was there before the first start was never published.
            without=Snapshot.parse(start.begun) if start.begun else None,
        )
        return start


def copy_name(slot: str, *parts: str) -> str:
    """Tells whose copy it is, as far as a slot's name is long enough."""
    end = "_".join(["_replay", *parts])
    return slot[: LONGEST - len(end)] + end


def _lsn(stored: Position | None) -> LsnPosition:
    if stored is None:
        raise ProtocolError("a reading beside the pipeline has no beginning", remedy="Report it.")
    if not isinstance(stored, LsnPosition):
        raise other_kind(stored, "Postgres")
    return stored
