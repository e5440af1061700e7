"""A table of Postgres whose rows are deleted after their confirmation, for `ConfirmedRetention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg.pq import TransactionStatus

from tailrace.errors import TailraceError
from tailrace.outbox.marks.sql import array
from tailrace.retention.confirmations import Confirmation
from tailrace.retention.confirmed import DeletedBatch
from tailrace.retention.postgres_state import PostgresState
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import quote, quote_table

TIMEOUT = 600.0


class PostgresConfirmedStore:
    """Implements `ConfirmedStore`. `name` separates the schedules of several tables of one schema."""

    def __init__(self, conninfo: str, table: str, id_column: str, *, name: str = "retention") -> None:
        self._link = PgConnection(conninfo, replication=False, timeout=TIMEOUT)
        self._table = quote_table(table)
        self._id = quote(id_column)
        self._name = name
        self._state = PostgresState(self._link, table, id_column, name)
        self._state.ensure()

    def close(self) -> None:
        self._link.close()

    def offsets(self, topic: str) -> dict[int, int]:
        return self._state.offsets(topic)

    def schedule(
        self, topic: str, confirmations: Sequence[Confirmation], offsets: Mapping[int, int], *, restart: bool
    ) -> int:
        return self._state.schedule(topic, confirmations, offsets, restart=restart)

    def due(self, confirmed_ms: int, now_ms: int, limit: int) -> list[str]:
        found = self._link.query(
            f"SELECT event_id FROM {self._state.confirmations} WHERE pipeline = $1 "  # noqa: S608 - quoted
            "AND confirmed_at <= to_timestamp($2::bigint / 1000.0) "
            "AND (retry_at IS NULL OR retry_at <= to_timestamp($3::bigint / 1000.0)) "
            "ORDER BY confirmed_at, event_id LIMIT $4::bigint",
            [self._name, str(confirmed_ms), str(now_ms), str(limit)],
        )
        return [str(event_id) for (event_id,) in found]

    def delete(self, ids: Sequence[str], *, retry_ms: int, forget_ms: int) -> DeletedBatch:
        link, kind = self._link, self._state.id_type
        link.query("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            found = link.query(
                f"DELETE FROM {self._table} AS o USING unnest($1::text[]) AS u (id) "  # noqa: S608 - quoted
                f"WHERE o.{self._id} = u.id::{kind} RETURNING o.{self._id}::text",
                [array(ids)],
            )
            deleted = {str(event_id) for (event_id,) in found}
            unknown = [event_id for event_id in ids if event_id not in deleted]
            ((forgotten,),) = link.query(
                f"WITH gone AS (DELETE FROM {self._state.confirmations} WHERE pipeline = $1 "  # noqa: S608 - quoted
                "AND event_id = ANY ($2::text[]) AND confirmed_at < to_timestamp($3::bigint / 1000.0) RETURNING 1) "
                "SELECT count(*) FROM gone",
                [self._name, array(unknown), str(forget_ms)],
            )
            link.query(
                f"UPDATE {self._state.confirmations} SET retry_at = to_timestamp($3::bigint / 1000.0) "  # noqa: S608
                "WHERE pipeline = $1 AND event_id = ANY ($2::text[])",
                [self._name, array(unknown), str(retry_ms)],
            )
            self._state.record(sorted(deleted), [])
            link.query("COMMIT")
        except TailraceError:
            if link.pgconn.transaction_status == TransactionStatus.INERROR:
                link.query("ROLLBACK")
            raise
        return DeletedBatch(len(found), len(unknown) - int(forgotten or 0), int(forgotten or 0))
