"""Archives an outbox table of Postgres.

Rows are read by the same reader as a replay from the table; `postgres_purge` deletes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from tailrace.archive.backend import Candidate, PurgeResult
from tailrace.archive.format import ArchivedRow, FileSchema, require_nameable
from tailrace.archive.manifest import ManifestEntry
from tailrace.archive.postgres_purge import (
    STATEMENT_TIMEOUT,
    PostgresPurge,
    array,
    has_changed,
    key_columns,
    text,
)
from tailrace.errors import AccessRefused, ConfigError, LayoutMismatch
from tailrace.event import UNREADABLE, Columns, Row, with_text_checked
from tailrace.positions.base import Position, other_kind
from tailrace.positions.postgres import LsnPosition
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.publication import rows_move
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.sources.postgres.table_rescan import TableRescan
from tailrace.sql_names import quote, quote_table, split_table
from tailrace.verify.postgres_outbox import describe_table

PAGE_ROWS, PAGE_BYTES = 1000, 4 << 20
DIGEST_BYTES = 16


class PostgresArchiveOutbox:
    """Implements `ArchiveOutbox`."""

    INSTEAD = "archive with --keep"
    """What else can be done where rows cannot be deleted."""

    def __init__(self, options: PostgresOptions, pipeline: str) -> None:
        self._options = options
        self._timestamp = self._time_column()
        self._link = options.connect()
        # A policy that hides rows from this role must be an error, since the log contains them.
        self._link.query("SET row_security = off")
        self._columns, types = describe_table(self._link, options.table)
        keys = key_columns(self._link, options.table)
        self._purge = PostgresPurge(
            self._link,
            options.table,
            self._columns,
            types,
            keys,
            is_marked=options.is_marked,
            mark_columns=options.mark_columns,
        )
        require_nameable(options.table, [column.name for column in self._columns])
        # Text that is not valid in the database's encoding is stored as bytes.
        binary = [column.name for column in self._columns] if self._link.text is not None else []
        self.shape = FileSchema(pipeline, options.table, self._columns, frozenset(binary))
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
                remedy=f"Use settings whose source.postgres is the primary; or {self.INSTEAD}.",
            )
        if may != "t":
            who = quote(self._link.pgconn.user.decode())
            raise AccessRefused(
                f"no DELETE privilege on {options.table}: rows cannot be deleted",
                why="A pipeline does not need it, so its role does not have it.",
                remedy=f"GRANT DELETE ON {quote_table(options.table)} TO {who}; or {self.INSTEAD}.",
            )
        self._require_alone()
        sends = self._link.query("SELECT pubdelete FROM pg_publication WHERE pubname = $1", [options.publication])
        if options.halt_on_change and sends and sends[0][0] == "t" and not rows_move(self._link, options):
            raise ConfigError(
                f"the publication {options.publication} sends deletes, and source.on_change is `halt`",
                why="The running pipeline would stop at the first row that is deleted.",
                remedy=f"ALTER PUBLICATION {quote(options.publication)} SET (publish = 'insert'); or set "
                f"source.on_change: ignore; or {self.INSTEAD}.",
            )

    def candidates(self, start: Position, before_ms: int | None, only: str = "") -> Iterator[Candidate]:
        """`only` is a condition on the table `o`."""
        self._require_plain()
        source = TableRescan(self._options, within=(None, before_ms), only=only)
        try:
            source.open(start, lambda _: None)
            at = {column.name: index for index, column in enumerate(self._columns)}
            order = [at[name] for name in self.order_by]
            while True:
                rows, position, *_ = source.read(PAGE_ROWS, PAGE_BYTES, 0)
                for row in rows:
                    if row.columns == UNREADABLE:
                        continue  # too large to be sent: it stays in the table
                    if row.columns != self._columns:
                        raise has_changed(self._options.table)
                    kept = ArchivedRow(row.values, "", row.committed_ms, row.committed_ms)
                    yield Candidate(row, kept, tuple(text(row.values[index]) for index in order))
                if isinstance(position, LsnPosition) and position.table_read is None:
                    return
        finally:
            source.close()

    def counts(self, entries: Sequence[ManifestEntry]) -> dict[int, int]:
        entries = self._since_oldest(entries)
        if not entries:
            return {}
        spans = [(entry.number, entry.created.first_ms - 1, entry.created.last_ms + 1) for entry in entries]
        when = quote(self._timestamp)
        found = self._link.query(
            f"SELECT e.number, (SELECT count(*) FROM {quote_table(self._options.table)} "  # noqa: S608 - quoted
            f"WHERE {when} >= to_timestamp(e.since / 1000.0) AND {when} <= to_timestamp(e.until / 1000.0)) "
            "FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS e (number, since, until)",
            [array([str(span[at]) for span in spans]) for at in range(3)],
            timeout=STATEMENT_TIMEOUT,
        )
        return {int(number or 0): int(count or 0) for number, count in found}

    def row(self, columns: Columns, kept: ArchivedRow, position: str) -> Row:
        return outbox_row(columns, kept, position)

    def name(self, columns: Columns, kept: ArchivedRow) -> bytes:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for value in self._purge.key(columns, kept):
            digest.update(len(value).to_bytes(8, "big") + value)
        return digest.digest()

    def present(self, columns: Columns, rows: Sequence[ArchivedRow]) -> int:
        return self._purge.present(columns, rows)

    def look(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        return self._purge.look(columns, rows, passed_snapshot(start))

    def purge(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        return self._purge.purge(columns, rows, passed_snapshot(start))

    def close(self) -> None:
        self._link.close()

    def _time_column(self) -> str:
        if self._options.timestamp is None:
            raise ConfigError(
                "the outbox has no column with the time of a row, so old rows cannot be found",
                remedy="Name the column in outbox.columns.timestamp.",
            )
        return self._options.timestamp

    def _require_alone(self) -> None:
        """Refuses foreign keys that would delete or change other rows, because those are in no file."""
        found = self._link.query(
            "SELECT conrelid::regclass, conname FROM pg_constraint "
            "WHERE contype = 'f' AND confdeltype NOT IN ('a', 'r') "
            "AND confrelid = format('%I.%I', $1::text, $2::text)::regclass ORDER BY 1, 2 LIMIT 1",
            list(split_table(self._options.table)),
        )
        if found:
            raise ConfigError(
                f"rows of {found[0][0]} would be deleted or changed with those of {self._options.table}",
                why=f"The foreign key {found[0][1]} is ON DELETE CASCADE, SET NULL or SET DEFAULT. What it changes is "
                "in no file.",
                remedy="Drop that key; or make it ON DELETE NO ACTION, which keeps rows that others refer to; or "
                f"{self.INSTEAD}.",
            )

    def _require_plain(self) -> None:
        """Refuses tables that inherit from the outbox: their rows are visible in it, but are not published."""
        found = self._link.query(
            "SELECT inhrelid::regclass FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent "
            "WHERE inhparent = format('%I.%I', $1::text, $2::text)::regclass AND relkind = 'r' LIMIT 1",
            list(split_table(self._options.table)),
        )
        if found:
            raise LayoutMismatch(
                f"{found[0][0]} inherits from {self._options.table}",
                why="Its rows are visible in the outbox, but are not published with it.",
                remedy=f"ALTER TABLE {found[0][0]} NO INHERIT {quote_table(self._options.table)}. Partitions may be.",
            )

    def _since_oldest(self, entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        """Returns entries whose time range the table may still have rows of; in most runs none."""
        ((oldest,),) = self._link.query(
            f"SELECT floor(extract(epoch FROM min({quote(self._timestamp)})) * 1000)::bigint "  # noqa: S608 - quoted
            f"FROM {quote_table(self._options.table)} WHERE isfinite({quote(self._timestamp)})",
            timeout=STATEMENT_TIMEOUT,
        )
        return [entry for entry in entries if oldest is not None and entry.created.last_ms + 1 >= int(oldest)]


def outbox_row(columns: Columns, kept: ArchivedRow, position: str) -> Row:
    return Row(with_text_checked(columns, kept.values, "UTF8"), kept.values, position, kept.committed_ms)


def passed_snapshot(start: Position) -> Snapshot:
    """Returns the snapshot of the rows that the pipeline has passed."""
    if not isinstance(start, LsnPosition):
        raise other_kind(start, "Postgres")
    assert start.table_read is not None  # noqa: S101 - it says which rows
    return Snapshot.parse(start.table_read.snapshot)
