"""What handlers write with in Postgres: everything goes into the block's transaction.

`upsert` and `delete` are put off and carried out together, by a statement or two for each table; whatever reads or
writes at once has them carried out first. So a handler reads its own writes, and a block of hundreds of events costs a
handful of journeys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.adapt import Transformer
from psycopg.rows import dict_row
from psycopg.sql import SQL, Composed

from tailrace.errors import Reason, Rejected
from tailrace.projections.postgres.session import effects_ended
from tailrace.projections.postgres.table import Table, look_up
from tailrace.projections.postgres.values import Texts
from tailrace.projections.postgres.writes import Write, WriteStatement, plan

Query = LiteralString | bytes | SQL | Composed
Params = Sequence[Any] | Mapping[str, Any]
Found = dict[str, Any]


class PostgresEffects:
    """Writes to tables by name, and SQL. Unqualified names are those of the store's schema."""

    def __init__(self, connection: AsyncConnection[Any], tables: dict[str, Table]) -> None:
        self._open: AsyncConnection[Any] | None = connection
        self._tables = tables
        self._texts = Texts(Transformer(connection))
        self._writes: list[Write] = []
        self._failed: Exception | None = None

    def upsert(self, table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Sets `values` in the row that has `key`, which is made if there is none. `key` is that of a unique index.

        Columns that are not named keep what they have. In a JSON column a dict or list is what it says, a str is JSON.
        """
        twice = [name for name in key if name in values and values[name] != key[name]]
        if twice:
            raise ValueError(f"{table}.{twice[0]} is given two values, by key and by values")
        self._put_off(Write(table, dict(key), dict(values)))

    def delete(self, table: str, key: Mapping[str, Any]) -> None:
        """Deletes the rows that have `key`, which may be any columns."""
        self._put_off(Write(table, dict(key), None))

    async def execute(self, sql: Query, params: Params | None = None) -> int:
        """Runs a statement; how many rows it was about."""
        return (await self._run(sql, params)).rowcount

    async def fetch_one(self, sql: Query, params: Params | None = None) -> Found | None:
        """The first row by column name, None if there is none."""
        return await (await self._run(sql, params)).fetchone()

    async def fetch_all(self, sql: Query, params: Params | None = None) -> list[Found]:
        """All rows by column name."""
        return await (await self._run(sql, params)).fetchall()

    async def connection(self) -> AsyncConnection[Any]:
        """psycopg's own, for all else (COPY, savepoints): what was put off until now is carried out.

        The transaction stays the kit's: `commit` and `rollback` raise, and whoever ends it by SQL stops the worker.
        """
        await self.flush()
        return self._connection

    async def flush(self) -> None:
        """Carries out what was put off; Rejected for values that a column will never take."""
        if self._failed is not None:
            # A handler went on after its writes were refused: they must not be forgotten.
            raise self._failed
        while self._writes:  # a task of the handler's may ask for more meanwhile
            writes, self._writes = self._writes, []
            try:
                await self._carry_all_out(writes)
            except Exception as error:
                self._failed = error
                raise

    async def _carry_all_out(self, writes: list[Write]) -> None:
        for write in writes:
            if write.table not in self._tables:
                self._tables[write.table] = await look_up(self._connection, write.table)
            self._tables[write.table].require((*write.key, *(write.values or ())))
        steps = list(plan(writes, self._tables))
        try:
            if len(steps) == 1:
                await self._carry_out(steps[0])
                return
            async with self._connection.pipeline():  # one journey for all of them
                for step in steps:
                    await self._carry_out(step)
        except psycopg.DataError as error:
            raise refused(error) from None

    def end(self) -> None:
        """The transaction is over: what comes from now on would belong to another."""
        self._open = None

    @property
    def _connection(self) -> AsyncConnection[Any]:
        if self._open is None:
            raise effects_ended()
        return self._open

    def _put_off(self, write: Write) -> None:
        if not write.key:
            raise ValueError(f"a write to {write.table} needs a key")
        for name, value in write.key.items():
            if value is None:
                raise ValueError(f"{write.table}.{name} is None: no row has that as its key")
        if self._open is None:
            raise effects_ended()
        self._writes.append(write)

    async def _run(self, sql: Query, params: Params | None) -> AsyncCursor[Found]:
        await self.flush()
        return await self._connection.cursor(row_factory=dict_row).execute(sql, params)

    async def _carry_out(self, step: WriteStatement) -> None:
        table = self._tables[step.table]
        names = (*step.key, *(step.values or ()))
        columns = [
            self._texts.column([row[at] for row in step.rows], table.columns[name].type)
            for at, name in enumerate(names)
        ]
        await self._connection.execute(table.statement(step.key, step.values).encode(), columns)


def refused(error: psycopg.DataError) -> Rejected:
    """Trying again would not help. The message goes without its detail, which quotes rows."""
    return Rejected(
        Reason.PERMANENT_FAILURE,
        f"Postgres does not take a value: {error.diag.message_primary or error}",
        remedy="Mend the handler or the column, then put it back with `tailrace dlq redrive`.",
    )
