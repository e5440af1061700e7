"""The Postgres store: a projection's tables and the kit's own tables, changed in one transaction.

All projections of a schema share the kit's tables, separated by the column `projection`: `tailrace_offsets`,
`tailrace_markers`, `tailrace_entities`, `tailrace_waiting`, `tailrace_horizon`.

Each transaction has its own session, so there are as many sessions as partitions at work. After a transient error the
session and all idle ones are closed, since the same problem has probably hit all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import psycopg
from psycopg.pq import TransactionStatus

from tailrace.errors import ConfigError
from tailrace.projections.core.store import CatchUp, Partition
from tailrace.projections.postgres import session as postgres_session
from tailrace.projections.postgres.ddl import prepare
from tailrace.projections.postgres.effects import PostgresEffects
from tailrace.projections.postgres.session import Session, connect, shut_down, transaction_ended, translate
from tailrace.projections.postgres.swap import NEXT, swap_schemas
from tailrace.projections.postgres.table import Table
from tailrace.projections.postgres.transaction import PostgresTransaction, horizon_of, stored_offsets
from tailrace.projections.postgres.values import array, numbers

_RESET = """
    INSERT INTO tailrace_offsets AS known (projection, topic, partition, next_offset)
    SELECT %s, u.* FROM unnest(%s::text[], %s::integer[], %s::bigint[]) AS u
    ON CONFLICT (projection, topic, partition) DO UPDATE SET next_offset = EXCLUDED.next_offset, updated_at = now()
    WHERE NOT %s OR known.next_offset IS NULL
"""
# A marker that is locked by a transaction is left for the next time.
_PRUNE = """
    WITH raised AS (
        INSERT INTO tailrace_horizon AS known (projection, horizon_ms) VALUES (%(name)s, %(before)s)
        ON CONFLICT (projection) DO UPDATE SET horizon_ms = greatest(known.horizon_ms, EXCLUDED.horizon_ms)
    )
    DELETE FROM tailrace_markers WHERE projection = %(name)s AND event_id = ANY(ARRAY(
        SELECT event_id FROM tailrace_markers
        WHERE projection = %(name)s AND time_ms < %(before)s AND outcome NOT IN ('dead', 'waiting')
        ORDER BY time_ms LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ))
"""


class PostgresStore:
    """Keeps a projection in Postgres. `dsn` is a libpq connection string.

    `schema` is created if missing, and comes first in the search path. `tables` is the projection's own DDL, run at
    each start: use CREATE TABLE IF NOT EXISTS.
    """

    def __init__(self, dsn: str, *, schema: str = "", tables: str = "") -> None:
        self._dsn = dsn
        self._schema = schema
        self._ddl = tables
        self._name: str | None = None
        self._idle: list[Session] = []
        self._busy: set[Session] = set()
        self._tables: dict[str, Table] = {}

    @property
    def address(self) -> tuple[str, str]:
        """The connection string and the schema."""
        return self._dsn, self._schema

    async def open(self, name: str) -> None:
        session = await connect(self._dsn, name, self._schema)
        try:
            await prepare(session, self._schema, self._ddl)
        except BaseException as error:
            await session.close()
            if isinstance(error, psycopg.Error):
                raise translate(error) from None
            raise
        self._name = name
        self._tables.clear()
        self._idle.append(session)

    async def close(self) -> None:
        self._name = None
        busy, self._busy = self._busy, set()
        for session in busy:
            shut_down(session)
        await self._close_idle()

    @asynccontextmanager
    async def transaction(self, partition: Partition) -> AsyncIterator[PostgresTransaction]:
        async with self._session() as session:
            effects = PostgresEffects(session, self._tables)
            is_complete = False
            async with session.transaction():
                session.require_transaction(True)
                try:
                    transaction = PostgresTransaction(session, self._opened, partition, effects, self._schema)
                    yield transaction
                    await effects.flush()
                    effects.end()
                    # No other task may come between the last statement, which removes the commit guard, and the commit.
                    session.acquire()
                    _require_healthy(session)
                    await transaction.finish()
                    is_complete = True
                except BaseException as error:
                    session.acquire()
                    if session.is_idle:
                        raise transaction_ended() from error
                    raise
                finally:
                    effects.end()
                    session.require_transaction(False)
            if not is_complete:
                # psycopg.Rollback ends the `with` body silently; the caller must not assume a commit.
                raise RuntimeError("a handler rolled the whole transaction back")

    async def positions(self) -> dict[Partition, int]:
        async with self._session() as session:
            return await stored_offsets(session, self._opened)

    async def furthest(self) -> dict[Partition, int]:
        async with self._session() as session:
            return await stored_offsets(session, self._opened, column="furthest")

    async def reset(self, offsets: Mapping[Partition, int | None], *, only_missing: bool = False) -> None:
        partitions = sorted(offsets)
        columns = [
            array([each.topic for each in partitions]),
            numbers([each.number for each in partitions]),
            numbers([offsets[each] for each in partitions]),
        ]
        async with self._session() as session:
            await session.execute(_RESET, [self._opened, *columns, only_missing])

    async def horizon(self) -> int:
        async with self._session() as session:
            return await horizon_of(session, self._opened)

    async def prune(self, before_ms: int, limit: int) -> int:
        async with self._session() as session:
            given = {"name": self._opened, "before": before_ms, "limit": limit}
            return (await session.execute(_PRUNE, given)).rowcount

    def is_transient(self, error: BaseException) -> bool:
        return postgres_session.is_transient(error)

    def another(self) -> PostgresStore:
        """Returns a store of the same schema, for another projection."""
        return PostgresStore(self._dsn, schema=self._schema, tables=self._ddl)

    def shadow(self) -> PostgresStore:
        """Returns the store of the shadow copy, in its own schema."""
        if not self._schema:
            raise ConfigError(
                "a projection can be rebuilt only if it has its own schema",
                remedy="Give its PostgresStore a `schema`, and move its tables into it.",
            )
        return PostgresStore(self._dsn, schema=self._schema + NEXT, tables=self._ddl)

    async def swap(self, name: str, catch_up: CatchUp) -> bool:
        """Swaps the shadow copy in, if it has caught up."""
        session = await connect(self._dsn, name, "")
        try:
            return await swap_schemas(session, self._schema, name, catch_up)
        finally:
            await session.close()

    @property
    def _opened(self) -> str:
        if self._name is None:
            raise RuntimeError("the store is not open")
        return self._name

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        session = await self._take()
        session.acquire()
        try:
            yield session
        except BaseException as error:
            # A changed table may be the cause: look the tables up again.
            self._tables = {}
            if self.is_transient(error):
                await session.close()
                await self._close_idle()
            raise
        finally:
            session.release()
            await self._put_back(session)

    async def _take(self) -> Session:
        while self._idle:
            session = self._idle.pop()
            if not session.closed:
                break
            await session.close()
        else:
            session = await connect(self._dsn, self._opened, self._schema)
        self._busy.add(session)
        return session

    async def _put_back(self, session: Session) -> None:
        # `close` has shut down the sessions that are no longer in `_busy`.
        ours = session in self._busy and self._name is not None
        self._busy.discard(session)
        if ours and session.is_idle:
            self._idle.append(session)
        else:
            await session.close()

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


def _require_healthy(session: Session) -> None:
    """Raises if a handler ignored an error: Postgres would answer COMMIT with a rollback, without an error."""
    if session.is_idle:
        raise transaction_ended()
    if session.info.transaction_status == TransactionStatus.INERROR:
        raise psycopg.errors.InFailedSqlTransaction(
            "a handler ignored an error of Postgres, which ends the transaction"
        )
