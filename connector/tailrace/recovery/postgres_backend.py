"""Examines a Postgres server whose log was lost: what is wrong, and what of the position history is still valid."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.errors import TailraceError
from tailrace.pipeline.loop import RowSource
from tailrace.positions.base import Position, other_kind
from tailrace.positions.postgres import LsnPosition, format_lsn
from tailrace.positions.recovery_mark import Recovery, require_complete
from tailrace.recovery.backend import RECOVERABLE, STAYS, AcceptRow, Begin
from tailrace.recovery.evidence import Evidence, by_time, evaluate
from tailrace.recovery.postgres_source import PostgresRecovery, _ours, _publication_fix, _require_creating
from tailrace.sources.postgres import catalog, publication
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import check_resume, require_same_past, require_same_server
from tailrace.sources.postgres.snapshot import Snapshot, require_whole
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.sources.postgres.table_sql import reading_order, require_order
from tailrace.sources.postgres.timelines import follow, read_forks, require_promoted
from tailrace.sources.postgres.transactions import moved_too_early
from tailrace.sources.postgres.unpublished_rows import UnpublishedRowsCheck
from tailrace.sql_names import split_table
from tailrace.state.position_history import PositionEntry
from tailrace.wakeup import Wakeup

TIMESTAMPTZ = 1184


class PostgresBackend:
    """Implements `Backend`."""

    def __init__(self, options: PostgresOptions) -> None:
        options.require_table(
            "`tailrace recover` finds missed events in a table",
            remedy="What the lost part of the log contained cannot be recovered: write it again from the business "
            "data. To continue behind it, start once with --adopt; if there is no slot: "
            f"SELECT pg_create_logical_replication_slot('{options.slot}', 'pgoutput'); before that.",
        )
        self._options = options
        self.order_by = options.order_by
        self._control = options.connect()
        self._stream = options.connect(replication=True)
        catalog.require_able(self._control)
        self._server = catalog.identify(self._stream)

    def find_error(self, stored: Position | None, until: Position | None) -> TailraceError | None:
        if stored is not None and not isinstance(stored, LsnPosition):
            raise other_kind(stored, "Postgres")
        options = self._options
        # Read again, because log and position have grown.
        self._server = server = catalog.identify(self._stream)
        slot = catalog.read_slot(self._control, options.slot)
        if stored is None and slot is None:
            return None
        try:
            if stored is not None:
                require_complete(stored.recovery)
                before, stored = stored, follow(self._stream, stored, server)
                require_same_server(stored, server)
                if isinstance(until, LsnPosition):
                    require_same_past(before, until, server, follow(self._stream, until, server))
            published = publication.read_published(self._control, options)
            found = server.log(options.slot, options.table, published.fingerprint)
            check_resume(stored, found, slot, server_lsn=server.lsn, adopt=False)
            require_whole(self._control, options.table, published, stored)
            if stored is not None and stored.moves_before > stored.lsn and not stored.table_read:
                raise moved_too_early()
            if stored is not None:
                require_same_log(options, stored)
        except RECOVERABLE as error:
            return error
        return None

    def is_elsewhere(self, stored: Position) -> bool:
        if not isinstance(stored, LsnPosition):
            return True
        log, server = stored.log, self._server
        if server.timeline < log.timeline:
            return True  # a primary from before a failover that still responds: its later rows belong to no pipeline
        here = server.system_id, server.database, self._options.table, self._options.slot
        return (log.system_id, log.database, log.table, log.slot) != here

    def went_back(self, lost: Position | None) -> bool:
        if not isinstance(lost, LsnPosition):
            return False
        server = self._server
        log = follow(self._stream, lost, server).log
        return (log.system_id, log.timeline) != (server.system_id, server.timeline) or lost.lsn > server.lsn

    def lost_notes(self, lost: Position | None) -> list[str]:
        if not isinstance(lost, LsnPosition) or not self.went_back(lost):
            return []
        log, server = lost.log, self._server
        if log.system_id != server.system_id:
            return [f"this is another cluster: {STAYS}"]
        left = read_forks(self._stream, server).get(log.timeline)
        if left is None:
            return [f"the server's log is not the one that was read: {STAYS}"]
        return [
            f"the server left timeline {log.timeline} at {format_lsn(left)}, before the last position {lost}: {STAYS}"
        ]

    def has_time_zone(self) -> bool:
        schema, table = split_table(self._options.table)
        found = self._control.query(
            "SELECT atttypid FROM pg_attribute WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass "
            "AND attname = $3",
            [schema, table, self._options.timestamp or ""],
        )
        return not found or int(found[0][0] or 0) == TIMESTAMPTZ

    def steps(self, lost: Position | None) -> list[str]:
        options = self._options
        _require_creating(options)
        require_promoted(self._control, options.slot)
        slot = catalog.read_slot(self._control, options.slot)
        fix = _publication_fix(self._control, options)
        if fix is None:
            found = publication.read_published(self._control, options)
            UnpublishedRowsCheck(options.table, 0).verify(self._control, found)
        _, types = require_order(self._control, options.table, list(options.order_by), options.timestamp)
        self.order_by = tuple(reading_order(options.order_by, types))
        dropped = [] if slot is None else [f"drop the slot {_ours(slot, self._server).name}"]
        return [*([fix] if fix else []), *dropped, f"create the slot {options.slot}"]

    def readable(self) -> PostgresOptions:
        return self._options

    def evaluate(
        self, entries: Sequence[PositionEntry], lost: Position | None, until_ms: int | None, *, went_back: bool
    ) -> Evidence:
        server = self._server
        known = lost if isinstance(lost, LsnPosition) else None
        if known is not None and (known.creating or known.table_read):
            return Evidence()
        now = Snapshot.parse(str(self._control.query("SELECT pg_current_snapshot()")[0][0]))
        # Entries of another table say nothing about this one.
        table = self._options.table
        same = [each for each in entries if isinstance(each.position, LsnPosition) and each.position.log.table == table]
        found = evaluate(same, known, server, read_forks(self._stream, server), now.xmax, went_back=went_back)
        return found if found.passed is not None else by_time(entries, until_ms)

    def source(self, mark: Recovery, accept: AcceptRow, wakeup: Wakeup, begin: Begin, *, resume: bool) -> RowSource:
        return PostgresRecovery(self._options, self._server, mark, accept, wakeup, begin, resume=resume)

    def close(self) -> None:
        self._control.close()
        self._stream.close()
