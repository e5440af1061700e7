"""Reads the rows that were in the outbox before its slot began, in resumable pages.

The first session imports the slot's exported snapshot: it sees exactly the rows that the stream will not send. The
snapshot ends with its session, so its text is stored with the position. After a crash a later session sees more rows,
and `Snapshot.contains` decides by a row's xmin which of them were in the table before. Rows are read in the order of
`order_by`, which is as close to commit order as the columns allow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tailrace.errors import SourceUnavailable, TableRewritten
from tailrace.event import Columns, Row
from tailrace.positions.first_read import FirstRead
from tailrace.positions.postgres import LsnPosition, TableRead, format_lsn, parse_lsn
from tailrace.sources.postgres.changed_rows import ChangedRows, changed_rows
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.left_out import evaluable, left_out_mark, not_left_out
from tailrace.sources.postgres.publication import Published
from tailrace.sources.postgres.table_sql import (
    WRITTEN,
    milliseconds,
    oversized_row,
    reading_order,
    require_order,
    rows_after,
    rows_between,
    small_value,
    too_large,
)
from tailrace.sources.postgres.unpublished_rows import (
    WRAP,
    OutboxPartition,
    UnpublishedRowsCheck,
    last_attached,
    later,
    read_partitions,
)
from tailrace.sql_names import quote, quote_table, split_table

SORT_TIMEOUT = 3600.0
"""Seconds for sorting a large table; a shorter timeout would only sort it again and again."""
PAGE = 2000
"""Rows fetched at a time, at most."""
FIRST_PAGE = 10
"""Rows in the first page, before their size is known."""
TRANSACTION_TIMEOUT = 170000
"""The first version of Postgres with the setting transaction_timeout."""

Keeps = Callable[[Row, int, int | None], bool]
"""Decides whether a row is wanted, from the row, the transaction id of its writer, and its creation time (ms)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A parsed pg_current_snapshot(): `xmin:xmax:xip,…`.

    A slot's exported snapshot lists every uncommitted transaction of [xmin, xmax), subtransactions included. Its ids
    have 64 bits, while a row's xmin has only the lower 32 bits, and a frozen row keeps the id of its old writer.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def contains(self, xid: int, *, before: int) -> bool:
        """Whether a row of `xid` (32 bits) that a later snapshot with xmax `before` shows is visible in this one.

        Only transactions of [xmin, before) can be later than this snapshot, so the id is extended to the first of these
        with the same lower 32 bits; an id that matches none of them is an old one.
        """
        if xid < 3:  # frozen or bootstrap: older than anything
            return True
        full = self.xmin + (xid - self.xmin) % WRAP
        return full >= before or (full < self.xmax and full not in self.running)

    def condition(self, xid: str = "xmin") -> str:
        """Returns `contains` as an SQL condition; `xid` is the expression of the transaction id."""
        number = f"{xid}::text::bigint"
        full = f"({self.xmin} + mod({number} - {self.xmin % WRAP} + {WRAP}, {WRAP}))"
        before = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        running = "".join(f" AND {full} <> {each}" for each in self.running)
        return f"({number} < 3 OR {full} >= {before} OR ({full} < {self.xmax}{running}))"


class TableReader:
    """Pages through the table in one read-only transaction on its own connection."""

    def __init__(
        self,
        link: PgConnection,
        table: str,
        *,
        order_by: list[str],
        timestamp: str | None,
        start: LsnPosition,
        exported: str | None,
        within: tuple[int | None, int | None] = (None, None),
        keeps: Keeps | None = None,
        untimed_ms: int | None = None,
        whole: bool = True,
        moves: bool = False,
        without: Snapshot | None = None,
        is_marked: Callable[[Row], bool] | None = None,
        left_out: FirstRead | None = None,
        inserted: Callable[[int], Container[Row]] | None = None,
        steady: bool = True,
        only: str = "",
    ) -> None:
        """`exported` names the slot's snapshot in the first session; later sessions filter by the stored one.

        `within` limits the rows by the column `timestamp` (ms); `keeps` decides for each row whether it is wanted;
        `untimed_ms` is the time of rows without one, instead of now. `whole`: raise if rows of the snapshot may be
        missing because the table was rewritten. `moves`: rows may move between partitions. `without`: leave out the
        rows of this snapshot. `is_marked`: rows for which it returns True belong to the stored snapshot, although
        their delivery mark has given them a later transaction id. `left_out`: leave out, or pass to `keeps`, what the
        first read has left out. `inserted` returns the rows that the log has up to an LSN, so that rows changed since
        the stored snapshot are recognised; without it they count as rows of the stream. `steady`: an UPDATE does not
        change the columns of `order_by`. `only`: a condition on the table `o` that the rows must meet.
        """
        self._whole = whole
        self._steady = steady
        self._only = only
        self._without = without
        self._is_marked = is_marked
        self._untimed_ms = time.time_ns() // 1_000_000 if untimed_ms is None else untimed_ms
        self._link = link
        self._start = start
        self._keeps = keeps
        self._rows = start.table_read.rows if start.table_read else 0
        lost = start.recovery.lost if start.recovery else None
        self._left_out = evaluable(link, table, left_out, complete=not (lost or {}).get("table_read"))
        link.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if exported is not None:
            link.query(f"SET TRANSACTION SNAPSHOT '{exported}'")
        # A policy that hides rows from this role must be an error: the log would contain them.
        link.query("SET LOCAL row_security = off")
        # Between two pages the session is idle while they are published or written to an archive.
        link.query("SET LOCAL idle_in_transaction_session_timeout = 0")
        if link.server_version >= TRANSACTION_TIMEOUT:
            link.query("SET LOCAL transaction_timeout = 0")
        current = str(link.query("SELECT pg_current_snapshot()")[0][0])
        self._before = Snapshot.parse(current).xmax
        self._changed: ChangedRows | None = None
        if exported is None and (moves or inserted is not None):
            ((end,),) = link.query("SELECT pg_current_wal_insert_lsn()")
            if moves:
                # A row that moved since the slot began has a new transaction id, and looks like a row of the stream.
                self._start = replace(start, moves_before=parse_lsn(str(end)))
            if inserted is not None:
                self._changed = ChangedRows(partial(inserted, parse_lsn(str(end))))
        if exported is not None:
            self.snapshot = current
        else:
            assert start.table_read is not None  # noqa: S101 - present when resuming
            self.snapshot = start.table_read.snapshot
        self._filter = None if exported is not None else Snapshot.parse(self.snapshot)
        self._row_bytes = 0
        self._attached: dict[int, int] = {}
        self._newest = (self._before - 1) % WRAP
        self._declare(table, order_by, timestamp, start.table_read.after if start.table_read else None, within)

    @property
    def start(self) -> LsnPosition:
        """The position at which it began."""
        read = self._start.table_read or TableRead("")
        return replace(self._start, table_read=replace(read, snapshot=self.snapshot))

    def read(self, limit: int, limit_bytes: int) -> tuple[list[Row], LsnPosition | None]:
        """Returns the next rows and the position behind them; the position is None when the table is exhausted.

        The page size follows from `limit_bytes` and the largest row so far.
        """
        limit = min(limit, PAGE)
        page = min(limit, limit_bytes // self._row_bytes) if self._row_bytes else FIRST_PAGE
        # Without a matching index, the first page waits until the whole table is sorted.
        timeout = None if self._row_bytes else SORT_TIMEOUT
        fetched = self._link.query(f"FETCH {max(1, min(page, limit))} FROM outbox_rows", timeout=timeout)
        if not fetched:
            return [], None
        rows: list[Row] = []
        for xmin, tableoid, committed_ms, mark, *rest in fetched:
            xid = self._entered(int(xmin or 0), int(tableoid or 0))
            is_later = self._filter is not None and not self._filter.contains(xid, before=self._before)
            if is_later and self._changed is None and self._is_marked is None:
                continue
            if self._without is not None and self._without.contains(xid, before=self._before):
                continue
            row = self._decoded(rest[self._keys + 1 :], int(committed_ms or self._untimed_ms))
            if is_later and self._changed is not None and row not in self._changed:
                continue
            self._row_bytes = max(self._row_bytes, sum(map(len, filter(None, row.values))))
            if rest[self._keys] == "t":
                row = oversized_row(self._columns, row.values, row.position, row.committed_ms)
            if is_later and self._is_marked is not None and not self._is_marked(row):
                continue
            created_ms = None if committed_ms is None else int(committed_ms)
            if self._keeps is None or self._keeps(row, int(mark or xid), created_ms):
                self._rows += 1
                rows.append(row)
        return rows, self._at(list(fetched[-1][4 : 4 + self._keys]))

    def close(self) -> None:
        """Closes the connection, which belongs to this reader."""
        self._link.close()

    def _entered(self, xid: int, tableoid: int) -> int:
        """Returns the transaction that brought the row into the outbox: its own, or the ATTACH of its partition."""
        return later(xid, self._attached.get(tableoid, self._newest), self._before) if self._attached else xid

    def _decoded(self, texts: Sequence[str | None], committed_ms: int) -> Row:
        codec = self._link.codec
        columns: Columns = self._columns
        values = tuple(None if value is None else value.encode(codec, "surrogateescape") for value in texts)
        if self._link.text is not None:
            columns, values = self._link.text.row(columns, values)
        return Row(columns, values, f"{format_lsn(self._start.lsn)}:t{self._rows + 1}", committed_ms)

    def _at(self, after: list[str | None]) -> LsnPosition:
        return replace(self._start, table_read=TableRead(self.snapshot, after, self._rows, self._where))

    @property
    def _where(self) -> str:
        return self._start.table_read.where if self._start.table_read else ""

    def _declare(
        self,
        table: str,
        order_by: list[str],
        timestamp: str | None,
        after: list[str | None] | None,
        within: tuple[int | None, int | None],
    ) -> None:
        schema, name = split_table(table)
        self._columns, types = require_order(self._link, table, order_by, timestamp)
        # Marks change the transaction of a row, so a read could not be resumed in that order.
        if self._is_marked is None and (after is None or len(after) > len(order_by)):
            order_by = reading_order(order_by, types)
        self._keys = len(order_by)
        names = {column: f"o.{quote(column)}" for column in order_by}
        if WRITTEN in names:
            # Extended to 64 bits, backwards from the stored snapshot: so it is the same after a resume.
            last = Snapshot.parse(self.snapshot).xmax
            names[WRITTEN] = f"({last} - mod({last % 2**32} - o.xmin::text::bigint + {2**32}, {2**32}))"
        keys = ", ".join(names.values())
        when = milliseconds(timestamp) if timestamp else "NULL::bigint"
        # A row that is too large to send would end the whole read: it is read without its large values.
        huge = too_large(self._columns)
        columns = ", ".join(
            quote(column.name)
            if small_value(column) == quote(column.name)
            else f"CASE WHEN {huge} THEN {small_value(column)} ELSE {quote(column.name)} END"
            for column in self._columns
        )
        conditions = [] if after is None else [rows_after(names, after, {**types, WRITTEN: "bigint"})]
        if timestamp:
            conditions += rows_between(timestamp, *within)
        wanted = [f"(({self._where}) IS NOT FALSE)"] if self._where else []
        mark, unmarked = self._mark(when)
        conditions += wanted + unmarked
        if self._only:
            conditions.append(f"({self._only})")
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        # One cursor, so that the rows are sorted once.
        self._link.query(
            f"DECLARE outbox_rows NO SCROLL CURSOR FOR SELECT xmin, tableoid, {when}, {mark}, {keys}, {huge}, "  # noqa: S608
            f"{columns} FROM {quote(schema)}.{quote(name)} AS o {where}ORDER BY {keys}"
        )
        self._check_partitions(schema, name)
        if (WRITTEN in names or not self._steady) and self._changed is not None and self._filter is not None:
            later = " AND ".join([f"NOT {self._filter.condition('o.xmin')}", *wanted])
            self._require_unchanged(f"{columns} FROM {quote(schema)}.{quote(name)} AS o WHERE {later}", table, order_by)

    def _mark(self, when: str) -> tuple[str, list[str]]:
        """Returns the expression that marks what the first read has left out, and conditions that exclude it."""
        if self._left_out is None:
            return "NULL", []
        unchanged = "false"
        if self._left_out.snapshot and (taken := Snapshot.parse(self._left_out.snapshot)).xmax <= self._before:
            unchanged = taken.condition("o.xmin")
        if self._keeps is None:
            return "NULL", [not_left_out(self._left_out, unchanged)]
        return left_out_mark(self._left_out, unchanged, when), []

    def _require_unchanged(self, later: str, table: str, order_by: list[str]) -> None:
        """Raises if rows were changed since the snapshot, because that has changed their place in the order."""
        self._link.query(f"DECLARE later_rows NO SCROLL CURSOR FOR SELECT {later}")
        while found := self._link.query(f"FETCH {PAGE} FROM later_rows", timeout=SORT_TIMEOUT):
            if self._changed is not None and any(self._decoded(texts, 0) in self._changed for texts in found):
                raise changed_rows(table, order_by)
        self._link.query("CLOSE later_rows")

    def _check_partitions(self, schema: str, name: str) -> None:
        """Checks the partitions; with the cursor open, none can be altered, attached or detached any more."""
        ((oid,),) = self._link.query("SELECT format('%I.%I', $1::text, $2::text)::regclass::oid", [schema, name])
        members = read_partitions(self._link, int(oid or 0))
        if moved := [member.name for member in members if not member.current]:
            # This snapshot does not see the rows in the new file: the table would look empty.
            raise SourceUnavailable(
                f"{moved[0]} was rewritten while the first read began",
                why="ALTER TABLE, VACUUM FULL, CLUSTER or TRUNCATE replaced its file.",
                remedy="Tailrace starts the read again by itself.",
            )
        if len(members) > 1:
            self._attached = last_attached(members)
        if self._filter is not None and self._whole:
            require_same_rows(self._link, f"{quote(schema)}.{quote(name)}", members, self._filter)


def require_same_rows(link: PgConnection, table: str, members: Sequence[OutboxPartition], snapshot: Snapshot) -> None:
    """Raises if the rows of a table have new transaction ids since the snapshot, so that a read cannot be resumed.

    ALTER TABLE changes the ids if it rewrites the table; VACUUM FULL and CLUSTER keep them. So one row that the
    snapshot contains proves that the ids of an altered table are still the old ones.
    """
    for member in members:
        known = [snapshot.contains(xid, before=member.before) for xid in (member.rewritten, member.altered)]
        if member.kind == "p" or all(known) or not snapshot.contains(member.created, before=member.before):
            continue
        of_it = f"FROM {table} WHERE tableoid = '{member.oid}'"
        ((filled, same),) = link.query(
            f"SELECT EXISTS (SELECT {of_it}), EXISTS (SELECT {of_it} AND {snapshot.condition()})",
            timeout=SORT_TIMEOUT,
        )
        if filled == "t" and same != "t":
            raise TableRewritten(
                f"{member.name} was rewritten before its first read was complete",
                why="ALTER TABLE gave all rows a new transaction id. The old ids separate rows from before the slot "
                "from rows of the stream.",
                remedy="`tailrace recover plan FILE` compares the table with the topics, `recover apply` publishes the "
                "rest of it. To continue without that, start once with --adopt.",
            )


def require_whole(control: PgConnection, table: str, published: Published, stored: LsnPosition | None) -> None:
    """Raises what a start at `stored` would raise because rows of the table would be missed."""
    UnpublishedRowsCheck(table, stored.watched if stored else 0).verify(control, published, timeout=SORT_TIMEOUT)
    if stored is not None and stored.table_read is not None and stored.table_read.snapshot:
        members = read_partitions(control, published.relation_id)
        require_same_rows(control, quote_table(table), members, Snapshot.parse(stored.table_read.snapshot))
