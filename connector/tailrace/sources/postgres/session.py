"""The start of a Postgres source: connections, resume check, and the slot that a first start creates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tailrace import failpoints
from tailrace.errors import ConfigError, SlotMissing
from tailrace.positions.base import Position, other_kind
from tailrace.positions.first_read import FirstRead
from tailrace.positions.postgres import LastTransaction, LogIdentity, LsnPosition, TableRead
from tailrace.positions.recovery_mark import require_complete
from tailrace.sources.postgres import catalog, publication, start_where
from tailrace.sources.postgres.options import PgConnections, PostgresOptions
from tailrace.sources.postgres.resume_check import (
    ResumeDecision,
    ServerIdentity,
    SlotState,
    check_resume,
    require_same_past,
    require_same_server,
)
from tailrace.sources.postgres.snapshot import SORT_TIMEOUT, Snapshot
from tailrace.sources.postgres.timelines import follow, require_promoted
from tailrace.sources.postgres.unpublished_rows import UnpublishedRowsCheck


class PostgresSession:
    """The connections of a source, and everything that is checked or created before it reads."""

    def __init__(self, options: PostgresOptions, *, until: Callable[[], Position | None] = lambda: None) -> None:
        """`until` returns the position that the pipeline was rewound from, once the stored position is known."""
        self.until: LsnPosition | None = None
        """The same position, in the log that was opened."""
        self._was_at = until
        self._options = options
        self._connections = PgConnections(options)

    def check_start(self, stored: Position | None) -> None:
        """Raises what `open` would raise for this position. Changes nothing and leaves nothing open."""
        try:
            resumed = self._check(stored, dry_run=True)
            if resumed is not None and resumed[2].position is not None:
                self._require_complete_table(resumed[2].position)
        finally:
            self.close()

    def close(self) -> None:
        self._connections.close()

    def _connect(self) -> ServerIdentity:
        self._control = self._connections.open()
        self._stream = self._connections.open(replication=True)
        catalog.require_able(self._control)
        if self._options.messages is not None:
            catalog.require_utf8(self._control)
        server = catalog.identify(self._stream)
        self._status_interval = self._choose_status_interval()
        return server

    def _choose_status_interval(self) -> float:
        """Returns how often the server needs a status update: its timeout may be shorter than ours; 0 means none."""
        shown = self._stream.query("SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'")[0][0]
        patience = int(shown or 0) / 1000 or self._options.link_timeout
        return min(patience, self._options.link_timeout) / 3

    def _check(
        self, stored: Position | None, *, dry_run: bool = False
    ) -> tuple[LogIdentity, SlotState | None, ResumeDecision] | None:
        """Connects and runs the resume check. A dry run before the first start has nothing to check, and returns
        None.
        """
        if stored is not None and not isinstance(stored, LsnPosition):
            raise other_kind(stored, "Postgres")
        if stored is not None:
            require_complete(stored.recovery)
        options = self._options
        server = self._connect()
        require_promoted(self._control, options.slot)
        before, stored = stored, stored and follow(self._stream, stored, server)
        if stored is not None and not options.adopt:
            require_same_server(stored, server)
        self._follow_rewind(before, server)
        self._check_start_where(stored, every_row=not dry_run)
        if dry_run and (stored is None or stored.creating):
            return None
        if stored is None or stored.creating:
            # Before the slot: a slot decodes with the catalog of its own past, where the publication must exist.
            publication.ensure_publication(self._control, options, create=options.create)
        self._published = self._read_published()
        publication.require_columns(self._control, options)
        UnpublishedRowsCheck(options.table, 0).verify(self._control, self._published)
        found = server.log(options.slot, options.table, self._published.fingerprint)
        slot = catalog.read_slot(self._control, options.slot)
        decision = check_resume(stored, found, slot, server_lsn=server.lsn, adopt=options.adopt)
        self._require_creatable(stored, decision.position)
        return found, slot, decision

    def _check_start_where(self, stored: LsnPosition | None, *, every_row: bool) -> None:
        """Raises if the first read cannot be done with source.start_where, or began with another one."""
        options = self._options
        start_where.require_unchanged(stored, options)
        first = stored is None or stored.creating
        where = options.start_where if first and options.beginning else ""
        if stored is not None and stored.table_read is not None:
            where = stored.table_read.where
        if where and catalog.exists(self._control, options.table):
            start_where.require_valid(self._control, options.table, where, every_row=first and every_row)

    def _follow_rewind(self, stored: LsnPosition | None, server: ServerIdentity) -> None:
        until = self._was_at()
        if not isinstance(until, LsnPosition):
            return
        self.until = followed = follow(self._stream, until, server)
        if stored is not None and not self._options.adopt:
            require_same_past(stored, until, server, followed)

    def _require_creatable(self, stored: LsnPosition | None, position: LsnPosition | None) -> None:
        """Raises if a first start cannot do what the settings say."""
        options = self._options
        if stored is None and position is not None and options.beginning:
            raise ConfigError(
                f"the slot {options.slot} cannot be adopted with `start: beginning`",
                why="It is unknown which rows were in the table before the slot began: none would be published.",
                remedy="Set source.start: now to continue from the slot without them, or drop the slot and start "
                "without --adopt to publish the table from its beginning.",
            )
        if position is not None or options.create:
            return
        if options.beginning:
            raise ConfigError(
                f"there is no slot {options.slot}, and source.create is false",
                why="`start: beginning` reads the table under the snapshot of the slot it creates; one made by hand "
                "has none.",
                remedy="Set source.create: true for the first start, or start: now.",
            )
        raise SlotMissing(
            f"there is no slot {options.slot}",
            why="source.create is false, so Tailrace does not create it.",
            remedy=f"SELECT pg_create_logical_replication_slot('{options.slot}', 'pgoutput'); and start once "
            "with --adopt: only rows written after that are published. If the pipeline has run before, run `tailrace "
            "recover plan FILE` instead, which finds what was missed.",
        )

    def _require_complete_table(self, position: LsnPosition) -> LsnPosition:
        """Raises if rows have entered the table without the publication; --adopt continues without them."""
        options = self._options
        is_known = position.watched and not options.adopt
        if not is_known:
            position = replace(position, watched=catalog.oldest_running(self._control), moves_before=0)
        self._partitions = UnpublishedRowsCheck(options.table, position.watched)
        if is_known:
            # It remembers what it has verified: while streaming there is no time to read a large table again.
            self._partitions.verify(self._control, self._published, timeout=SORT_TIMEOUT)
        return position

    def _create_slot(
        self, found: LogIdentity, store: Callable[[Position], None], unused: SlotState | None
    ) -> tuple[LsnPosition, str]:
        """Creates the slot, in place of an unused one of an interrupted start; returns the position where it begins
        and the name of its exported snapshot.
        """
        options = self._options
        now = time.time_ns() // 1_000_000
        # The intention is stored first. If the process is killed between the next lines, a later start knows that a
        # slot of this name is its own and unused, and re-creates it; otherwise it would have to refuse the slot.
        store(LsnPosition(found, 0, now, creating=True))
        failpoints.reached(failpoints.SLOT_INTENDED)
        catalog.drop_unused(self._control, options.slot, unused)
        lsn, exported = catalog.create_slot(self._stream, options.slot, failover=options.failover)
        failpoints.reached(failpoints.SLOT_CREATED)
        snapshot = catalog.snapshot_text(self._control, exported)
        watched = Snapshot.parse(snapshot).xmin
        read = TableRead("", where=options.start_where) if options.beginning else None
        selected = None
        if read is not None and read.where:
            # The server's clock, because rows are compared with it.
            ((at_ms,),) = self._control.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            selected = FirstRead(read.where, snapshot, int(at_ms or 0))
        begun = "" if options.beginning else snapshot
        self._partitions = UnpublishedRowsCheck(options.table, watched)
        last = LastTransaction(lsn)
        return LsnPosition(
            found, lsn, now, table_read=read, watched=watched, last=last, begun=begun, first_read=selected
        ), exported

    def _read_published(self) -> publication.Published:
        return publication.read_published(self._control, self._options)
