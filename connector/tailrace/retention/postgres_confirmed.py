"""A table of Postgres whose rows are deleted after their confirmation, for `ConfirmedRetention`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tailrace.outbox.marks.sql import array
from tailrace.retention.confirmations import Confirmation
from tailrace.retention.confirmed import DeletedBatch
from tailrace.retention.postgres_state import PostgresState
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import quote, quote_table

TIMEOUT = 600.0


class PostgresConfirmedStore:
    """Implements `ConfirmedStore`. `name` separates the schedules of several tables of one schema.

    After an error it connects again with the next call.
    """

    def __init__(self, conninfo: str, table: str, id_column: str, *, name: str = "retention") -> None:
        self._conninfo = conninfo
        self._table = table
        self._id_column = id_column
        self._name = name
        self._session: tuple[PgConnection, PostgresState] | None = None
        with self._connected():
            pass

    def close(self) -> None:
        if self._session is not None:
            self._session[0].close()
            self._session = None

    def offsets(self, topic: str) -> dict[int, int]:
        with self._connected() as (_, state):
            return state.offsets(topic)

    def schedule(
        self, topic: str, confirmations: Sequence[Confirmation], offsets: Mapping[int, int], *, restart: bool
    ) -> int:
        with self._connected() as (_, state):
            return state.schedule(topic, confirmations, offsets, restart=restart)

    def due(self, confirmed_ms: int, now_ms: int, limit: int) -> list[str]:
        with self._connected() as (link, state):
            found = link.query(
                f"SELECT event_id FROM {state.confirmations} WHERE pipeline = $1 "  # noqa: S608 - quoted
                "AND confirmed_at <= to_timestamp($2::bigint / 1000.0) "
                "AND (retry_at IS NULL OR retry_at <= to_timestamp($3::bigint / 1000.0)) "
                "ORDER BY confirmed_at, event_id LIMIT $4::bigint",
                [self._name, str(confirmed_ms), str(now_ms), str(limit)],
            )
        return [str(event_id) for (event_id,) in found]

    def delete(self, ids: Sequence[str], *, retry_ms: int, forget_ms: int) -> DeletedBatch:
        with self._connected() as (link, state):
            link.query("BEGIN ISOLATION LEVEL READ COMMITTED")
            column = quote(self._id_column)
            found = link.query(
                f"DELETE FROM {quote_table(self._table)} AS o USING unnest($1::text[]) AS u (id) "  # noqa: S608 - quoted
                f"WHERE o.{column} = u.id::{state.id_type} RETURNING o.{column}::text",
                [array(ids)],
            )
            deleted = {str(event_id) for (event_id,) in found}
            unknown = [event_id for event_id in ids if event_id not in deleted]
            ((forgotten,),) = link.query(
                f"WITH gone AS (DELETE FROM {state.confirmations} WHERE pipeline = $1 "  # noqa: S608 - quoted
                "AND event_id = ANY ($2::text[]) AND confirmed_at < to_timestamp($3::bigint / 1000.0) RETURNING 1) "
                "SELECT count(*) FROM gone",
                [self._name, array(unknown), str(forget_ms)],
            )
            link.query(
                f"UPDATE {state.confirmations} SET retry_at = to_timestamp($3::bigint / 1000.0) "  # noqa: S608 - quoted
                "WHERE pipeline = $1 AND event_id = ANY ($2::text[])",
                [self._name, array(unknown), str(retry_ms)],
            )
            state.record(sorted(deleted), [])
            link.query("COMMIT")
        return DeletedBatch(len(found), len(unknown) - int(forgotten or 0), int(forgotten or 0))

    @contextmanager
    def _connected(self) -> Iterator[tuple[PgConnection, PostgresState]]:
        """Connects if needed; an error ends the session, and with it an open transaction."""
        if self._session is None:
            link = PgConnection(self._conninfo, replication=False, timeout=TIMEOUT)
            state = PostgresState(link, self._table, self._id_column, self._name)
            self._session = link, state
            state.ensure()
        try:
            yield self._session
        except BaseException:
            self.close()
            raise
