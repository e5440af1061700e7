"""Deleting archived rows from an outbox table of Postgres.

One is deleted only if all of its columns are, in text form, what the file has, and if the pipeline has passed it:
`DELETE … RETURNING` shows what would go, and where that is something else, the transaction is rolled back and done
again without it. So no right is needed but DELETE, and no lock is held for longer. What the database itself keeps from
being deleted (another table refers to it, a trigger objects) stays, alone: the rest of its page goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailrace.archive.backend import PurgeResult
from tailrace.archive.format import ArchivedRow
from tailrace.errors import LayoutMismatch, SourceError
from tailrace.event import Column, Columns
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.sql_names import quote, quote_table, split_table

STATEMENT_TIMEOUT = 600.0
"""Seconds for a page to be deleted, triggers and locks included; and to count rows without an index."""

_is_refused = re.compile(r"\[(?:23\w{3}|P0001)\]$").search
"""The SQLSTATE that ends what an error says: a constraint, or a trigger that raises."""


@dataclass(frozen=True, slots=True)
class _Page:
    """Rows of a file: their keys, and what the table must have of them."""

    keys: list[list[str]]
    expected: list[tuple[str | None, ...]]

    @property
    def all(self) -> list[int]:
        return list(range(len(self.keys)))


class PostgresPurge:
    def __init__(
        self, link: PgConnection, table: str, columns: Columns, types: dict[str, str], keys: list[str]
    ) -> None:
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
                f"a file of the archive has no column {error}, which tells the rows of {self._table} apart now",
                why="So it cannot be told which of its rows are still in the table.",
                remedy="Give the column the name that it had when the file was written; or begin a new archive at "
                "another archive.url: what is in that file and still in the table is then in both.",
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
        """What `purge` would do, but for what the database would refuse."""
        page = self._page(columns, rows)
        unnested, same, arrays = self._keyed(page, page.all)
        found = self._link.query(
            f"SELECT {self._shown} FROM {quote_table(self._table)} AS o, {unnested} WHERE {same}",  # noqa: S608 - quoted
            arrays,
            timeout=STATEMENT_TIMEOUT,
        )
        changed, later = self._judged(page, page.all, found, passed)
        return PurgeResult(len(found) - len(changed) - len(later), len(changed), len(later))

    def purge(self, columns: Columns, rows: Sequence[ArchivedRow], passed: Snapshot) -> PurgeResult:
        page = self._page(columns, rows)
        deleted = changed = later = refused = 0
        parts = [page.all]
        while parts:
            part = parts.pop()
            if not part:
                continue
            try:
                done, left = self._attempt(page, part, passed)
            except SourceError as error:
                if not _is_refused(error.what):
                    raise
                # The server's word that it has ended with this one is still to be taken.
                while self._link.pgconn.get_result() is not None:
                    pass
                self._link.query("ROLLBACK")
                if len(part) == 1:
                    refused += 1
                else:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                continue
            deleted, changed, later = deleted + done.deleted, changed + done.changed, later + done.later
            parts.append(left)
        return PurgeResult(deleted, changed, later, refused)

    def _attempt(self, page: _Page, part: list[int], passed: Snapshot) -> tuple[PurgeResult, list[int]]:
        """One transaction: what became of these rows, and which of them are to be tried again."""
        unnested, same, arrays = self._keyed(page, part)
        # Each statement must see what is there by then, whatever the server's default is.
        self._link.query("BEGIN ISOLATION LEVEL READ COMMITTED")
        found = self._link.query(
            f"DELETE FROM {quote_table(self._table)} AS o USING {unnested} WHERE {same} RETURNING {self._shown}",  # noqa: S608 - quoted
            arrays,
            timeout=STATEMENT_TIMEOUT,
        )
        # From here on nobody can add a column: one that came before, and was filled, is in no file.
        if described(self._link, self._table)[0] != self._columns:
            self._link.query("ROLLBACK")
            raise has_changed(self._table)
        changed, later = self._judged(page, part, found, passed)
        if not changed and not later:
            self._link.query("COMMIT")  # a constraint that is deferred speaks only here
            return PurgeResult(len(found)), []
        self._link.query("ROLLBACK")
        stays = changed | later
        return PurgeResult(0, len(changed), len(later)), [index for index in part if index not in stays]

    def _judged(
        self, page: _Page, part: list[int], found: Iterable[tuple[str | None, ...]], passed: Snapshot
    ) -> tuple[set[int], set[int]]:
        """Which of the rows that were found are not what the file has, and which others the pipeline may not have."""
        ((before,),) = self._link.query("SELECT pg_snapshot_xmax(pg_current_snapshot())")
        changed: set[int] = set()
        later: set[int] = set()
        for number, xid, *values in found:
            index = part[int(number or 0) - 1]
            if tuple(values) != page.expected[index]:
                changed.add(index)
            elif not passed.contains(int(xid or 0), before=int(before or 0)):
                later.add(index)
        return changed, later

    @property
    def _shown(self) -> str:
        return ", ".join(["k.number", "o.xmin", *(f"o.{quote(column.name)}" for column in self._columns)])

    def _page(self, columns: Columns, rows: Sequence[ArchivedRow]) -> _Page:
        at = {column.name: index for index, column in enumerate(columns)}
        # A column that was added since must be empty: otherwise there is something that no file has.
        picked = [at.get(column.name) for column in self._columns]
        expected = [tuple(None if index is None else text(row.values[index]) for index in picked) for row in rows]
        keys = [[text(value) or "" for value in self.key(columns, row)] for row in rows]
        return _Page(keys, expected)

    def _keyed(self, page: _Page, part: list[int]) -> tuple[str, str, list[str]]:
        """Keys as a table `k` that is numbered from 1, how it is joined with the outbox `o`, and its parameters."""
        types = ", ".join(f"${number}::{self._types[name]}[]" for number, name in enumerate(self._keys, 1))
        names = ", ".join(f"k{number}" for number in range(len(self._keys)))
        same = " AND ".join(f"o.{quote(name)} = k.k{number}" for number, name in enumerate(self._keys))
        arrays = [array([page.keys[index][at] for index in part]) for at in range(len(self._keys))]
        return f"unnest({types}) WITH ORDINALITY AS k ({names}, number)", same, arrays


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")


def array(values: Sequence[str]) -> str:
    """An array's text form."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def described(link: PgConnection, table: str) -> tuple[Columns, dict[str, str]]:
    """As the log announces them; and their types by name."""
    found = link.query(
        "SELECT attname, atttypid, format_type(atttypid, -1) FROM pg_attribute "
        "WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        list(split_table(table)),
    )
    columns = tuple(Column(str(name), int(oid or 0)) for name, oid, _ in found)
    return columns, {str(name): str(kind) for name, _, kind in found}


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
            why="A row that is archived must be told from every other.",
            remedy="Give the table a primary key.",
        )
    return [str(name) for name in json.loads(str(found[0][0]))]


def has_changed(table: str) -> LayoutMismatch:
    """To be raised where the columns are no longer those that a file was begun with."""
    return LayoutMismatch(f"the columns of {table} have changed meanwhile", remedy="Run it again.")
