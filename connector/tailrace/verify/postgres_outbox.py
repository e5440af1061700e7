"""Reads an outbox table of Postgres in one snapshot, and decides how much of it a pipeline has passed.

A table does not store the order of commits, so only two statements about rows are certain. All rows of a snapshot are
committed before the end of the log right after it, so a stored position beyond that end has passed them all. And a
slot's `catalog_xmin` advances only when all older transactions have ended before the position that the pipeline has
confirmed, so it has passed every row of an older transaction, even while it does not run. For all other rows nothing is
certain until the pipeline has advanced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from tailrace.errors import LayoutMismatch
from tailrace.event import Column, Columns, Row
from tailrace.positions.base import Position, is_streaming
from tailrace.positions.first_read import FirstRead
from tailrace.positions.postgres import LsnPosition, parse_lsn
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.copy_rows import CopyConnection, Fields
from tailrace.sources.postgres.left_out import evaluable, left_out_mark
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.sources.postgres.table_sql import milliseconds, oversized_row, small_value, too_large
from tailrace.sources.postgres.unpublished_rows import OutboxPartition, last_attached, read_partitions
from tailrace.sql_names import quote, quote_table, split_table
from tailrace.verify.backend import OutboxRow, Window, is_left_out, no_start, nowhere, precedes
from tailrace.verify.findings import UNKNOWN

_new = tuple.__new__
"""Skips the argument handling of the constructors, because this runs once per row."""
BEFORE = 2
"""Number of fields that precede the columns of a row in COPY output."""


class PostgresOutboxReader:
    def __init__(
        self, options: PostgresOptions, window: Window, first_read: FirstRead | None = None, *, complete: bool = True
    ) -> None:
        """`first_read`: mark the rows that it has left out (LEFT_OUT, UNCERTAIN instead of their transaction).

        `complete`: that first read is complete.
        """
        options.require_table(
            "`tailrace verify` compares the rows of a table with the records",
            remedy="Compare the business data with the records, or a projection of them. With an outbox table "
            "(source.table), `verify` compares every event.",
        )
        self._options = options
        self._window = window
        self._link = CopyConnection(options.address, replication=False, timeout=options.link_timeout)
        self._end = self._before = 0
        self._columns: Columns = ()
        self._large: list[tuple[str | None, ...]] = []
        self._first_read = evaluable(self._link, options.table, first_read, complete=complete)

    @property
    def sends_utf8(self) -> bool:
        """Whether `copied` yields values as they are published; otherwise only `row` does."""
        return self._link.text is None

    def rows(self) -> Iterator[OutboxRow]:
        self.begin()
        return chain(map(self.row, self.copied()), self.large())

    def begin(self) -> Columns:
        """Takes the snapshot and returns the columns of the table."""
        link = self._link
        link.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        # A policy that hides rows from this role must be an error, since the log contains them.
        link.query("SET LOCAL row_security = off")
        self._before = Snapshot.parse(str(link.query("SELECT pg_current_snapshot()")[0][0])).xmax
        # The insert position, not the flush position: a row may be visible before it is flushed.
        self._end = self._log_end()
        self._columns = self._announced()
        return self._columns

    def copied(self) -> Iterator[Fields]:
        """Yields all rows of the snapshot from COPY: transaction id, time of creation, columns."""
        huge = too_large(self._columns)
        query = self._query([quote(column.name) for column in self._columns], f"NOT ({huge})")
        self._link.query(f"{query} LIMIT 0")
        yield from self._link.copied(query)
        self._large = self._link.query(self._query([small_value(column) for column in self._columns], huge))
        self._link.query("COMMIT")

    def large(self) -> Iterator[OutboxRow]:
        """Yields rows that are too large for COPY; known after `copied`."""
        for transaction, created, *values in self._large:
            created_ms = int(created or UNKNOWN)
            texts = [None if value is None else value.encode("utf-8", "surrogateescape") for value in values]
            row = oversized_row(self._columns, texts, "", max(created_ms, 0))
            yield OutboxRow(row, int(transaction or 0), created_ms)

    def row(self, found: Fields) -> OutboxRow:
        created_ms = int(found[1] or UNKNOWN)
        columns, values = self._columns, found[BEFORE:]
        if self._link.text is not None:
            columns, values = self._link.text.row(columns, values)
        row = _new(Row, (columns, values, "", created_ms if created_ms > 0 else 0))
        return _new(OutboxRow, (row, int(found[0] or 0), created_ms))

    def is_passed(self, stored: Position) -> bool:
        return isinstance(stored, LsnPosition) and is_streaming(stored) and stored.lsn >= self._end

    def beyond(self, stored: Position, ahead: Callable[[Row], None]) -> Callable[[int], bool]:
        found = self._link.query(
            "SELECT catalog_xmin FROM pg_replication_slots WHERE slot_name = $1", [self._options.slot]
        )
        if not is_streaming(stored) or not found or found[0][0] is None:
            return nowhere
        return partial(precedes, other=int(found[0][0]))

    def before_start(self, stored: Position) -> Callable[[int, int], bool]:
        # If the log ends before the position, this is another server, and its transaction ids mean nothing.
        if self._first_read is not None:
            return is_left_out
        if not isinstance(stored, LsnPosition) or not stored.begun or stored.lsn > self._log_end():
            return no_start
        begun = Snapshot.parse(stored.begun)
        return partial(_was_there, begun, self._before) if begun.xmax <= self._before else no_start

    def close(self) -> None:
        self._link.close()

    def _log_end(self) -> int:
        ((end,),) = self._link.query(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
        )
        return parse_lsn(str(end))

    def _announced(self) -> Columns:
        """Returns the columns as the log announces them."""
        columns, _ = describe_table(self._link, self._options.table)
        timestamp = self._options.timestamp
        if timestamp is not None and timestamp not in [column.name for column in columns]:
            raise LayoutMismatch(
                f"{self._options.table} has no column {timestamp}, which outbox.columns.timestamp names",
                why=f"Its columns are {', '.join(column.name for column in columns)}.",
                remedy="Name the right column.",
            )
        return columns

    def _query(self, columns: list[str], condition: str) -> str:
        timestamp = self._options.timestamp
        when = f"coalesce((extract(epoch FROM {quote(timestamp)}) * 1000)::bigint, {UNKNOWN})" if timestamp else UNKNOWN
        since, until = self._window
        bounds = [condition]
        if timestamp and since is not None:
            bounds.append(f"{quote(timestamp)} >= to_timestamp({since} / 1000.0)")
        if timestamp and until is not None:
            bounds.append(f"{quote(timestamp)} < to_timestamp({until} / 1000.0)")
        table, where, names = quote_table(self._options.table), " AND ".join(bounds), ", ".join(columns)
        attached = last_attached(self._members())
        if not any(attached.values()):
            return f"SELECT {self._marked('o.xmin')}, {when}, {names} FROM {table} o WHERE {where}"  # noqa: S608 - quoted
        # A row belongs to the outbox since its transaction, or since its partition was attached, if that was later.
        pairs = ", ".join(f"('{oid}'::oid, '{at}'::xid)" for oid, at in attached.items())
        entered = "(CASE WHEN age(o.xmin) > age(p.tailrace_xid) THEN p.tailrace_xid ELSE o.xmin END)"
        return (
            f"SELECT {self._marked(entered)}, "  # noqa: S608 - quoted
            f"{when}, {names} FROM {table} o LEFT JOIN (VALUES {pairs}) p (tailrace_oid, tailrace_xid) "
            f"ON p.tailrace_oid = o.tableoid WHERE {where}"
        )

    def _marked(self, xid: str) -> str:
        """Returns the expression of a row's transaction, or of what the first read did with the row."""
        if self._first_read is None:
            return xid
        unchanged = "false"
        if self._first_read.snapshot and (taken := Snapshot.parse(self._first_read.snapshot)).xmax <= self._before:
            unchanged = taken.condition(xid)
        when = milliseconds(self._options.timestamp) if self._options.timestamp else None
        return f"coalesce(({left_out_mark(self._first_read, unchanged, when)})::text, {xid}::text)"

    def _members(self) -> list[OutboxPartition]:
        ((oid,),) = self._link.query(
            "SELECT format('%I.%I', $1::text, $2::text)::regclass::oid", list(split_table(self._options.table))
        )
        return read_partitions(self._link, int(oid or 0))


def _was_there(begun: Snapshot, before: int, transaction: int, created_ms: int) -> bool:
    return begun.contains(transaction, before=before)


def describe_table(link: PgConnection, table: str) -> tuple[Columns, dict[str, str]]:
    """Returns the columns as the log announces them, and their types by name."""
    found = link.query(
        "SELECT attname, atttypid, format_type(atttypid, -1) FROM pg_attribute "
        "WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        list(split_table(table)),
    )
    columns = tuple(Column(str(name), int(oid or 0)) for name, oid, _ in found)
    return columns, {str(name): str(kind) for name, _, kind in found}
