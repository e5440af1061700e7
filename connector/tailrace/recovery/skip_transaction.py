"""One transaction that the server cannot decode is skipped, and what the table has of it is published.

The log goes on right behind its commit, on the same slot: nothing else is skipped. Which rows of the table are its own
is decided by what they are not: written by an older transaction, brought by the log before or behind it, or on Kafka.
The number of the transaction alone does not tell, since rows written under a savepoint or changed later have another.

The log is read through copies of the slot. Killed at any moment, it begins again: what it had published is on Kafka by
then. The last batch has the dead letter that names the transaction, and the position behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson

from tailrace import failpoints
from tailrace.errors import ConfigError, PublicationBroken, UndecodableTransaction
from tailrace.event import UNREADABLE, Row
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position
from tailrace.positions.lsn import format_lsn, parse_lsn
from tailrace.positions.postgres import LastTransaction, LsnPosition, TableRead
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery.backend import Begin, Keeps
from tailrace.recovery.evidence import Evidence
from tailrace.recovery.postgres_backend import PostgresBackend, identity
from tailrace.recovery.published_index import IdIndex
from tailrace.recovery.row_filter import name_of
from tailrace.sources.bounded import BoundedSource
from tailrace.sources.postgres import catalog as catalogue
from tailrace.sources.postgres.options import PgConnections, PostgresOptions
from tailrace.sources.postgres.publication import read_published
from tailrace.sources.postgres.resume_check import check_resume
from tailrace.sources.postgres.snapshot import TableReader, reading_order, require_order
from tailrace.sources.postgres.table_rescan import LogRescan
from tailrace.sources.postgres.timelines import follow
from tailrace.state.position_history import PositionEntry
from tailrace.verify.compare import WAITING
from tailrace.wakeup import Wakeup

EVERY_ROW = f"3:{2**63 - 1}:"
"""A snapshot that shows all rows: which of them are wanted is decided by other means."""
PAGE_ROWS, PAGE_BYTES = 2000, 8 << 20
_WRAP = 1 << 32


def _behind(position: LsnPosition, found: UndecodableTransaction) -> LsnPosition:
    """The last transaction that was read is not asked for again: this one would come behind it."""
    lsn = found.commit_lsn + 1
    return replace(position, lsn=lsn, cut=None, last=LastTransaction(lsn))


class SurroundingLog:
    """What the log brings around the transaction: the rows of it before the one that cannot be sent, and all behind."""

    def __init__(self, options: PostgresOptions, lost: LsnPosition, processor: EventProcessor) -> None:
        self._options = options
        self._processor = processor
        self._names = IdIndex()
        self.others: set[int] = set()
        """Later transactions that cannot be decoded either (32 bits): each is to be skipped by itself."""
        self._at = lost
        self.transaction = found = self._find(lost)
        self.behind = self._at = replace(_behind(lost, found), at_ms=found.commit_ms)
        """Where the log goes on. The server skips what was committed before a place: one byte behind the beginning of
        this commit is before every later one.
        """

    @property
    def xid(self) -> int:
        return self.transaction.xid

    def brings(self, name: str, transaction: int) -> bool:
        """Whether the log brings the row by itself, or a later skip does."""
        return transaction in self.others or bool(self._names.find(name))

    def read_ahead(self, end: int) -> None:
        """Reads on to the place `end` of the log."""
        while self._at.lsn < end:
            try:
                self._at = self._read(self._at, end)
            except UndecodableTransaction as other:
                self.others.add(other.xid % _WRAP)
                self._at = _behind(self._at, other)

    def close(self) -> None:
        self._names.close()

    def _find(self, lost: LsnPosition) -> UndecodableTransaction:
        end = self.end()
        try:
            # From the beginning of the transaction: what is published of it must be known by name.
            self._read(replace(lost, cut=None), end, published=lost.cut.rows if lost.cut else 0)
        except UndecodableTransaction as found:
            return found
        raise ConfigError(
            f"the log can be decoded from {lost} on",
            why="What the pipeline failed with is no longer so.",
            remedy="tailrace run FILE.",
        )

    def _read(self, start: LsnPosition, end: int, published: int | None = None) -> LsnPosition:
        """Reads from `start` to `end`; the position there. `published` says how many rows may come at all."""
        source = LogRescan(self._options, name="skip", wake=Wakeup())
        rows = 0
        try:
            source.open(start, lambda _: None)
            while True:
                chunk = source.read(PAGE_ROWS, PAGE_BYTES, 1.0)
                rows += len(chunk.rows)
                if published is not None and rows > published:
                    raise ConfigError(
                        "rows before the transaction that cannot be decoded are not published yet",
                        why="The pipeline was stopped before it came to it.",
                        remedy="tailrace run FILE: it publishes them and ends with the error again. Then recover.",
                    )
                for row in chunk.rows:
                    self._names.add(WAITING, name_of(self._processor, row), ())
                assert isinstance(chunk.position, LsnPosition)  # noqa: S101 - of this source
                if chunk.position.cut is None:
                    self._at = chunk.position
                if chunk.position.cut is None and chunk.position.lsn >= end:
                    return chunk.position
        finally:
            source.close()

    def end(self) -> int:
        """How far the log is written now."""
        with self._options.connect() as control:
            return parse_lsn(str(control.query("SELECT pg_current_wal_flush_lsn()")[0][0]))


class SkipBackend(PostgresBackend):
    """Implements `Site` for a pipeline that stands before a transaction that cannot be decoded."""

    def __init__(self, options: PostgresOptions, lost: LsnPosition, processor: EventProcessor) -> None:
        super().__init__(options)
        self._lost = follow(self._stream, lost, self._server)
        self.around = SurroundingLog(options, self._lost, processor)

    def steps(self, lost: Position | None) -> list[str]:
        options, around = self._options, self.around
        _, types = require_order(self._control, options.table, list(options.order_by), options.timestamp)
        self.order_by = tuple(reading_order(options.order_by, types))
        around.read_ahead(around.end())
        found = around.transaction
        also = [f"{len(around.others)} later transactions cannot be decoded either: one more skip each"]
        return [
            f"skip the transaction {found.xid}, committed at {format_lsn(found.commit_lsn)}, and no other",
            "write a dead letter that names it",
            *(also if around.others else []),
        ]

    def weigh(
        self, entries: Sequence[PositionEntry], lost: Position | None, until_ms: int | None, *, went_back: bool
    ) -> Evidence:
        found = super().weigh(entries, lost, until_ms, went_back=went_back)
        return replace(found, passed=self.around.xid % _WRAP)

    def source(self, mark: Recovery, keeps: Keeps, wake: Wakeup, begin: Begin, *, resume: bool) -> RowSource:
        return PostgresSkip(self._options, self._lost, self.around, mark, keeps, wake, begin, resume=resume)

    def close(self) -> None:
        super().close()
        self.around.close()


class PostgresSkip(BoundedSource):
    """Reads what the table has of the transaction, then its dead letter, and ends at the position behind it."""

    def __init__(
        self,
        options: PostgresOptions,
        lost: LsnPosition,
        around: SurroundingLog,
        mark: Recovery,
        keeps: Keeps,
        wake: Wakeup,
        begin: Begin,
        *,
        resume: bool,
    ) -> None:
        super().__init__(wake)
        self._options = options
        self._lost = lost
        self._around = around
        self._mark = mark
        self._keeps = keeps
        self._begin = begin
        self._resume = resume
        self._connections = PgConnections(options)

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        self._begin(stored)
        options = self._options
        self._control, stream = self._connections.open(), self._connections.open(replication=True)
        server = catalogue.identify(stream)
        self._found = identity(options, server, self._fingerprint())
        slot = catalogue.read_slot(self._control, options.slot)
        check_resume(self._lost, self._found, slot, server_lsn=server.lsn, adopt=False)
        read = stored.table_read if isinstance(stored, LsnPosition) and stored.recovery else None
        if self._resume and isinstance(stored, LsnPosition) and read is not None:
            start = stored
        else:
            # Rows get places behind those that the log brought of the transaction, and behind those of an attempt that
            # was killed.
            begun = TableRead(EVERY_ROW, rows=read.rows if read is not None else 0)
            start = replace(self._around.behind, table_read=begun, recovery=self._mark)
        self._reader = TableReader(
            self._connections.open(),
            options.table,
            order_by=list(options.order_by),
            timestamp=options.timestamp,
            start=start,
            exported=None,
            keeps=self._keeps,
        )
        # Whatever the table's snapshot shows was committed before this place, and what lies behind the transaction
        # comes by the log. A commit of our own behind it makes the server write its log as far as that.
        end = parse_lsn(str(self._control.query("SELECT pg_current_wal_insert_lsn()")[0][0]))
        self._control.query("SELECT pg_logical_emit_message(true, 'tailrace', 'skip')")
        self._around.read_ahead(end)
        self._end = self._around.behind
        store(start)
        failpoints.reached(failpoints.SKIP_BEGUN)
        return start

    def settle(self) -> None:
        if self._reader is None and self._fingerprint() != self._found.publication:
            raise PublicationBroken(
                "the publication was changed while the table was read",
                why="Rows committed meanwhile may not be in the stream.",
                remedy="Leave it as it is, and run `tailrace recover apply FILE` again.",
            )

    def close(self) -> None:
        super().close()
        self._connections.close()

    def _last_rows(self) -> list[Row]:
        return [self._letter()]

    def _letter(self) -> Row:
        found = self._around.transaction
        described = {
            "transaction": found.xid,
            "committed_at": format_lsn(found.commit_lsn),
            "rows_before": found.rows,
            "skipped_by": self._mark.id,
        }
        place = f"{format_lsn(found.commit_lsn)}:{found.rows + 1}"
        return Row(UNREADABLE, (orjson.dumps(described), found.what.encode()), place, found.commit_ms or _now())

    def _fingerprint(self) -> str:
        return read_published(self._control, self._options).fingerprint


def _now() -> int:
    return time.time_ns() // 1_000_000
