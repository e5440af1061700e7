"""Django: the current transaction of a connection (`django.db.connection`, `connections["shop"]`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from tailrace.errors import ConfigError
from tailrace.outbox.writer.drivers.base import Database, percent_style, refuse
from tailrace.outbox.writer.requests import Answer, Handle, Query, Request


class DjangoDriver:
    database: ClassVar[Database] = "postgres"
    is_async: ClassVar[bool] = False

    def __init__(self, connection: Handle) -> None:
        if connection.vendor != "postgresql":
            raise ConfigError(
                f"the database {connection.alias!r} is {connection.vendor}",
                why="The writer needs Postgres.",
                remedy='Pass the connection of the Postgres database: connections["…"].',
            )
        self._connection = connection

    def require_transaction(self) -> None:
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            refuse(
                "Django commits every statement outside of atomic() by itself.",
                "Add the event inside `with transaction.atomic():`.",
            )

    def execute(self, request: Request) -> Answer:
        with self._connection.cursor() as cursor:
            cursor.execute(percent_style(request.sql), request.parameters)  # type: ignore[union-attr]
            return cursor.fetchall() if type(request) is Query else cursor.rowcount

    def origin(self) -> DjangoReader:
        return DjangoReader(self._connection.alias)


class DjangoReader:
    """Reads with the connection that the thread has for this database at the time of the wait."""

    is_async = False

    def __init__(self, alias: str) -> None:
        self._alias = alias

    @contextmanager
    def open(self) -> Iterator[DjangoDriver]:
        yield DjangoDriver(sys.modules["django.db"].connections[self._alias])
