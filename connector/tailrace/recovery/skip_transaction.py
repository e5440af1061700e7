"""Skips one transaction that the server cannot decode, and publishes what the table has of it.

The log continues right behind its commit, on the same slot, and nothing else is skipped. A row belongs to the
transaction if it was not written by an older one, is not in the log before or behind it, and is not on Kafka. The
transaction id alone does not decide, because rows written under a savepoint or changed later have another one.

The log is read through copies of the slot. If it is killed, it starts again; what it had published is found on Kafka.
The last batch holds the dead letter that names the transaction, and the position behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson

from tailrace import failpoints
from tailrace.errors import ConfigError, UndecodableTransaction
from tailrace.event import UNREADABLE, Row
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position
from tailrace.positions.postgres import LastTransaction, LsnPosition, TableRead, format_lsn, parse_lsn
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery.backend import AcceptRow, Begin
from tailrace.recovery.evidence import Evidence
from tailrace.recovery.id_index import IdIndex
from tailrace.recovery.postgres_backend import PostgresBackend
from tailrace.recovery.postgres_source import TableSource
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import check_resume
from tailrace.sources.postgres.table_rescan import LogRescan
from tailrace.sources.postgres.table_sql import reading_order, require_order
from tailrace.sources.postgres.timelines import follow
from tailrace.state.position_history import PositionEntry
from tailrace.verify.findings import WAITING
from tailrace.verify.outbox_rows import event_name
from tailrace.wakeup import Wakeup

EVERY_ROW = f"3:{2**63 - 1}:"
"""A snapshot that shows all rows; other rules select them."""
PAGE_ROWS, PAGE_BYTES = 2000, 8 << 20
_WRAP = 1 << 32


def _behind(position: LsnPosition, found: UndecodableTransaction) -> LsnPosition:
    """Returns the position behind the transaction, without asking for the last transaction that was read."""
    lsn = found.commit_lsn + 1
    return replace(position, lsn=lsn, cut=None, last=LastTransaction(lsn))


class SurroundingLog:
    """Reads the log around the transaction: its rows before the one that cannot be decoded, and all rows behind it."""

    def __init__(self, options: PostgresOptions, lost: LsnPosition, processor: EventProcessor) -> None:
        self._options = options
        self._processor = processor
        self._names = IdIndex()
        self.others: set[int] = set()
        """Later transactions (32 bits) that cannot be decoded either; each needs its own skip."""
        self._at = lost
        self.transaction = found = self._find(lost)
        self.behind = self._at = replace(_behind(lost, found), at_ms=found.commit_ms)
        """Where the log continues. The server skips transactions that were committed before a position: one byte behind
        the beginning of this commit is before every later one.
        """

    @property
    def xid(self) -> int:
        return self.transaction.xid

    def contains(self, name: str, transaction: int) -> bool:
        """Returns whether the log contains the row, or a later skip publishes it."""
        return transaction in self.others or bool(self._names.find(name))

    def read_ahead(self, end: int) -> None:
        """Reads the log up to the LSN `end`."""
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
            # From the beginning of the transaction: the ids of its published rows are needed.
            self._read(replace(lost, cut=None), end, published=lost.cut.rows if lost.cut else 0)
        except UndecodableTransaction as found:
            return found
        raise ConfigError(
            f"the log can be decoded from {lost} on",
            why="The error that the pipeline failed with no longer occurs.",
            remedy="Run `tailrace run FILE`.",
        )

    def _read(self, start: LsnPosition, end: int, published: int | None = None) -> LsnPosition:
        """Reads from `start` to `end` and returns the position there. `published` limits the number of rows."""
        wakeup = Wakeup()
        source = LogRescan(self._options, name="skip", wakeup=wakeup)
        rows = 0
        try:
            source.open(start, lambda _: None)
            while True:
                chunk = source.read(PAGE_ROWS, PAGE_BYTES, 1.0)
                rows += len(chunk.rows)
                if published is not None and rows > published:
                    raise ConfigError(
                        "rows before the transaction that cannot be decoded are not published yet",
                        why="The pipeline was stopped before it reached the transaction.",
                        remedy="Run `tailrace run FILE`: it publishes them and fails with the error again. Then "
                        "recover.",
                    )
                for row in chunk.rows:
                    self._names.add(WAITING, event_name(self._processor, row), ())
                assert isinstance(chunk.position, LsnPosition)  # noqa: S101 - of this source
                if chunk.position.cut is None:
                    self._at = chunk.position
                if chunk.position.cut is None and chunk.position.lsn >= end:
                    return chunk.position
        finally:
            source.close()
            wakeup.close()

    def end(self) -> int:
        """Returns the end of the flushed log."""
        with self._options.connect() as control:
            return parse_lsn(str(control.query("SELECT pg_current_wal_flush_lsn()")[0][0]))


class SkipBackend(PostgresBackend):
    """Implements `Backend` for a pipeline that stopped at a transaction that cannot be decoded."""

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

    def evaluate(
        self, entries: Sequence[PositionEntry], lost: Position | None, until_ms: int | None, *, went_back: bool
    ) -> Evidence:
        found = super().evaluate(entries, lost, until_ms, went_back=went_back)
        return replace(found, passed=self.around.xid % _WRAP)

    def source(self, mark: Recovery, accept: AcceptRow, wakeup: Wakeup, begin: Begin, *, resume: bool) -> RowSource:
        return PostgresSkip(self._options, self._lost, self.around, mark, accept, wakeup, begin, resume=resume)

    def close(self) -> None:
        super().close()
        self.around.close()


class PostgresSkip(TableSource):
    """Implements `pipeline.Source`: the rows of the transaction, its dead letter, and the position behind it."""

    def __init__(
        self,
        options: PostgresOptions,
        lost: LsnPosition,
        around: SurroundingLog,
        mark: Recovery,
        accept: AcceptRow,
        wakeup: Wakeup,
        begin: Begin,
        *,
        resume: bool,
    ) -> None:
        super().__init__(options, mark, accept, wakeup, begin, resume=resume)
        self._lost = lost
        self._around = around
        self._end = around.behind

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        self._begin(stored)
        options = self._options
        self._control, stream = self._connections.open(), self._connections.open(replication=True)
        server = catalog.identify(stream)
        self._found = server.log(options.slot, options.table, self._fingerprint())
        slot = catalog.read_slot(self._control, options.slot)
        check_resume(self._lost, self._found, slot, server_lsn=server.lsn, adopt=False)
        read = stored.table_read if isinstance(stored, LsnPosition) and stored.recovery else None
        if self._resume and isinstance(stored, LsnPosition) and read is not None:
            start = stored
        else:
            # Positions continue behind those of the transaction's rows in the log and of an earlier attempt.
            begun = TableRead(EVERY_ROW, rows=read.rows if read is not None else 0)
            start = replace(self._around.behind, table_read=begun, recovery=self._mark)
        self._reader = self._open_table(start, exported=None)
        # All rows in the table's snapshot were committed before this LSN; those behind the transaction come from the
        # log. The message commits a transaction, which makes the server flush its log up to there.
        end = parse_lsn(str(self._control.query("SELECT pg_current_wal_insert_lsn()")[0][0]))
        self._control.query("SELECT pg_logical_emit_message(true, 'tailrace', 'skip')")
        self._around.read_ahead(end)
        store(start)
        failpoints.reached(failpoints.SKIP_BEGUN)
        return start

    def _last_rows(self) -> list[Row]:
        """Returns the dead letter that names the transaction."""
        found = self._around.transaction
        described = {
            "transaction": found.xid,
            "committed_at": format_lsn(found.commit_lsn),
            "rows_before": found.rows,
            "skipped_by": self._mark.id,
        }
        position = f"{format_lsn(found.commit_lsn)}:{found.rows + 1}"
        return [Row(UNREADABLE, (orjson.dumps(described), found.what.encode()), position, found.commit_ms or _now())]


def _now() -> int:
    return time.time_ns() // 1_000_000
