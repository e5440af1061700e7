"""Reads the rows that were in the outbox before its slot began, in resumable pieces.

The first session imports the slot's exported snapshot: it sees exactly the rows whose commits the stream will not
bring. That snapshot dies with its session, so its text is stored beside the position; after a crash a later session
sees more rows than that, and `Snapshot.contains` tells by a row's xmin which of them are still the table's to
publish. Rows come in the order of `order_by`: the nearest to commit order that a table remembers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tailrace.errors import SourceUnavailable, TableRewritten
from tailrace.event import Row
from tailrace.positions.postgres import LsnPosition, TableRead, format_lsn, parse_lsn
from tailrace.sources.postgres.connection import PgConnection
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
    Partition,
    PartitionWatch,
    last_attached,
    later,
    read_partitions,
)
from tailrace.sql_names import quote, quote_table, split_table

SORT_TIMEOUT = 3600.0
"""Seconds a large table may take to be sorted; a shorter bound would only sort it again and again."""
PAGE = 2000
"""Rows fetched at a time, at most."""
FIRST_PAGE = 10
"""Rows fetched before anything is known about their size."""
TRANSACTION_TIMEOUT = 170000
"""The first version of Postgres that has a setting of this name."""

Keeps = Callable[[Row, int, int | None], bool]
"""Whether a row is wanted: the row, the number of its writer's transaction, when it was created (ms)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The text `xmin:xmax:xip,…` of pg_current_snapshot(), understood.

    A slot's exported snapshot lists every transaction of [xmin, xmax) that had not committed, subtransactions
    included, so the list alone decides. Numbers are 64-bit, while a row's xmin has only the lower 32 bits, and a
    frozen row keeps the number of its old writer, however many billions of transactions ago that was.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def contains(self, xid: int, *, before: int) -> bool:
        """Whether a row written by `xid` (32 bits) and visible in a later snapshot, of xmax `before`, was visible here.

        Only transactions of [xmin, before) can be later than this snapshot, so the number is read as the first of
        these with its lower 32 bits; a number that fits none of them is an old one.
        """
        if xid < 3:  # frozen or bootstrap: older than anything
            return True
        full = self.xmin + (xid - self.xmin) % WRAP
        return full >= before or (full < self.xmax and full not in self.running)

    def condition(self) -> str:
        """`contains` as SQL, for rows of a table."""
        full = f"({self.xmin} + mod(xmin::text::bigint - {self.xmin % WRAP} + {WRAP}, {WRAP}))"
        before = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        running = "".join(f" AND {full} <> {xid}" for xid in self.running)
        return f"(xmin::text::bigint < 3 OR {full} >= {before} OR ({full} < {self.xmax}{running}))"


class TableReader:
    """Pages through the table in one read-only transaction of its own."""

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
    ) -> None:
        """`exported` names the slot's snapshot in its first session; later ones leave it out and filter.

        `within` are times (ms) of the column `timestamp`, if only some rows are wanted; `keeps` tells of each row
        whether it is; `untimed_ms` is the time of rows that have none, if not now. `whole`: no row of the snapshot may
        be missing because the table was rewritten since. `moves`: rows may move between partitions. Rows that `without`
        shows are left out.
        """
        self._whole = whole
        self._without = without
        self._untimed_ms = time.time_ns() // 1_000_000 if untimed_ms is None else untimed_ms
        self._link = link
        self._start = start
        self._keeps = keeps
        self._rows = start.table_read.rows if start.table_read else 0
        link.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if exported is not None:
            link.query(f"SET TRANSACTION SNAPSHOT '{exported}'")
        # A policy that hides rows from this role must be an error: the log would have brought them.
        link.query("SET LOCAL row_security = off")
        # Between two pages it is idle for as long as it takes to publish them, or to put a file into a far store.
        link.query("SET LOCAL idle_in_transaction_session_timeout = 0")
        if link.server_version >= TRANSACTION_TIMEOUT:
            link.query("SET LOCAL transaction_timeout = 0")
        current = str(link.query("SELECT pg_current_snapshot()")[0][0])
        self._before = Snapshot.parse(current).xmax
        if moves and exported is None:
            # A row that has moved since the slot began has a new number, and looks like one that the stream brings.
            ((end,),) = link.query("SELECT pg_current_wal_insert_lsn()")
            self._start = replace(start, moves_before=parse_lsn(str(end)))
        if exported is not None:
            self.snapshot = current
        else:
            assert start.table_read is not None  # noqa: S101 - resuming is what its presence means
            self.snapshot = start.table_read.snapshot
        self._filter = None if exported is not None else Snapshot.parse(self.snapshot)
        self._row_bytes = 0
        self._attached: dict[int, int] = {}
        self._newest = (self._before - 1) % WRAP
        self._declare(table, order_by, timestamp, start.table_read.after if start.table_read else None, within)

    @property
    def start(self) -> LsnPosition:
        """Where it began."""
        read = self._start.table_read or TableRead("")
        return replace(self._start, table_read=replace(read, snapshot=self.snapshot))

    def read(self, limit: int, limit_bytes: int) -> tuple[list[Row], LsnPosition | None]:
        """The next rows and the position behind them; position None when the table is exhausted.

        How large rows are is known only once they are here, so `limit_bytes` is kept by the largest row so far.
        """
        limit = min(limit, PAGE)
        page = min(limit, limit_bytes // self._row_bytes) if self._row_bytes else FIRST_PAGE
        # The first page waits for the whole table to be sorted, where no index has its order.
        timeout = None if self._row_bytes else SORT_TIMEOUT
        fetched = self._link.query(f"FETCH {max(1, min(page, limit))} FROM outbox_rows", timeout=timeout)
        if not fetched:
            return [], None
        rows: list[Row] = []
        for xmin, tableoid, committed_ms, *rest in fetched:
            xid = self._entered(int(xmin or 0), int(tableoid or 0))
            if self._filter is not None and not self._filter.contains(xid, before=self._before):
                continue
            if self._without is not None and self._without.contains(xid, before=self._before):
                continue
            codec = self._link.codec
            values = tuple(
                None if value is None else value.encode(codec, "surrogateescape") for value in rest[self._keys + 1 :]
            )
            columns = self._columns
            if self._link.text is not None:
                columns, values = self._link.text.row(columns, values)
            self._row_bytes = max(self._row_bytes, sum(map(len, filter(None, values))))
            place = f"{format_lsn(self._start.lsn)}:t{self._rows + 1}"
            row = Row(columns, values, place, int(committed_ms or self._untimed_ms))
            if rest[self._keys] == "t":
                row = oversized_row(self._columns, values, place, row.committed_ms)
            created_ms = None if committed_ms is None else int(committed_ms)
            if self._keeps is None or self._keeps(row, xid, created_ms):
                self._rows += 1
                rows.append(row)
        return rows, self._at(list(fetched[-1][3 : 3 + self._keys]))

    def close(self) -> None:
        """Closes its connection, which nobody else uses."""
        self._link.close()

    def _entered(self, xid: int, tableoid: int) -> int:
        """The transaction since which the row is the outbox's: its own, or that which attached its partition."""
        return later(xid, self._attached.get(tableoid, self._newest), self._before) if self._attached else xid

    def _at(self, after: list[str | None]) -> LsnPosition:
        return replace(self._start, table_read=TableRead(self.snapshot, after, self._rows))

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
        if after is None or len(after) > len(order_by):
            order_by = reading_order(order_by, types)
        self._keys = len(order_by)
        names = {column: f"o.{quote(column)}" for column in order_by}
        if WRITTEN in names:
            # Read as 64 bits, backwards from the snapshot that is stored with the position: so it is the same when the
            # reading is resumed.
            last = Snapshot.parse(self.snapshot).xmax
            names[WRITTEN] = f"({last} - mod({last % 2**32} - o.xmin::text::bigint + {2**32}, {2**32}))"
        keys = ", ".join(names.values())
        when = milliseconds(timestamp) if timestamp else "NULL"
        # A row that the server could not send would end the whole reading: it comes without its large values.
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
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        # xmin needs no cast: it prints as a number. One cursor, so that rows are sorted once.
        self._link.query(
            f"DECLARE outbox_rows NO SCROLL CURSOR FOR SELECT xmin, tableoid, {when}, {keys}, {huge}, {columns} "  # noqa: S608
            f"FROM {quote(schema)}.{quote(name)} AS o {where}ORDER BY {keys}"
        )
        self._look_at_members(schema, name)

    def _look_at_members(self, schema: str, name: str) -> None:
        """With the cursor open, no table of the outbox can be altered, attached or detached any more."""
        ((oid,),) = self._link.query("SELECT format('%I.%I', $1::text, $2::text)::regclass::oid", [schema, name])
        members = read_partitions(self._link, int(oid or 0))
        if moved := [member.name for member in members if not member.current]:
            # This snapshot does not see the rows in the new file: it would take the table for an empty one.
            raise SourceUnavailable(
                f"{moved[0]} was rewritten while the first read began",
                why="ALTER TABLE, VACUUM FULL, CLUSTER or TRUNCATE replaced its file.",
                remedy="Tailrace begins again by itself.",
            )
        if len(members) > 1:
            self._attached = last_attached(members)
        if self._filter is not None and self._whole:
            require_same_rows(self._link, f"{quote(schema)}.{quote(name)}", members, self._filter)


def require_same_rows(link: PgConnection, table: str, members: Sequence[Partition], snapshot: Snapshot) -> None:
    """Refuses to resume the read of a table whose rows were all given new numbers since.

    ALTER TABLE does that if it rewrites the table; VACUUM FULL and CLUSTER replace the file, too, but keep the numbers.
    So of a table that was altered, one row that the snapshot contains proves that the numbers are still the old ones.
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
                why="ALTER TABLE gave all rows a new transaction number, which separates rows that were there before "
                "the slot from those that the stream brings.",
                remedy="`tailrace recover plan FILE` compares the table with the topics, `recover apply` publishes the "
                "rest of it. To go on without that, start once with --adopt.",
            )


def require_whole(control: PgConnection, table: str, published: Published, stored: LsnPosition | None) -> None:
    """Refuses what a start at `stored` would refuse because rows of the table would be left out."""
    PartitionWatch(table, stored.watched if stored else 0).verify(control, published, timeout=SORT_TIMEOUT)
    if stored is not None and stored.table_read is not None and stored.table_read.snapshot:
        members = read_partitions(control, published.relation_id)
        require_same_rows(control, quote_table(table), members, Snapshot.parse(stored.table_read.snapshot))
