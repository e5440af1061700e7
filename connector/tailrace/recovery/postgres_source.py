"""Reads the outbox table again for a recovery, under the snapshot of a new replication slot.

The steps are those of a first start: publication, stored intention, slot, table. If it is killed between two of them,
it starts again; what it had published is found on Kafka and left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tailrace import failpoints
from tailrace.errors import ConfigError, PublicationBroken, SlotBusy, WrongLog
from tailrace.positions.base import Position, from_stored
from tailrace.positions.postgres import LastTransaction, LogIdentity, LsnPosition, TableRead
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery.backend import AcceptRow, Begin
from tailrace.recovery.evidence import begun_before, first_read_before
from tailrace.sources.bounded import BoundedSource
from tailrace.sources.postgres import catalog, publication
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PgConnections, PostgresOptions
from tailrace.sources.postgres.resume_check import ServerIdentity, SlotState, check_resume
from tailrace.sources.postgres.snapshot import TableReader
from tailrace.sql_names import quote, quote_table
from tailrace.wakeup import Wakeup


class TableSource(BoundedSource):
    """Base of the sources of a recovery, which read the table; `open` of a subclass sets what is declared here."""

    _control: PgConnection
    _found: LogIdentity

    def __init__(
        self, options: PostgresOptions, mark: Recovery, accept: AcceptRow, wakeup: Wakeup, begin: Begin, *, resume: bool
    ) -> None:
        super().__init__(wakeup)
        self._options = options
        self._mark = mark
        self._accept = accept
        self._begin = begin
        self._resume = resume
        self._connections = PgConnections(options)

    def settle(self) -> None:
        """Checks that rows committed during the read are in the stream."""
        if self._reader is None and self._fingerprint() != self._found.publication:
            raise PublicationBroken(
                "the publication was changed while the table was read",
                why="Rows committed meanwhile may not be in the stream.",
                remedy="Leave it as it is, and run `tailrace recover apply FILE` again.",
            )

    def close(self) -> None:
        super().close()
        self._connections.close()

    def _open_table(self, start: LsnPosition, *, exported: str | None, moves: bool = False) -> TableReader:
        options = self._options
        return TableReader(
            self._connections.open(),
            options.table,
            order_by=list(options.order_by),
            timestamp=options.timestamp,
            start=start,
            exported=exported,
            keeps=self._accept,
            moves=moves,
            left_out=start.first_read,
        )

    def _fingerprint(self) -> str:
        return publication.read_published(self._control, self._options).fingerprint


class PostgresRecovery(TableSource):
    """Implements `pipeline.Source`: reads the table, and ends at the position where the new slot continues."""

    def __init__(
        self,
        options: PostgresOptions,
        planned: ServerIdentity,
        mark: Recovery,
        accept: AcceptRow,
        wakeup: Wakeup,
        begin: Begin,
        *,
        resume: bool,
    ) -> None:
        """`planned` is the server for which the plan was made."""
        super().__init__(options, mark, accept, wakeup, begin, resume=resume)
        self._planned = planned
        self._end: LsnPosition

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        self._begin(stored)
        options = self._options
        _require_creating(options)
        self._control, stream = self._connections.open(), self._connections.open(replication=True)
        catalog.require_able(self._control)
        server = catalog.identify(stream)
        if (server.system_id, server.timeline) != (self._planned.system_id, self._planned.timeline):
            raise WrongLog(
                f"the server is on timeline {server.timeline}, but was on {self._planned.timeline} when the plan was "
                "made",
                why="It failed over or was restored meanwhile, so the plan is no longer valid.",
                remedy="Run `tailrace recover plan FILE` again.",
            )
        self._fix_publication()
        published = publication.read_published(self._control, options)
        self._found = server.log(options.slot, options.table, published.fingerprint)
        exported: str | None = None
        if self._resume and isinstance(stored, LsnPosition) and stored.table_read is not None:
            start = stored
        else:
            start, exported = self._create(stream, server, store)
        self._reader = reader = self._open_table(start, exported=exported, moves=published.moves)
        self._end = replace(reader.start, table_read=None, recovery=None)
        store(reader.start)
        return reader.start

    def settle(self) -> None:
        """Checks as well that the new slot is still there."""
        super().settle()
        if self._reader is None:
            slot = catalog.read_slot(self._control, self._options.slot)
            check_resume(self._end, self._found, slot, server_lsn=self._end.lsn, adopt=False)

    def _create(
        self, stream: PgConnection, server: ServerIdentity, store: Callable[[Position], None]
    ) -> tuple[LsnPosition, str]:
        options, now = self._options, time.time_ns() // 1_000_000
        slot = catalog.read_slot(self._control, options.slot)
        if slot is not None:
            _ours(slot, server)
        # From here on only another recovery can continue: a start would find no slot, or half of a table.
        store(LsnPosition(self._found, 0, now, creating=True, recovery=self._mark))
        failpoints.reached(failpoints.SLOT_INTENDED)
        catalog.drop_unused(self._control, options.slot, slot)
        lsn, exported = catalog.create_slot(stream, options.slot, failover=options.failover)
        failpoints.reached(failpoints.SLOT_CREATED)
        begin = LsnPosition(
            self._found,
            lsn,
            now,
            table_read=TableRead(""),
            recovery=self._mark,
            watched=catalog.oldest_running(self._control, exported),
            last=LastTransaction(lsn),
            history=_history(self._mark),
            begun=begun_before(self._mark),
            first_read=first_read_before(self._mark, options),
        )
        return begin, exported

    def _fix_publication(self) -> None:
        statement = _publication_fix(self._control, self._options)
        if statement is not None:
            self._control.query(statement)


def _history(mark: Recovery) -> str:
    """Returns the history id: entries from before a restore say nothing about the restored log."""
    if mark.went_back:
        return mark.id
    lost = from_stored(mark.lost) if mark.lost else None
    return lost.history if isinstance(lost, LsnPosition) else ""


def _publication_fix(control: PgConnection, options: PostgresOptions) -> str | None:
    """Returns the statement that fixes the publication; None if it is correct or a person must fix it."""
    name, table = options.publication, options.table
    if not control.query("SELECT 1 FROM pg_publication WHERE pubname = $1", [name]):
        return publication.create_publication(name, table, moves=publication.rows_move(control, options))
    return (
        None
        if publication.contains(control, name, table)
        else f"ALTER PUBLICATION {quote(name)} ADD TABLE {quote_table(table)}"
    )


def _require_creating(options: PostgresOptions) -> None:
    if not options.create:
        raise ConfigError(
            "source.create is false, but a recovery re-creates the slot",
            why="The table is read under the snapshot of the new slot, which a slot created by hand does not provide.",
            remedy="Set source.create: true for the recovery.",
        )


def _ours(slot: SlotState, server: ServerIdentity) -> SlotState:
    """Refuses to drop a slot that cannot belong to this pipeline, or that is in use."""
    if slot.plugin != "pgoutput" or slot.database != server.database:
        raise WrongLog(
            f"the slot {slot.name} has the plugin {slot.plugin} in database {slot.database}: it is not dropped",
            why="It does not belong to a Tailrace pipeline of this database.",
            remedy="Choose another name in source.slot.",
        )
    if slot.active_pid is not None:
        raise SlotBusy(
            f"the slot {slot.name} is in use by the server process {slot.active_pid}",
            why="The pipeline is running, another client uses its slot, or the server has not noticed yet that the "
            "client is gone.",
            remedy="Stop it, or wait a moment, then try again.",
        )
    return slot
