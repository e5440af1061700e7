"""asyncpg: Connection, also from a pool."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from tailrace.errors import ReceiptUnavailable
from tailrace.outbox.writer.drivers.base import Database, numbered, refuse
from tailrace.outbox.writer.requests import Answer, Handle, Query, Request


class AsyncpgDriver:
    database: ClassVar[Database] = "postgres"
    is_async: ClassVar[bool] = True

    def __init__(self, connection: Handle) -> None:
        self._connection = connection

    def require_transaction(self) -> None:
        if not self._connection.is_in_transaction():
            refuse(
                "asyncpg commits every statement outside of a transaction by itself.",
                "Add the event inside `async with connection.transaction():`.",
            )

    async def execute(self, request: Request) -> Answer:
        if type(request) is Query:
            return await self._connection.fetch(numbered(request.sql), *request.parameters)
        status = await self._connection.execute(numbered(request.sql), *request.parameters)  # type: ignore[union-attr]
        return int(status.rpartition(" ")[2])  # INSERT 0 1

    def origin(self) -> AsyncpgDriver:
        """Reads with the same connection: asyncpg does not say how it was made."""
        return self

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncpgDriver]:
        try:
            closed = self._connection.is_closed()
        except sys.modules["asyncpg"].InterfaceError:
            closed = True  # it was returned to its pool
        if closed:
            raise ReceiptUnavailable(
                "the connection of the event is closed",
                why="asyncpg's connections cannot be opened again.",
                remedy="Give another one: await receipt.wait_async(connection=…).",
            )
        yield self
