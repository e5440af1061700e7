"""The interface of an adapter, and which adapter belongs to a connection or session.

An adapter is found by the names of an object's classes, so that no driver is imported here. It has no thread, opens no
connection for `execute`, and never commits.
"""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import ClassVar, Literal, NoReturn, Protocol

from tailrace.errors import ConfigError, NotInTransaction
from tailrace.outbox.writer.requests import PARAMETER, Answer, Handle, Request

Database = Literal["postgres", "mongo"]


class Driver(Protocol):
    """Executes requests on one connection or session."""

    database: ClassVar[Database]
    is_async: ClassVar[bool]

    def __init__(self, connection: Handle) -> None: ...

    def require_transaction(self) -> None:
        """Raises NotInTransaction unless the connection is in a transaction, or begins one with its next statement.

        An adapter that cannot know before it executes something may do so in `execute`, before it writes.
        """

    def execute(self, request: Request) -> Answer:
        """Executes a request inside the caller's transaction. An asyncio adapter returns an awaitable."""

    def origin(self) -> Reader:
        """Returns what is needed to read later, after the connection was closed or returned to its pool."""


class Reader(Protocol):
    """Opens a connection to read with after the commit. Blocking or asyncio, as its driver is."""

    is_async: bool

    def open(self) -> AbstractContextManager[Driver] | AbstractAsyncContextManager[Driver]: ...


_ADAPTERS = {
    ("psycopg", "Connection"): ("psycopg", "PsycopgDriver"),
    ("psycopg", "AsyncConnection"): ("psycopg", "AsyncPsycopgDriver"),
    ("sqlalchemy", "Connection"): ("sqlalchemy", "SqlAlchemyDriver"),
    ("sqlalchemy", "Session"): ("sqlalchemy", "SqlAlchemyDriver"),
    ("sqlalchemy", "scoped_session"): ("sqlalchemy", "SqlAlchemyDriver"),
    ("sqlalchemy", "AsyncConnection"): ("sqlalchemy", "AsyncSqlAlchemyDriver"),
    ("sqlalchemy", "AsyncSession"): ("sqlalchemy", "AsyncSqlAlchemyDriver"),
    ("sqlalchemy", "async_scoped_session"): ("sqlalchemy", "AsyncSqlAlchemyDriver"),
    ("django", "ConnectionProxy"): ("django", "DjangoDriver"),
    ("django", "BaseDatabaseWrapper"): ("django", "DjangoDriver"),
    ("asyncpg", "Connection"): ("asyncpg", "AsyncpgDriver"),
    ("asyncpg", "PoolConnectionProxy"): ("asyncpg", "AsyncpgDriver"),
    ("pymongo", "ClientSession"): ("pymongo", "PymongoDriver"),
    ("pymongo", "AsyncClientSession"): ("pymongo", "AsyncPymongoDriver"),
}


_known: dict[type, type[Driver]] = {}
"""The adapters of the classes seen so far."""


def driver_for(connection: Handle) -> Driver:
    """Returns the adapter of a connection, session, or of the module `django.db.transaction`."""
    adapter = _known.get(type(connection))
    if adapter is None:
        if isinstance(connection, ModuleType) and connection.__name__ == "django.db.transaction":
            connection = sys.modules["django.db"].connection
        kind = type(connection)
        adapter = _known[kind] = _adapter(kind)
    return adapter(connection)


def _adapter(kind: type) -> type[Driver]:
    for base in kind.__mro__:
        found = _ADAPTERS.get((base.__module__.partition(".")[0], base.__name__))
        if found is not None:
            adapter: type[Driver] = getattr(import_module(f"tailrace.outbox.writer.drivers.{found[0]}"), found[1])
            return adapter
    raise ConfigError(
        f"{kind.__module__}.{kind.__qualname__} is not a connection or session that the writer knows",
        why="It takes connections of psycopg and asyncpg, sessions and connections of SQLAlchemy, Django's connection, "
        "and sessions of pymongo.",
        remedy="Pass the object that the transaction was begun on, such as pymongo's session instead of its client.",
    )


def refuse(why: str, remedy: str) -> NoReturn:
    """Raises NotInTransaction."""
    raise NotInTransaction("the event was not added: there is no transaction", why=why, remedy=remedy)


@lru_cache(maxsize=256)
def numbered(sql: str) -> str:
    """Returns SQL with the placeholders $1, $2, …"""
    first, *rest = sql.split(PARAMETER)
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))


@lru_cache(maxsize=256)
def percent_style(sql: str) -> str:
    """Returns SQL with the placeholder %s."""
    return sql.replace("%", "%%").replace(PARAMETER, "%s")
