"""Reads the rows that were in the outbox before its slot began, in resumable pieces.

The first session imports the slot's exported snapshot: it sees exactly the rows whose commits the stream will not
bring. That snapshot dies with its session, so its text is stored beside the position; after a crash a later session
sees more rows than that, and `Snapshot.contains` tells by a row's xmin which of them are still the table's to
publish. Rows come in the order of `order_by`: the nearest to commit order that a table remembers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tailrace.errors import LayoutMismatch
from tailrace.event import Column, Row
from tailrace.lsn import format_lsn
from tailrace.position import Position, TableRead
from tailrace.sources.postgres.link import Link
from tailrace.sources.postgres.slot import quote, split_table


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The text `xmin:xmax:xip,…` of pg_current_snapshot(), understood.

    A slot's exported snapshot lists every transaction of [xmin, xmax) that had not committed, subtransactions
    included, so the list alone decides. Numbers are 64-bit, while a row's xmin has only the lower 32 bits.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def contains(self, xid: int) -> bool:
        """Whether a committed row written by `xid` (32 bits) was visible in this snapshot."""
        if xid < 3:  # frozen or bootstrap: older than anything
            return True
        # The 64-bit number nearest to xmax with these lower bits: a row cannot be 2^31 transactions away from it.
        distance = (xid - self.xmax + 2**31) % 2**32 - 2**31
        full = self.xmax + distance
        return full < self.xmin or (full < self.xmax and full not in self.running)


class TableReader:
    """Pages through the table in one read-only transaction of its own."""

    def __init__(
        self,
        link: Link,
        table: str,
        *,
        order_by: list[str],
        timestamp: str | None,
        start: Position,
        exported: str | None,
    ) -> None:
        """`exported` names the slot's snapshot in its first session; later ones leave it out and filter."""
        self._link = link
        self._start = start
        self._rows = start.table_read.rows if start.table_read else 0
        link.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if exported is not None:
            link.query(f"SET TRANSACTION SNAPSHOT '{exported}'")
            self.snapshot = str(link.query("SELECT pg_current_snapshot()")[0][0])
        else:
            assert start.table_read is not None  # noqa: S101 - resuming is what its presence means
            self.snapshot = start.table_read.snapshot
        self._filter = None if exported is not None else Snapshot.parse(self.snapshot)
        self._declare(table, order_by, timestamp, start.table_read.after if start.table_read else None)

    def read(self, limit: int) -> tuple[list[Row], Position | None]:
        """The next rows and the position behind them; position None when the table is exhausted."""
        fetched = self._link.query(f"FETCH {limit} FROM outbox_rows")
        if not fetched:
            return [], None
        rows: list[Row] = []
        for xid, committed_ms, *rest in fetched:
            if self._filter is not None and not self._filter.contains(int(xid or 0)):
                continue
            self._rows += 1
            values = tuple(None if value is None else value.encode() for value in rest[self._keys :])
            place = f"{format_lsn(self._start.lsn)}:t{self._rows}"
            rows.append(Row(self._columns, values, place, int(committed_ms or self._now_ms)))
        after = [str(value) for value in fetched[-1][2 : 2 + self._keys]]
        return rows, self._at(after)

    def _at(self, after: list[str]) -> Position:
        log, lsn = self._start.log, self._start.lsn
        return Position(log, lsn, self._start.at_ms, table_read=TableRead(self.snapshot, after, self._rows))

    def _declare(self, table: str, order_by: list[str], timestamp: str | None, after: list[str] | None) -> None:
        schema, name = split_table(table)
        found = self._link.query(
            "SELECT attname, atttypid, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass AND attnum > 0 AND NOT attisdropped "
            "AND attgenerated = '' ORDER BY attnum",
            [schema, name],
        )
        types = {str(column): str(kind) for column, _, kind in found}
        for column in [*order_by, *([timestamp] if timestamp else [])]:
            if column not in types:
                raise LayoutMismatch(
                    f"{table} has no column {column} to order its rows by",
                    why=f"Its columns are {', '.join(types)}.",
                    remedy="Set source.order_by to columns that order the rows, the unique id last.",
                )
        self._columns = tuple(Column(str(column), int(oid or 0)) for column, oid, _ in found)
        self._keys = len(order_by)
        self._now_ms = time.time_ns() // 1_000_000
        keys = ", ".join(quote(column) for column in order_by)
        when = f"(extract(epoch FROM {quote(timestamp)}) * 1000)::bigint" if timestamp else "NULL"
        columns = ", ".join(quote(column) for column in types)
        where = ""
        if after is not None:
            values = ", ".join(
                f"{_literal(value)}::{types[column]}" for column, value in zip(order_by, after, strict=True)
            )
            where = f"WHERE ({keys}) > ({values}) "
        # xmin needs no cast: it prints as a number. One cursor, so that rows are sorted once.
        self._link.query(
            f"DECLARE outbox_rows NO SCROLL CURSOR FOR SELECT xmin, {when}, {keys}, {columns} "  # noqa: S608 - quoted
            f"FROM {quote(schema)}.{quote(name)} {where}ORDER BY {keys}"
        )


def _literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f" E'{escaped}'"
