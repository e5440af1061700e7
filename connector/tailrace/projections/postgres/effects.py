"""The effects object of Postgres handlers: all their writes go into the batch's transaction.

`upsert` and `delete` are deferred and executed together, with one or two statements for each table; every other call
executes them first. So a handler reads its own writes, and a batch of hundreds of events needs a few round trips.
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
from tailrace.projections.core.store import effects_ended
from tailrace.projections.postgres.table import Row, Table, look_up
from tailrace.projections.postgres.values import ColumnEncoder
from tailrace.projections.postgres.writes import Write, WriteShape, WriteStatement, plan, write_shape

Query = LiteralString | bytes | SQL | Composed
Params = Sequence[Any] | Mapping[str, Any]
RowDict = dict[str, Any]


class PostgresEffects:
    """Upserts, deletes and SQL. Unqualified table names are those of the store's schema."""

    def __init__(self, connection: AsyncConnection[Any], tables: dict[str, Table]) -> None:
        self._open: AsyncConnection[Any] | None = connection
        self._tables = tables
        self._encoder = ColumnEncoder(Transformer(connection))
        self._writes: list[Write] = []
        self._failed: Exception | None = None

    def upsert(self, table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Sets `values` in the row with `key`, or inserts that row. `key` must be the columns of a unique index.

        Other columns keep their values. For a JSON column give a dict or list, or a str that is JSON text.
        """
        if not key.keys().isdisjoint(values):
            values = _without_key(table, key, values)
        self._defer(write_shape(table, tuple(key), tuple(values)), key, tuple(values.values()))

    def delete(self, table: str, key: Mapping[str, Any]) -> None:
        """Deletes the rows with `key`, which may be any columns."""
        self._defer(write_shape(table, tuple(key), None), key, ())

    async def execute(self, sql: Query, params: Params | None = None) -> int:
        """Runs a statement; returns the number of affected rows."""
        return (await self._run(sql, params)).rowcount

    async def fetch_one(self, sql: Query, params: Params | None = None) -> RowDict | None:
        """Returns the first row as a dict, None if there is none."""
        return await (await self._run(sql, params)).fetchone()

    async def fetch_all(self, sql: Query, params: Params | None = None) -> list[RowDict]:
        """Returns all rows as dicts."""
        return await (await self._run(sql, params)).fetchall()

    async def connection(self) -> AsyncConnection[Any]:
        """Returns the psycopg connection, for COPY, savepoints and the like. Executes deferred writes first.

        A handler must not end the transaction: `commit` and `rollback` raise, and ending it by SQL stops the worker.
        """
        await self.flush()
        return self._connection

    async def flush(self) -> None:
        """Executes deferred writes; raises Rejected for values that a column will never accept."""
        if self._failed is not None:
            # A handler ignored that its writes were refused.
            raise self._failed
        while self._writes:  # a task of the handler may add more meanwhile
            writes, self._writes = self._writes, []
            try:
                await self._execute_writes(writes)
            except Exception as error:
                self._failed = error
                raise

    async def _execute_writes(self, writes: list[Write]) -> None:
        for shape in {shape: None for shape, _ in writes}:
            if shape.table not in self._tables:
                self._tables[shape.table] = await look_up(self._connection, shape.table)
            self._tables[shape.table].require(shape.names)
        statements = list(plan(writes, self._tables))
        try:
            if len(statements) == 1:
                await self._execute_statement(statements[0])
                return
            async with self._connection.pipeline():  # one round trip
                for statement in statements:
                    await self._execute_statement(statement)
        except psycopg.DataError as error:
            raise rejected(error) from None

    def end(self) -> None:
        """Refuses all calls from now on: they would belong to another transaction."""
        self._open = None

    @property
    def _connection(self) -> AsyncConnection[Any]:
        if self._open is None:
            raise effects_ended()
        return self._open

    def _defer(self, shape: WriteShape, key: Mapping[str, Any], values: Row) -> None:
        if not key:
            raise ValueError(f"a write to {shape.table} needs a key")
        row = (*key.values(), *values)
        if None in row[: len(key)]:
            name = next(name for name, value in key.items() if value is None)
            raise ValueError(f"{shape.table}.{name} is None: no row has NULL as its key")
        if self._open is None:
            raise effects_ended()
        self._writes.append((shape, row))

    async def _run(self, sql: Query, params: Params | None) -> AsyncCursor[RowDict]:
        await self.flush()
        return await self._connection.cursor(row_factory=dict_row).execute(sql, params)

    async def _execute_statement(self, statement: WriteStatement) -> None:
        shape, rows = statement
        table = self._tables[shape.table]
        columns = [
            self._encoder.column(values, table.columns[name].type)
            for name, values in zip(shape.names, zip(*rows, strict=True), strict=True)
        ]
        await self._connection.execute(table.statement(shape.key, shape.values), columns)


def _without_key(table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `values` without the columns of `key`; raises ValueError if they differ."""
    for name in key:
        if name in values and values[name] != key[name]:
            raise ValueError(f"{table}.{name} is given two values, by key and by values")
    return {name: value for name, value in values.items() if name not in key}


def rejected(error: psycopg.DataError) -> Rejected:
    """Translates a data error, for which a retry cannot help. Leaves out the detail, which quotes rows."""
    return Rejected(
        Reason.PERMANENT_FAILURE,
        f"Postgres does not accept a value: {error.diag.message_primary or error}",
        remedy="Fix the handler or the column, then publish the event again with `tailrace dlq redrive`.",
    )
