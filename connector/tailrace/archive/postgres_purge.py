"""Deletes archived rows from an outbox table of Postgres.

A row is deleted only if all of its columns equal the file in text form, and if the pipeline has passed it. `DELETE …
RETURNING` shows what would be deleted; if a row differs, the transaction is rolled back and repeated without it. So
only the DELETE privilege is needed, and locks are short. Rows that the database refuses to delete (foreign key,
trigger) stay; the other rows of the page are deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

from psycopg.pq import TransactionStatus

from tailrace.archive.backend import PurgeResult
from tailrace.archive.format import ArchivedRow
from tailrace.errors import LayoutMismatch, SourceError, SourceUnavailable
from tailrace.event import Columns, Row
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.sql_names import quote, quote_table, split_table
from tailrace.verify.postgres_outbox import describe_table

STATEMENT_TIMEOUT = 600.0
"""Seconds for deleting a page, including triggers and locks, and for counting rows without an index."""

_is_refused = re.compile(r"\[(?:23\w{3}|P0001)\]$").search
"""The SQLSTATE at the end of an error: a constraint, or a trigger that raises."""

OnDeleted = Callable[[Sequence[int]], None]
"""Called in the transaction of each deletion, right before its commit, with the indexes of the deleted rows."""


@dataclass(frozen=True, slots=True)
class _Page:
    """Rows of a file: their keys, and the values that the table must have."""

    keys: list[list[str]]
    expected: list[tuple[str | None, ...]]

    @property
    def all(self) -> list[int]:
        return list(range(len(self.keys)))


class PostgresPurge:
    def __init__(
        self,
        link: PgConnection,
        table: str,
        columns: Columns,
        types: dict[str, str],
        keys: list[str],
        *,
        is_marked: Callable[[Row], bool] | None = None,
        mark_columns: Collection[str] = (),
    ) -> None:
        """`mark_columns` may differ from the file: a delivery mark may be written later. A row for which `is_marked`
        returns True is published, although its transaction id is that of the mark.
        """
        self._is_marked = is_marked
        self._content = [column.name not in mark_columns for column in columns]
        self._link = link
        self._table = table
        self._columns = columns
        self._types = types
        self._keys = keys

    def key(self, columns: Columns, kept: ArchivedRow) -> list[bytes]:
        at = {column.name: index for index, column in enumerate(columns)}
        try:
            return [kept.values[at[name]] or b"" for name in self._keys]
        except KeyError as error:
            raise LayoutMismatch(
                f"a file of the archive has no column {error}, which identifies the rows of {self._table} now",
                why="So its rows cannot be found in the table.",
                remedy="Give the column the name that it had when the file was written; or start a new archive at "
                "another archive.url: rows of that file that are still in the table are then in both.",
            ) from None

    def present(self, columns: Columns, rows: Sequence[ArchivedRow]) -> int:
        page = self._page(columns, rows)
        unnested, same, arrays = self._keyed(page, page.all)
        ((count,),) = self._link.query(
            f"SELECT count(*) FROM {quote_table(self._table)} AS o, {unnested} WHERE {same}",  # noqa: S608 - quoted
            arrays,
            timeout=STATEMENT_TIMEOUT,
        )
        return int(count or 0)

    def look(self, columns: Columns, rows: Sequence[ArchivedRow], passed: Snapshot) -> PurgeResult:
        """Returns what `purge` would do, except for rows that the database would refuse to delete."""
        page = self._page(columns, rows)
        unnested, same, arrays = self._keyed(page, page.all)
        found = self._link.query(
            f"SELECT {self._shown} FROM {quote_table(self._table)} AS o, {unnested} WHERE {same}",  # noqa: S608 - quoted
            arrays,
            timeout=STATEMENT_TIMEOUT,
        )
        changed, later = self._compare(page, page.all, found, passed)
        return PurgeResult(len(found) - len(changed) - len(later), len(changed), len(later))

    def purge(
        self,
        columns: Columns,
        rows: Sequence[ArchivedRow],
        passed: Snapshot,
        on_deleted: OnDeleted = lambda _: None,
    ) -> PurgeResult:
        page = self._page(columns, rows)
        result = PurgeResult(0)
        parts = [page.all]
        while parts:
            part = parts.pop()
            if not part:
                continue
            try:
                done, left = self._attempt(page, part, passed, on_deleted)
            except SourceUnavailable:
                # A lock timeout or a deadlock fails the transaction; an unavailable server ends the session.
                if self._link.pgconn.transaction_status != TransactionStatus.INERROR:
                    raise
                self._link.query("ROLLBACK")
                result = result.plus(PurgeResult(0, locked=len(part)))
                continue
            except SourceError as error:
                if not _is_refused(error.what):
                    raise
                # The end of the failed statement has yet to be received.
                while self._link.pgconn.get_result() is not None:
                    pass
                self._link.query("ROLLBACK")
                if len(part) == 1:
                    result = result.plus(PurgeResult(0, refused=1))
                else:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                continue
            result = result.plus(done)
            parts.append(left)
        return result

    def _attempt(
        self, page: _Page, part: list[int], passed: Snapshot, on_deleted: OnDeleted
    ) -> tuple[PurgeResult, list[int]]:
        """Runs one transaction. Returns its result and the rows to try again."""
        unnested, same, arrays = self._keyed(page, part)
        # Each statement must see the current rows, with any default isolation of the server.
        self._link.query("BEGIN ISOLATION LEVEL READ COMMITTED")
        found = self._link.query(
            f"DELETE FROM {quote_table(self._table)} AS o USING {unnested} WHERE {same} RETURNING {self._shown}",  # noqa: S608 - quoted
            arrays,
            timeout=STATEMENT_TIMEOUT,
        )
        # From here on no column can be added. One that was added before and filled is in no file.
        if describe_table(self._link, self._table)[0] != self._columns:
            self._link.query("ROLLBACK")
            raise has_changed(self._table)
        changed, later = self._compare(page, part, found, passed)
        if not changed and not later:
            on_deleted([part[int(number or 0) - 1] for number, *_ in found])
            self._link.query("COMMIT")  # a deferred constraint fails only here
            return PurgeResult(len(found)), []
        self._link.query("ROLLBACK")
        stays = changed | later
        return PurgeResult(0, len(changed), len(later)), [index for index in part if index not in stays]

    def _compare(
        self, page: _Page, part: list[int], found: Iterable[tuple[str | None, ...]], passed: Snapshot
    ) -> tuple[set[int], set[int]]:
        """Returns the rows that differ from the file, and the others that the pipeline may not have passed."""
        ((before,),) = self._link.query("SELECT pg_snapshot_xmax(pg_current_snapshot())")
        changed: set[int] = set()
        later: set[int] = set()
        for number, xid, *values in found:
            index = part[int(number or 0) - 1]
            if not self._is_same(values, page.expected[index]):
                changed.add(index)
            elif not passed.contains(int(xid or 0), before=int(before or 0)) and not self._has_mark(values):
                later.add(index)
        return changed, later

    def _is_same(self, values: Sequence[str | None], expected: Sequence[str | None]) -> bool:
        return list(compress(values, self._content)) == list(compress(expected, self._content))

    def _has_mark(self, values: Sequence[str | None]) -> bool:
        if self._is_marked is None:
            return False
        texts = tuple(None if value is None else value.encode("utf-8", "surrogateescape") for value in values)
        return self._is_marked(Row(self._columns, texts, "", 0))

    @property
    def _shown(self) -> str:
        return ", ".join(["k.number", "o.xmin", *(f"o.{quote(column.name)}" for column in self._columns)])

    def _page(self, columns: Columns, rows: Sequence[ArchivedRow]) -> _Page:
        at = {column.name: index for index, column in enumerate(columns)}
        # A column that was added since must be NULL; otherwise its value is in no file.
        picked = [at.get(column.name) for column in self._columns]
        expected = [tuple(None if index is None else text(row.values[index]) for index in picked) for row in rows]
        keys = [[text(value) or "" for value in self.key(columns, row)] for row in rows]
        return _Page(keys, expected)

    def _keyed(self, page: _Page, part: list[int]) -> tuple[str, str, list[str]]:
        """Returns the keys as a table `k` numbered from 1, its join condition with the outbox `o`, and the
        parameters.
        """
        types = ", ".join(f"${number}::{self._types[name]}[]" for number, name in enumerate(self._keys, 1))
        names = ", ".join(f"k{number}" for number in range(len(self._keys)))
        same = " AND ".join(f"o.{quote(name)} = k.k{number}" for number, name in enumerate(self._keys))
        arrays = [array([page.keys[index][at] for index in part]) for at in range(len(self._keys))]
        return f"unnest({types}) WITH ORDINALITY AS k ({names}, number)", same, arrays


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")


def array(values: Sequence[str]) -> str:
    """Returns the text form of an array."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def key_columns(link: PgConnection, table: str) -> list[str]:
    found = link.query(
        "SELECT to_json(array(SELECT a.attname::text FROM unnest(i.indkey[0:i.indnkeyatts - 1]) k "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k)) FROM pg_index i "
        "WHERE i.indrelid = format('%I.%I', $1::text, $2::text)::regclass "
        "AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS "
        "(SELECT FROM unnest(i.indkey[0:i.indnkeyatts - 1]) k JOIN pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = k WHERE NOT a.attnotnull) ORDER BY i.indisprimary DESC, i.indnkeyatts LIMIT 1",
        list(split_table(table)),
    )
    if not found:
        raise LayoutMismatch(
            f"{table} has no primary key and no unique index of columns that are NOT NULL",
            why="An archived row must be identified by its key.",
            remedy="Give the table a primary key.",
        )
    return [str(name) for name in json.loads(str(found[0][0]))]


def has_changed(table: str) -> LayoutMismatch:
    """The error for columns that differ from those of the file."""
    return LayoutMismatch(f"the columns of {table} have changed meanwhile", remedy="Run it again.")
