"""Drops whole partitions of an outbox table that is partitioned by time, if every row of them may be deleted.

The rows are judged without a lock. Then the partition is locked against writes, and dropped only if it still has
exactly the row versions that were judged, by their places and transactions. Other partitions can be written meanwhile;
only the last moment needs the parent table, and gives up after a short time if that is in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.pq import TransactionStatus

from tailrace.archive.postgres_purge import STATEMENT_TIMEOUT
from tailrace.errors import ConfigError, SourceError, SourceUnavailable
from tailrace.retention.postgres_state import PostgresState
from tailrace.retention.state import by_day
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sql_names import quote_table, split_table


@dataclass(frozen=True, slots=True)
class OldPartition:
    """A partition whose time has passed. `name` is quoted; `until_ms` is its upper bound."""

    oid: str
    name: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class RowVersions:
    """How many rows a partition has, and a digest of their places and transactions."""

    rows: int
    digest: str


class OutboxPartitions:
    def __init__(self, link: PgConnection, options: PostgresOptions, state: PostgresState) -> None:
        self._link = link
        self._options = options
        self._state = state

    def require_droppable(self) -> None:
        """Raises ConfigError unless the table is partitioned by ranges of its time column."""
        found = self._link.query(
            "SELECT a.attname FROM pg_partitioned_table t JOIN pg_attribute a ON a.attrelid = t.partrelid "
            "AND a.attnum = t.partattrs[0] WHERE t.partstrat = 'r' AND t.partnatts = 1 "
            "AND t.partrelid = format('%I.%I', $1::text, $2::text)::regclass",
            list(split_table(self._options.table)),
        )
        if not found or found[0][0] != self._options.timestamp:
            raise ConfigError(
                f"{self._options.table} is not partitioned by ranges of {self._options.timestamp}",
                why="`retention.partitions: drop` drops partitions whose time has passed.",
                remedy="Set retention.partitions: delete; or create the table with `tailrace outbox ddl --by-day`.",
            )

    def old(self, before_ms: int) -> list[OldPartition]:
        """Returns the partitions without rows of `before_ms` or later, oldest first. A default partition never is."""
        found = self._link.query(
            "SELECT oid, name, floor(extract(epoch FROM until) * 1000)::bigint FROM ("
            "SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name, "
            "substring(pg_get_expr(c.relpartbound, c.oid) FROM $3)::timestamptz AS until "
            "FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE i.inhparent = format('%I.%I', $1::text, $2::text)::regclass AND c.relkind = 'r') p "
            "WHERE isfinite(until) AND until <= to_timestamp($4::bigint / 1000.0) ORDER BY until",
            [*split_table(self._options.table), r" TO \('([^']+)'\)$", str(before_ms)],
        )
        return [OldPartition(str(oid), str(name), int(until or 0)) for oid, name, until in found]

    def versions(self, partition: OldPartition) -> RowVersions:
        ((rows, digest),) = self._link.query(
            "SELECT count(*), coalesce(sum(hashtextextended(ctid::text || ' ' || xmin::text, 0)), 0) "  # noqa: S608
            f"FROM ONLY {partition.name}",
            timeout=STATEMENT_TIMEOUT,
        )
        return RowVersions(int(rows or 0), str(digest))

    def drop(self, partition: OldPartition, judged: RowVersions, ids: Sequence[str], created_ms: Sequence[int]) -> bool:
        """Drops it, and records that in the same transaction; returns False if it was changed or is in use."""
        link = self._link
        link.query("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            link.query(f"LOCK TABLE ONLY {partition.name} IN SHARE MODE")
            if self.versions(partition) != judged:
                link.query("ROLLBACK")
                return False
            link.query(f"DROP TABLE {partition.name}")
            self._state.record(ids, by_day(created_ms))
            link.query("COMMIT")
        except SourceUnavailable:
            if link.pgconn.transaction_status != TransactionStatus.INERROR:
                raise
            link.query("ROLLBACK")
            return False
        except SourceError as error:
            link.query("ROLLBACK")
            raise SourceError(
                f"the partition {partition.name} cannot be dropped: {error.what}",
                why="Dropping needs the owner of the table, and nothing may depend on the partition.",
                remedy=f"Run retention as the owner of {quote_table(self._options.table)}, or set "
                "retention.partitions: delete.",
            ) from None
        return True
