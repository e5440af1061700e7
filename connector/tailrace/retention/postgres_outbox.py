"""Deletes rows of an outbox table of Postgres, with the record of that in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.archive.backend import Candidate, PurgeResult
from tailrace.archive.postgres_outbox import PostgresArchiveOutbox, passed_snapshot
from tailrace.archive.postgres_purge import STATEMENT_TIMEOUT
from tailrace.positions.base import Position
from tailrace.retention.outbox import OutboxTotals
from tailrace.retention.partitions import OutboxPartitions
from tailrace.retention.postgres_state import PostgresState
from tailrace.retention.state import by_day
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sql_names import quote, quote_table

LOCK_TIMEOUT = "2s"
"""A row that another transaction has locked stays until the next run; writers never wait for longer."""


LONG_SECONDS = 5
"""Age of an open transaction that is reported."""


class PostgresRetentionOutbox(PostgresArchiveOutbox):
    """Implements `RetentionOutbox`."""

    INSTEAD = "run retention elsewhere"

    def __init__(self, options: PostgresOptions, pipeline: str) -> None:
        super().__init__(options, pipeline)
        self._link.query(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
        self.state = PostgresState(self._link, options.table, options.id_column, pipeline)
        self.partitions = OutboxPartitions(self._link, options, self.state)

    def hints(self) -> list[str]:
        """Returns the oldest open transaction: of rows written since then it is not known whether they are passed."""
        found = self._link.query(
            "SELECT to_char(since, 'YYYY-MM-DD HH24:MI:SS UTC'), who FROM ("
            "SELECT xact_start AS since, format('pid %s (%s)', pid, application_name) AS who FROM pg_stat_activity "
            "WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() UNION ALL "
            "SELECT prepared, format('prepared transaction %s', gid) FROM pg_prepared_xacts) t "
            "WHERE since < now() - interval '1 second' * $1::int ORDER BY since LIMIT 1",
            [str(LONG_SECONDS)],
        )
        return [
            f"a transaction is open since {since}, {who}: rows written since then count as not published"
            for since, who in found
        ]

    def totals(self, before_ms: int | None) -> OutboxTotals:
        when = quote(self._timestamp) if self._timestamp else "NULL::timestamptz"
        young = f"{when} >= to_timestamp({before_ms} / 1000.0) OR {when} IS NULL" if before_ms is not None else "false"
        ((rows, younger),) = self._link.query(
            f"SELECT count(*), count(*) FILTER (WHERE {young}) FROM {quote_table(self._options.table)}",  # noqa: S608
            timeout=STATEMENT_TIMEOUT,
        )
        return OutboxTotals(int(rows or 0), int(younger or 0))

    def eligible(
        self, start: Position, before_ms: int | None, confirmed_ms: int | None = None, partition: str = ""
    ) -> Iterator[Candidate]:
        only = [] if confirmed_ms is None else [self.state.confirmed_condition(confirmed_ms)]
        only += [f"o.tableoid = {partition}::oid"] if partition else []
        return self.candidates(start, before_ms, " AND ".join(only))

    def delete(self, batch: Sequence[Candidate], ids: Sequence[str], start: Position) -> PurgeResult:
        def record(deleted: Sequence[int]) -> None:
            self.state.record([ids[at] for at in deleted], by_day(batch[at].kept.created_ms for at in deleted))

        rows = [candidate.kept for candidate in batch]
        return self._purge.purge(self.shape.columns, rows, passed_snapshot(start), record)

    def _time_column(self) -> str:
        return self._options.timestamp or ""
