"""A Postgres whose log was lost: what is wrong with it, what of the ledger still holds, and its table read once more.

The order of the steps is that of a first start: the publication, the intention (stored), the slot, the table under the
slot's own snapshot. Killed between any two of them it begins anew: what it had published is on Kafka by then, and is
left out like everything else that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tailrace import failpoints
from tailrace.errors import ConfigError, Fenced, PublicationBroken, SlotBusy, TailraceError, WrongLog
from tailrace.pipeline.loop import RowSource
from tailrace.positions.base import Position, from_stored, other_kind
from tailrace.positions.lsn import format_lsn
from tailrace.positions.postgres import LastTransaction, LogIdentity, LsnPosition, TableRead
from tailrace.positions.recovery_mark import Recovery, require_complete
from tailrace.recovery.backend import RECOVERABLE, STAYS, Begin, Keeps
from tailrace.recovery.evidence import Evidence, begun_before, by_time, weigh
from tailrace.sources.bounded import BoundedSource
from tailrace.sources.postgres import catalog as catalogue
from tailrace.sources.postgres import publication
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PgConnections, PostgresOptions
from tailrace.sources.postgres.resume_check import (
    ServerIdentity,
    SlotState,
    check_resume,
    require_same_past,
    require_same_server,
)
from tailrace.sources.postgres.snapshot import Snapshot, TableReader, reading_order, require_order, require_whole
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.sources.postgres.timelines import follow, read_forks, require_promoted
from tailrace.sources.postgres.transactions import moved_too_early
from tailrace.sources.postgres.unpublished_rows import PartitionWatch
from tailrace.sql_names import quote, quote_table, split_table
from tailrace.state.position_history import PositionEntry
from tailrace.wakeup import Wakeup

ZONED = 1184
"""The type timestamptz."""


class PostgresBackend:
    """Implements `Site`."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self.order_by = options.order_by
        self._control = options.connect()
        self._stream = options.connect(replication=True)
        catalogue.require_able(self._control)
        self._server = catalogue.identify(self._stream)

    def trouble(self, stored: Position | None, until: Position | None) -> TailraceError | None:
        if stored is not None and not isinstance(stored, LsnPosition):
            raise other_kind(stored, "Postgres")
        options = self._options
        # Asked again: the log has grown since, and the position perhaps with it.
        self._server = server = catalogue.identify(self._stream)
        slot = catalogue.read_slot(self._control, options.slot)
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
            found = identity(options, server, published.fingerprint)
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
            return True  # a primary of before a failover that still answers: what it has since is nobody's
        here = server.system_id, server.database, self._options.table, self._options.slot
        return (log.system_id, log.database, log.table, log.slot) != here

    def went_back(self, lost: Position | None) -> bool:
        if not isinstance(lost, LsnPosition):
            return False
        server = self._server
        log = follow(self._stream, lost, server).log
        return (log.system_id, log.timeline) != (server.system_id, server.timeline) or lost.lsn > server.lsn

    def forgotten(self, lost: Position | None) -> list[str]:
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

    def is_zoned(self) -> bool:
        schema, table = split_table(self._options.table)
        found = self._control.query(
            "SELECT atttypid FROM pg_attribute WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass "
            "AND attname = $3",
            [schema, table, self._options.timestamp or ""],
        )
        return not found or int(found[0][0] or 0) == ZONED

    def steps(self, lost: Position | None) -> list[str]:
        options = self._options
        _require_creating(options)
        require_promoted(self._control, options.slot)
        slot = catalogue.read_slot(self._control, options.slot)
        mend = _publication_mend(self._control, options)
        if mend is None:
            found = publication.read_published(self._control, options)
            PartitionWatch(options.table, 0).verify(self._control, found)
        _, types = require_order(self._control, options.table, list(options.order_by), options.timestamp)
        self.order_by = tuple(reading_order(options.order_by, types))
        dropped = [] if slot is None else [f"drop the slot {_ours(slot, self._server).name}"]
        return [*([mend] if mend else []), *dropped, f"create the slot {options.slot}"]

    def readable(self) -> PostgresOptions:
        return self._options

    def weigh(
        self, entries: Sequence[PositionEntry], lost: Position | None, until_ms: int | None, *, went_back: bool
    ) -> Evidence:
        server = self._server
        place = lost if isinstance(lost, LsnPosition) else None
        if place is not None and (place.creating or place.table_read):
            return Evidence()
        now = Snapshot.parse(str(self._control.query("SELECT pg_current_snapshot()")[0][0]))
        # What was passed of another table says nothing about this one.
        table = self._options.table
        same = [each for each in entries if isinstance(each.position, LsnPosition) and each.position.log.table == table]
        found = weigh(same, place, server, read_forks(self._stream, server), now.xmax, went_back=went_back)
        return found if found.passed is not None else by_time(entries, until_ms)

    def source(self, mark: Recovery, keeps: Keeps, wake: Wakeup, begin: Begin, *, resume: bool) -> RowSource:
        return PostgresRecovery(self._options, self._server, mark, keeps, wake, begin, resume=resume)

    def close(self) -> None:
        self._control.close()
        self._stream.close()


class PostgresRecovery(BoundedSource):
    """Reads the table, and ends at the position from which the new slot goes on."""

    def __init__(
        self,
        options: PostgresOptions,
        planned: ServerIdentity,
        mark: Recovery,
        keeps: Keeps,
        wake: Wakeup,
        begin: Begin,
        *,
        resume: bool,
    ) -> None:
        """`planned` is the server that was looked at when what is left out was decided."""
        super().__init__(wake)
        self._options = options
        self._planned = planned
        self._mark = mark
        self._keeps = keeps
        self._begin = begin
        self._resume = resume
        self._end: LsnPosition
        self._connections = PgConnections(options)

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        self._begin(stored)
        options = self._options
        _require_creating(options)
        self._control, stream = self._connections.open(), self._connections.open(replication=True)
        catalogue.require_able(self._control)
        server = catalogue.identify(stream)
        if (server.system_id, server.timeline) != (self._planned.system_id, self._planned.timeline):
            raise WrongLog(
                f"the server is on timeline {server.timeline}, and was on {self._planned.timeline} when this began",
                why="It failed over or was restored meanwhile: what was decided for the old one does not hold.",
                remedy="Run `tailrace recover plan FILE` again.",
            )
        self._mend_publication()
        published = publication.read_published(self._control, options)
        self._found = identity(options, server, published.fingerprint)
        exported: str | None = None
        if self._resume and isinstance(stored, LsnPosition) and stored.table_read is not None:
            start = stored
        else:
            start, exported = self._create(stream, server, store)
        self._reader = reader = TableReader(
            self._connections.open(),
            options.table,
            order_by=list(options.order_by),
            timestamp=options.timestamp,
            start=start,
            exported=exported,
            keeps=self._keeps,
            moves=published.moves,
        )
        self._end = replace(reader.start, table_read=None, recovery=None)
        store(reader.start)
        return reader.start

    def settle(self) -> None:
        """The table took its time: what was committed meanwhile must be in the new slot's stream."""
        if self._reader is not None:
            return
        if self._fingerprint() != self._found.publication:
            raise PublicationBroken(
                "the publication was changed while the table was read",
                why="Rows committed meanwhile may not be in the new slot's stream.",
                remedy="Leave it as it is, and run `tailrace recover apply FILE` again.",
            )
        slot = catalogue.read_slot(self._control, self._options.slot)
        check_resume(self._end, self._found, slot, server_lsn=self._end.lsn, adopt=False)

    def close(self) -> None:
        super().close()
        self._connections.close()

    def _create(
        self, stream: PgConnection, server: ServerIdentity, store: Callable[[Position], None]
    ) -> tuple[LsnPosition, str]:
        options, now = self._options, time.time_ns() // 1_000_000
        slot = catalogue.read_slot(self._control, options.slot)
        if slot is not None:
            _ours(slot, server)
        # From here on only a recovery that is run again goes on: a start would find the slot gone, or half of a table.
        store(LsnPosition(self._found, 0, now, creating=True, recovery=self._mark))
        failpoints.reached(failpoints.SLOT_INTENDED)
        if slot is not None:
            catalogue.drop_unchanged(self._control, slot)
        if catalogue.read_slot(self._control, options.slot) is not None:
            raise Fenced(f"the slot {options.slot} was created anew since this recovery began")
        lsn, exported = catalogue.create_slot(stream, options.slot, failover=options.failover)
        failpoints.reached(failpoints.SLOT_CREATED)
        begin = LsnPosition(
            self._found,
            lsn,
            now,
            table_read=TableRead(""),
            recovery=self._mark,
            watched=catalogue.oldest_running(self._control, exported),
            last=LastTransaction(lsn),
            history=_history(self._mark),
            begun=begun_before(self._mark),
        )
        return begin, exported

    def _mend_publication(self) -> None:
        statement = _publication_mend(self._control, self._options)
        if statement is not None:
            self._control.query(statement)

    def _fingerprint(self) -> str:
        return publication.read_published(self._control, self._options).fingerprint


def identity(options: PostgresOptions, server: ServerIdentity, fingerprint: str) -> LogIdentity:
    return LogIdentity(server.system_id, server.timeline, server.database, options.slot, options.table, fingerprint)


def _history(mark: Recovery) -> str:
    """What was noted before a database was set back says nothing of its log as it goes on."""
    if mark.went_back:
        return mark.id
    lost = from_stored(mark.lost) if mark.lost else None
    return lost.history if isinstance(lost, LsnPosition) else ""


def _publication_mend(control: PgConnection, options: PostgresOptions) -> str | None:
    """The statement that puts the publication right, as far as Tailrace may; None if it is, or if a person must."""
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
            "source.create is false, and a recovery creates the slot anew",
            why="The table is read under the snapshot of the slot that is created; one made by hand has none.",
            remedy="Set source.create: true for the recovery.",
        )


def _ours(slot: SlotState, server: ServerIdentity) -> SlotState:
    """Refuses to drop what cannot be this pipeline's, or is in use."""
    if slot.plugin != "pgoutput" or slot.database != server.database:
        raise WrongLog(
            f"the slot {slot.name} is of plugin {slot.plugin} in database {slot.database}: it is not dropped",
            why="It is not one of Tailrace's for this database.",
            remedy="Choose another name in source.slot.",
        )
    if slot.active_pid is not None:
        raise SlotBusy(
            f"the slot {slot.name} is in use by the server process {slot.active_pid}",
            why="The pipeline runs, another reader uses its slot, or the server has not yet noticed that it is gone.",
            remedy="Stop it, or wait a moment; then run it again.",
        )
    return slot
