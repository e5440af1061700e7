"""What retention keeps in Postgres, in tables beside the rows: confirmations, offsets, dead letters, deleted rows.

`tailrace_confirmations` and `tailrace_retention_offsets` are the schedule; `tailrace_retention_kept` lists events with
an open dead letter, because their topic deletes dead letters by age; `tailrace_purged` counts deleted rows by day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from tailrace import failpoints
from tailrace.errors import AccessRefused, SourceError, TailraceError
from tailrace.outbox.marks.sql import array, beside, literal
from tailrace.retention.confirmations import Confirmation
from tailrace.retention.state import PurgedDay
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.purged_rows import PURGED, purged_ddl
from tailrace.sql_names import quote, quote_table, split_table

CONFIRMATIONS, OFFSETS, KEPT = "tailrace_confirmations", "tailrace_retention_offsets", "tailrace_retention_kept"
DUE = "tailrace_confirmations_due"


class PostgresState:
    """Implements `RetentionState`. Its statements run in the transaction of `link`, if there is one."""

    def __init__(self, link: PgConnection, table: str, id_column: str, pipeline: str) -> None:
        self._link = link
        self._table = table
        self._pipeline = pipeline
        self.confirmations = beside(table, CONFIRMATIONS)
        self._offsets, self._kept, self._purged = (beside(table, name) for name in (OFFSETS, KEPT, PURGED))
        self._id_column = id_column
        found = link.query(
            "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = "
            "format('%I.%I', $1::text, $2::text)::regclass AND attname = $3 AND NOT attisdropped",
            [*split_table(table), id_column],
        )
        self.id_type = str(found[0][0]) if found else "text"
        self._exists = not any(statement.startswith("CREATE TABLE") for statement in self._missing())

    def ensure(self) -> None:
        """Creates missing tables and the index. Of several runs, one does; `IF NOT EXISTS` alone may fail then."""
        missing = self._missing()
        try:
            if missing:
                self._link.query("SELECT pg_advisory_lock(hashtextextended($1, 0))", [self.confirmations])
            try:
                for statement in missing:
                    self._link.query(statement)
            finally:
                if missing:
                    self._link.query("SELECT pg_advisory_unlock(hashtextextended($1, 0))", [self.confirmations])
        except TailraceError as error:
            who, schema = quote(self._link.pgconn.user.decode()), quote(split_table(self._table)[0])
            raise AccessRefused(
                f"the tables of retention cannot be created beside {self._table}: {error.what}",
                why="They record which events are confirmed and which rows were deleted.",
                remedy=f"GRANT CREATE ON SCHEMA {schema} TO {who}; or run this as another role, and grant {who} "
                f"SELECT, INSERT, UPDATE and DELETE on the tables: {'; '.join(missing)};",
            ) from None
        self._exists = True

    def _missing(self) -> list[str]:
        statements = {
            self.confirmations: f"CREATE TABLE IF NOT EXISTS {self.confirmations} (pipeline text, event_id text, "
            "confirmed_at timestamptz NOT NULL, retry_at timestamptz, PRIMARY KEY (pipeline, event_id))",
            beside(self._table, DUE): f"CREATE INDEX IF NOT EXISTS {quote(DUE)} ON {self.confirmations} "
            "(pipeline, confirmed_at, event_id)",
            self._offsets: f"CREATE TABLE IF NOT EXISTS {self._offsets} (pipeline text, topic text, partition int, "
            "next_offset bigint NOT NULL, PRIMARY KEY (pipeline, topic, partition))",
            self._kept: f"CREATE TABLE IF NOT EXISTS {self._kept} (pipeline text, event_id text, "
            "PRIMARY KEY (pipeline, event_id))",
            self._purged: purged_ddl(self._table),
        }
        found = self._link.query(
            "SELECT to_regclass(n) IS NULL FROM unnest($1::text[]) WITH ORDINALITY AS t (n, i) ORDER BY i",
            [array(statements)],
        )
        return [statement for statement, (lacks,) in zip(statements.values(), found, strict=True) if lacks == "t"]

    def offsets(self, topic: str) -> dict[int, int]:
        if not self._exists:
            return {}
        found = self._link.query(
            f"SELECT partition, next_offset FROM {self._offsets} WHERE pipeline = $1 AND topic = $2",  # noqa: S608
            [self._pipeline, topic],
        )
        return {int(partition or 0): int(offset or 0) for partition, offset in found}

    def schedule(
        self, topic: str, confirmations: Sequence[Confirmation], offsets: Mapping[int, int], *, restart: bool
    ) -> int:
        latest: dict[str, int] = {}
        texts = self.canonical([each.event_id for each in confirmations])
        for each, event_id in zip(confirmations, texts, strict=True):
            if event_id is not None:
                latest[event_id] = max(latest.get(event_id, 0), each.confirmed_ms)
        self._link.query("BEGIN ISOLATION LEVEL READ COMMITTED")
        # In order: two runs at the same time wait for each other, and never in a circle.
        self._link.query(
            f"INSERT INTO {self.confirmations} AS c (pipeline, event_id, confirmed_at) "  # noqa: S608 - quoted
            "SELECT $1, id, to_timestamp(ms / 1000.0) FROM unnest($2::text[], $3::bigint[]) AS u (id, ms) ORDER BY id "
            "ON CONFLICT (pipeline, event_id) DO UPDATE "
            "SET confirmed_at = greatest(c.confirmed_at, excluded.confirmed_at), retry_at = NULL",
            [self._pipeline, array(latest), array(map(str, latest.values()))],
        )
        self._save_offsets(topic, offsets, restart=restart)
        failpoints.reached(failpoints.RETENTION_SCHEDULED)
        self._link.query("COMMIT")
        return sum(text is not None for text in texts)

    def _save_offsets(self, topic: str, offsets: Mapping[int, int], *, restart: bool) -> None:
        further = "excluded.next_offset" if restart else "greatest(o.next_offset, excluded.next_offset)"
        numbers = sorted(offsets)
        self._link.query(
            f"INSERT INTO {self._offsets} AS o SELECT $1, $2, number, next "  # noqa: S608 - quoted
            "FROM unnest($3::int[], $4::bigint[]) AS u (number, next) ORDER BY number "
            f"ON CONFLICT (pipeline, topic, partition) DO UPDATE SET next_offset = {further}",
            [self._pipeline, topic, array(map(str, numbers)), array(str(offsets[number]) for number in numbers)],
        )

    def canonical(self, ids: Sequence[str]) -> list[str | None]:
        """Returns the ids in the text form of the column; None for those that its type cannot have."""
        if not ids:
            return []
        try:
            found = self._link.query(
                f"SELECT id::{self.id_type}::text FROM unnest($1::text[]) WITH ORDINALITY AS u (id, i) ORDER BY i",  # noqa: S608 - a type of the catalog
                [array(ids)],
            )
        except (SourceError, UnicodeEncodeError):
            if len(ids) == 1:
                return [None]
            half = len(ids) // 2
            return self.canonical(ids[:half]) + self.canonical(ids[half:])
        return [text for (text,) in found]

    def confirmed(self, ids: Sequence[str]) -> dict[str, int]:
        if not self._exists:
            return {}
        found = self._link.query(
            f"SELECT event_id, floor(extract(epoch FROM confirmed_at) * 1000)::bigint FROM {self.confirmations} "  # noqa: S608
            "WHERE pipeline = $1 AND event_id = ANY ($2::text[])",
            [self._pipeline, array(ids)],
        )
        return {str(event_id): int(at_ms or 0) for event_id, at_ms in found}

    def confirmed_condition(self, before_ms: int) -> str:
        """Returns the SQL condition of rows `o` that were confirmed at or before `before_ms`."""
        return (
            f"EXISTS (SELECT FROM {self.confirmations} c WHERE c.pipeline = {literal(self._pipeline)} "
            f"AND c.event_id::{self.id_type} = o.{quote(self._id_column)} "
            f"AND c.confirmed_at <= to_timestamp({before_ms} / 1000.0))"
        )

    def forget_unknown(self, before_ms: int) -> int:
        ((count,),) = self._link.query(
            f"WITH gone AS (DELETE FROM {self.confirmations} c WHERE c.pipeline = $1 "  # noqa: S608 - quoted
            "AND c.confirmed_at < to_timestamp($2::bigint / 1000.0) AND NOT EXISTS (SELECT FROM "
            f"{quote_table(self._table)} o WHERE o.{quote(self._id_column)} = c.event_id::{self.id_type}) RETURNING 1) "
            "SELECT count(*) FROM gone",
            [self._pipeline, str(before_ms)],
        )
        return int(count or 0)

    def kept_events(self) -> list[str]:
        if not self._exists:
            return []
        found = self._link.query(f"SELECT event_id FROM {self._kept} WHERE pipeline = $1", [self._pipeline])  # noqa: S608
        return [str(event_id) for (event_id,) in found]

    def remember(self, topic: str, opened: Iterable[str], closed: Iterable[str], offsets: Mapping[int, int]) -> None:
        self._link.query("BEGIN ISOLATION LEVEL READ COMMITTED")
        self._link.query(
            f"DELETE FROM {self._kept} WHERE pipeline = $1 AND event_id = ANY ($2::text[])",  # noqa: S608 - quoted
            [self._pipeline, array(sorted(closed))],
        )
        self._link.query(
            f"INSERT INTO {self._kept} SELECT $1, unnest($2::text[]) ON CONFLICT DO NOTHING",
            [self._pipeline, array(sorted(opened))],
        )
        self._save_offsets(topic, offsets, restart=False)
        self._link.query("COMMIT")

    def record(self, ids: Sequence[str], days: Iterable[PurgedDay]) -> None:
        """Notes deleted rows, in the transaction that deletes them."""
        self._link.query(
            f"DELETE FROM {self.confirmations} WHERE pipeline = $1 AND event_id = ANY ($2::text[])",  # noqa: S608
            [self._pipeline, array(ids)],
        )
        for day in sorted(days):
            self._link.query(
                f"INSERT INTO {self._purged} AS p VALUES ($1, $2, $3, $4::bigint, now()) "  # noqa: S608 - quoted
                "ON CONFLICT (pipeline, outbox, day) DO UPDATE "
                "SET rows = p.rows + excluded.rows, purged_at = excluded.purged_at",
                [self._pipeline, self._table, _date(day.day), str(day.rows)],
            )
        failpoints.reached(failpoints.RETENTION_DELETED)


def _date(day: int) -> str:
    return "-infinity" if day < 0 else f"{datetime.fromtimestamp(day * 86_400, UTC):%Y-%m-%d}"
