"""An outbox table of Postgres, as archiving sees it.

Rows are read by the same reader as a replay from the table. One is deleted only if all of its columns are, in text
form, what the file has: `DELETE … RETURNING` shows what would go, and where that is something else, the transaction is
rolled back and done again without it. So no right is needed but DELETE, and no lock is held for longer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

from tailrace.archive.format import Kept, Shape, require_nameable
from tailrace.archive.manifest import Entry
from tailrace.archive.outbox import Candidate, Purged
from tailrace.errors import AccessRefused, ConfigError, LayoutMismatch
from tailrace.event import Column, Columns, Row
from tailrace.lsn_position import LsnPosition
from tailrace.position import Position
from tailrace.sources.postgres.again import TableAgain
from tailrace.sources.postgres.link import Link
from tailrace.sources.postgres.source import PostgresOptions
from tailrace.sqlname import quote, quote_table, split_table

PAGE_ROWS, PAGE_BYTES = 1000, 4 << 20
STATEMENT_TIMEOUT = 600.0
"""Seconds for a page to be deleted, triggers and locks included; and to count rows without an index."""
DIGEST_BYTES = 16
ANY_ENCODING = "SQL_ASCII"


class PostgresOutbox:
    """Implements `outbox.Outbox`."""

    def __init__(self, options: PostgresOptions, pipeline: str) -> None:
        if options.timestamp is None:
            raise ConfigError(
                "the outbox has no column with the time of a row, so it cannot be told which are old",
                remedy="Name the column in outbox.columns.timestamp.",
            )
        self._options = options
        self._timestamp = options.timestamp
        self._link = Link(options.conninfo, replication=False, timeout=options.link_timeout)
        # A policy that hides rows from this role must be an error: the log would have brought them.
        self._link.query("SET row_security = off")
        self._columns, self._types = self._described()
        self._keys = self._key_columns()
        require_nameable(options.table, [column.name for column in self._columns])
        binary = [column.name for column in self._columns] if self._encoding() == ANY_ENCODING else []
        self.shape = Shape(pipeline, options.table, self._columns, frozenset(binary))
        self.order_by = options.order_by

    def require_deletable(self) -> None:
        options = self._options
        ((may, standby),) = self._link.query(
            "SELECT has_table_privilege(format('%I.%I', $1::text, $2::text), 'DELETE'), pg_is_in_recovery()",
            list(split_table(options.table)),
        )
        if standby == "t":
            raise ConfigError(
                "source.postgres is a standby: no row can be deleted there",
                remedy="Archive with --keep; or with settings whose source.postgres is the primary.",
            )
        if may != "t":
            who = quote(self._link.pgconn.user.decode())
            raise AccessRefused(
                f"no DELETE on {options.table}: rows cannot leave it",
                why="A pipeline needs none, so its role has none.",
                remedy=f"GRANT DELETE ON {quote_table(options.table)} TO {who}; or archive with --keep.",
            )
        self._require_alone()
        sends = self._link.query("SELECT pubdelete FROM pg_publication WHERE pubname = $1", [options.publication])
        if options.halt_on_change and sends and sends[0][0] == "t":
            raise ConfigError(
                f"the publication {options.publication} sends deletes, and source.on_change is `halt`",
                why="The running pipeline would stop at the first row that is deleted.",
                remedy=f"ALTER PUBLICATION {quote(options.publication)} SET (publish = 'insert'); or set "
                "source.on_change: ignore; or archive with --keep.",
            )

    def candidates(self, start: Position, before_ms: int) -> Iterator[Candidate]:
        self._require_plain()
        source = TableAgain(self._options, within=(None, before_ms))
        try:
            source.open(start, lambda _: None)
            at = {column.name: index for index, column in enumerate(self._columns)}
            order = [at[name] for name in self.order_by]
            while True:
                rows, position, *_ = source.read(PAGE_ROWS, PAGE_BYTES, 0)
                for row in rows:
                    if row.columns != self._columns:
                        raise LayoutMismatch(
                            f"the columns of {self._options.table} have changed meanwhile", remedy="Run it again."
                        )
                    kept = Kept(row.values, "", row.committed_ms, row.committed_ms)
                    yield Candidate(row, kept, tuple(_text(row.values[index]) for index in order))
                if isinstance(position, LsnPosition) and position.table_read is None:
                    return
        finally:
            source.close()

    def counts(self, entries: Sequence[Entry]) -> dict[int, int]:
        entries = self._since_oldest(entries)
        if not entries:
            return {}
        spans = [(entry.number, entry.created.first_ms - 1, entry.created.last_ms + 1) for entry in entries]
        when = quote(self._timestamp)
        found = self._link.query(
            f"SELECT e.number, (SELECT count(*) FROM {quote_table(self._options.table)} "  # noqa: S608 - quoted
            f"WHERE {when} >= to_timestamp(e.since / 1000.0) AND {when} <= to_timestamp(e.until / 1000.0)) "
            "FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS e (number, since, until)",
            [_array([str(span[at]) for span in spans]) for at in range(3)],
            timeout=STATEMENT_TIMEOUT,
        )
        return {int(number or 0): int(count or 0) for number, count in found}

    def row(self, columns: Columns, kept: Kept, place: str) -> Row:
        return outbox_row(columns, kept, place)

    def name(self, columns: Columns, kept: Kept) -> bytes:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for value in self._key(columns, kept):
            digest.update(len(value).to_bytes(8, "big") + value)
        return digest.digest()

    def purge(self, columns: Columns, rows: Sequence[Kept]) -> Purged:
        at = {column.name: index for index, column in enumerate(columns)}
        # A column that was added since must be empty: otherwise there is something that no file has.
        picked = [at.get(column.name) for column in self._columns]
        expected = [tuple(None if index is None else _text(row.values[index]) for index in picked) for row in rows]
        keys = [[_text(value) for value in self._key(columns, row)] for row in rows]
        left = list(range(len(rows)))
        changed = 0
        while left:
            self._link.query("BEGIN")
            found = self._delete([keys[index] for index in left])
            came = [(left[int(number or 0) - 1], tuple(row)) for number, *row in found]
            others = {index for index, row in came if row != expected[index]}
            if not others:
                self._link.query("COMMIT")
                return Purged(len(found), changed)
            self._link.query("ROLLBACK")
            changed += len(others)
            left = [index for index in left if index not in others]
        return Purged(0, changed)

    def present(self, columns: Columns, rows: Sequence[Kept]) -> int:
        keys = [[_text(value) for value in self._key(columns, row)] for row in rows]
        unnested, same, arrays = self._keyed(keys)
        ((count,),) = self._link.query(
            f"SELECT count(*) FROM {quote_table(self._options.table)} AS o, {unnested} WHERE {same}",  # noqa: S608 - quoted
            arrays,
            timeout=STATEMENT_TIMEOUT,
        )
        return int(count or 0)

    def close(self) -> None:
        self._link.close()

    def _require_alone(self) -> None:
        """Refuses where more than the row itself would go: that is in no file."""
        found = self._link.query(
            "SELECT conrelid::regclass, conname FROM pg_constraint "
            "WHERE contype = 'f' AND confdeltype NOT IN ('a', 'r') "
            "AND confrelid = format('%I.%I', $1::text, $2::text)::regclass ORDER BY 1, 2 LIMIT 1",
            list(split_table(self._options.table)),
        )
        if found:
            raise ConfigError(
                f"rows of {found[0][0]} would be deleted or changed with those of {self._options.table}",
                why=f"The foreign key {found[0][1]} is ON DELETE CASCADE, SET NULL or SET DEFAULT, and what it changes "
                "is in no file.",
                remedy="Drop that key, or make it ON DELETE NO ACTION; or archive with --keep.",
            )

    def _require_plain(self) -> None:
        """Rows of a table that inherits from the outbox are seen in it, and no pipeline has published them."""
        found = self._link.query(
            "SELECT inhrelid::regclass FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent "
            "WHERE inhparent = format('%I.%I', $1::text, $2::text)::regclass AND relkind = 'r' LIMIT 1",
            list(split_table(self._options.table)),
        )
        if found:
            raise LayoutMismatch(
                f"{found[0][0]} inherits from {self._options.table}",
                why="Its rows are among those of the outbox, but are not published with them.",
                remedy=f"ALTER TABLE {found[0][0]} NO INHERIT {quote_table(self._options.table)}. Partitions may be.",
            )

    def _since_oldest(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those whose time the table may have something of: in most runs none, and nothing need be counted."""
        ((oldest,),) = self._link.query(
            f"SELECT floor(extract(epoch FROM min({quote(self._timestamp)})) * 1000)::bigint "  # noqa: S608 - quoted
            f"FROM {quote_table(self._options.table)}",
            timeout=STATEMENT_TIMEOUT,
        )
        return [entry for entry in entries if oldest is not None and entry.created.last_ms + 1 >= int(oldest)]

    def _delete(self, keys: list[list[str | None]]) -> list[tuple[str | None, ...]]:
        shown = ", ".join(f"o.{quote(column.name)}" for column in self._columns)
        unnested, same, arrays = self._keyed(keys)
        return self._link.query(
            f"DELETE FROM {quote_table(self._options.table)} AS o USING {unnested} "  # noqa: S608 - quoted
            f"WHERE {same} RETURNING k.number, {shown}",
            arrays,
            timeout=STATEMENT_TIMEOUT,
        )

    def _keyed(self, keys: list[list[str | None]]) -> tuple[str, str, list[str]]:
        """Keys as a table `k` that is numbered from 1, how it is joined with the outbox `o`, and its parameters."""
        types = ", ".join(f"${number}::{self._types[name]}[]" for number, name in enumerate(self._keys, 1))
        names = ", ".join(f"k{number}" for number in range(len(self._keys)))
        same = " AND ".join(f"o.{quote(name)} = k.k{number}" for number, name in enumerate(self._keys))
        arrays = [_array([key[at] or "" for key in keys]) for at in range(len(self._keys))]
        return f"unnest({types}) WITH ORDINALITY AS k ({names}, number)", same, arrays

    def _key(self, columns: Columns, kept: Kept) -> list[bytes]:
        at = {column.name: index for index, column in enumerate(columns)}
        try:
            return [kept.values[at[name]] or b"" for name in self._keys]
        except KeyError as error:
            raise LayoutMismatch(
                f"a file of the archive has no column {error}, which tells the rows of {self._options.table} apart now",
                remedy="Give the table the key that it had when the file was written.",
            ) from None

    def _described(self) -> tuple[Columns, dict[str, str]]:
        """As the log announces them."""
        found = self._link.query(
            "SELECT attname, atttypid, format_type(atttypid, -1) FROM pg_attribute "
            "WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass AND attnum > 0 AND NOT attisdropped "
            "AND attgenerated = '' ORDER BY attnum",
            list(split_table(self._options.table)),
        )
        columns = tuple(Column(str(name), int(oid or 0)) for name, oid, _ in found)
        return columns, {str(name): str(kind) for name, _, kind in found}

    def _key_columns(self) -> list[str]:
        found = self._link.query(
            "SELECT to_json(array(SELECT a.attname::text FROM unnest(i.indkey[0:i.indnkeyatts - 1]) k "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k)) FROM pg_index i "
            "WHERE i.indrelid = format('%I.%I', $1::text, $2::text)::regclass "
            "AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS "
            "(SELECT FROM unnest(i.indkey[0:i.indnkeyatts - 1]) k JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = k WHERE NOT a.attnotnull) ORDER BY i.indisprimary DESC, i.indnkeyatts LIMIT 1",
            list(split_table(self._options.table)),
        )
        if not found:
            raise LayoutMismatch(
                f"{self._options.table} has no primary key and no unique index of columns that are NOT NULL",
                why="A row that is archived must be told from every other.",
                remedy="Give the table a primary key.",
            )
        return [str(name) for name in json.loads(str(found[0][0]))]

    def _encoding(self) -> str:
        return str(self._link.query("SHOW server_encoding")[0][0])


def outbox_row(columns: Columns, kept: Kept, place: str) -> Row:
    return Row(columns, kept.values, place, kept.committed_ms)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _array(values: Sequence[str]) -> str:
    """An array's text form."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"
