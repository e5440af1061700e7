"""SQLAlchemy 2: Session, Connection and their asyncio forms, with any Postgres driver below."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar

from tailrace.errors import ConfigError
from tailrace.outbox.writer.drivers.base import Database, numbered, percent_style, refuse
from tailrace.outbox.writer.requests import Answer, Handle, InsertRows, Query, Request


class SqlAlchemyDriver:
    """A session or connection. SQLAlchemy begins a transaction with the first statement."""

    database: ClassVar[Database] = "postgres"
    is_async: ClassVar[bool] = False

    def __init__(self, session: Handle) -> None:
        if hasattr(session, "registry"):  # a scoped_session stands for the session of this thread
            session = session()
        self._session = session
        self._connection: Handle = None

    def require_transaction(self) -> None:
        """Is done before the INSERT: only the connection knows, and a session has none yet."""

    def execute(self, request: Request) -> Answer:
        connection = self._connection
        if connection is None:
            session = self._session
            if hasattr(session, "connection") and hasattr(session, "flush"):
                _require_begun(session)
                connection = session.connection()
            else:
                connection = session
            _require_postgres(connection)
            self._connection = connection
        if type(request) is InsertRows:
            _require_transaction(connection)
        result = connection.exec_driver_sql(_driver_sql(connection, request.sql), tuple(request.parameters))  # type: ignore[union-attr]
        return result.all() if type(request) is Query else result.rowcount

    def origin(self) -> SqlAlchemyReader:
        return SqlAlchemyReader(self._connection.engine)


class AsyncSqlAlchemyDriver:
    database: ClassVar[Database] = "postgres"
    is_async: ClassVar[bool] = True

    def __init__(self, session: Handle) -> None:
        if hasattr(session, "registry"):
            session = session()
        self._session = session
        self._connection: Handle = None

    def require_transaction(self) -> None:
        """Is done before the INSERT: only the connection knows, and a session has none yet."""

    async def execute(self, request: Request) -> Answer:
        connection = self._connection
        if connection is None:
            session = self._session
            if hasattr(session, "flush"):
                _require_begun(session.sync_session)
                connection = await session.connection()
            else:
                connection = session
            _require_postgres(connection)
            self._connection = connection
        if type(request) is InsertRows:
            _require_transaction(connection.sync_connection)
        result = await connection.exec_driver_sql(_driver_sql(connection, request.sql), tuple(request.parameters))  # type: ignore[union-attr]
        return result.all() if type(request) is Query else result.rowcount

    def origin(self) -> AsyncSqlAlchemyReader:
        return AsyncSqlAlchemyReader(self._connection.engine)


class SqlAlchemyReader:
    """Reads with a connection of the service's own engine, which has a pool. Each query sees what is committed then."""

    is_async = False

    def __init__(self, engine: Handle) -> None:
        self._engine = engine

    @contextmanager
    def open(self) -> Iterator[SqlAlchemyDriver]:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield SqlAlchemyDriver(connection)


class AsyncSqlAlchemyReader(SqlAlchemyReader):
    is_async = True

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncSqlAlchemyDriver]:  # type: ignore[override]
        async with self._engine.connect() as connection:
            yield AsyncSqlAlchemyDriver(await connection.execution_options(isolation_level="AUTOCOMMIT"))


def _require_begun(session: Handle) -> None:
    """Raises NotInTransaction if the session neither has a transaction nor begins one by itself."""
    if not session.autobegin and not session.in_transaction():
        refuse("The session was made with autobegin=False, and has not begun.", "Call session.begin() first.")


def _require_postgres(connection: Handle) -> None:
    if connection.dialect.name != "postgresql":
        raise ConfigError(
            f"the session's database is {connection.dialect.name}",
            why="The writer needs Postgres.",
            remedy="Pass a session or connection of the Postgres database.",
        )


def _require_transaction(connection: Handle) -> None:
    if connection.connection.dbapi_connection.autocommit:
        refuse(
            "The connection has the isolation level AUTOCOMMIT, so the event would be committed without the business "
            "rows.",
            "Use an engine or connection without AUTOCOMMIT for the transaction.",
        )


def _driver_sql(connection: Handle, sql: str) -> str:
    """Returns the SQL in the style of the driver below; text() would be translated to it for every call."""
    style = connection.dialect.paramstyle
    return numbered(sql) if style == "numeric_dollar" else percent_style(sql)
