"""psycopg 3: Connection and AsyncConnection."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from tailrace.outbox.writer.drivers.base import Database, numbered, refuse
from tailrace.outbox.writer.requests import Answer, Handle, Query, Request

IDLE, IN_ERROR = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR."""

_parameters: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
"""The connection parameters, which a closed connection no longer has."""


class _Psycopg:
    """The base of both adapters. The connection's own cursor and row factories do not matter."""

    database: ClassVar[Database] = "postgres"

    def __init__(self, connection: Handle) -> None:
        self._connection = connection
        psycopg = sys.modules["psycopg"]
        self._tuples = psycopg.rows.tuple_row
        self._cursor = psycopg.AsyncRawCursor if isinstance(self, AsyncPsycopgDriver) else psycopg.RawCursor

    def require_transaction(self) -> None:
        connection = self._connection
        if connection.closed:
            refuse(
                "The connection is closed.", "Add the event before the connection is closed, inside its transaction."
            )
        status = connection.pgconn.transaction_status
        if status == IDLE and connection.autocommit:
            refuse(
                "The connection is in autocommit mode, so the event would be committed without the business rows.",
                "Add it inside `with connection.transaction():`, or connect without autocommit.",
            )
        if status == IN_ERROR:
            refuse(
                "The transaction is aborted because of an earlier error.",
                "Roll back, and repeat the whole transaction.",
            )

    def _saved_parameters(self) -> dict[str, str]:
        found = _parameters.get(self._connection)
        if found is None:
            options = self._connection.pgconn.info
            found = {each.keyword.decode(): each.val.decode() for each in options if each.val}
            _parameters[self._connection] = found
        return found


class PsycopgDriver(_Psycopg):
    is_async: ClassVar[bool] = False

    def execute(self, request: Request) -> Answer:
        cursor = self._cursor(self._connection, row_factory=self._tuples)
        cursor.execute(numbered(request.sql), request.parameters)  # type: ignore[union-attr]
        if type(request) is Query:
            return cursor.fetchall()
        if cursor.rowcount < 0:  # in pipeline mode the answer has not been read
            with self._connection.pipeline():
                pass  # its end reads all answers
        return cursor.rowcount

    def origin(self) -> PsycopgReader:
        return PsycopgReader(self._saved_parameters())


class AsyncPsycopgDriver(_Psycopg):
    is_async: ClassVar[bool] = True

    async def execute(self, request: Request) -> Answer:
        cursor = self._cursor(self._connection, row_factory=self._tuples)
        await cursor.execute(numbered(request.sql), request.parameters)  # type: ignore[union-attr]
        if type(request) is Query:
            return await cursor.fetchall()
        if cursor.rowcount < 0:
            async with self._connection.pipeline():
                pass
        return cursor.rowcount

    def origin(self) -> AsyncPsycopgReader:
        return AsyncPsycopgReader(self._saved_parameters())


class PsycopgReader:
    """Opens a connection for the time of a wait: the service's own may be closed, or in use by someone else."""

    is_async = False

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters

    @contextmanager
    def open(self) -> Iterator[PsycopgDriver]:
        with sys.modules["psycopg"].connect(**self._parameters, autocommit=True) as connection:
            yield PsycopgDriver(connection)


class AsyncPsycopgReader(PsycopgReader):
    is_async = True

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncPsycopgDriver]:  # type: ignore[override]
        connect = sys.modules["psycopg"].AsyncConnection.connect
        async with await connect(**self._parameters, autocommit=True) as connection:
            yield AsyncPsycopgDriver(connection)
