"""Every driver that the outbox writer supports, behind one interface, so that each test runs with all of them.

A `work` is called with the driver's connection or session inside a transaction; it may return an awaitable.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import django
import django.conf
import django.db
import django.db.transaction
import psycopg
import sqlalchemy
from pymongo import AsyncMongoClient, MongoClient
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

Work = Callable[[Any], Any]
_lock = threading.Lock()
_users: list[int] = []


class RollBack(Exception):
    """Leaves a transaction or savepoint so that it is rolled back."""


async def resolved(value: Any) -> Any:
    """Returns the value, or what it yields when awaited."""
    return await value if inspect.isawaitable(value) and not hasattr(value, "wait_async") else value


async def rolled_back(context: AbstractAsyncContextManager[Any], work: Work) -> Any:
    """Does the work in a transaction or savepoint, and rolls that back; returns what the work returned."""
    try:
        async with context as handle:
            result = await resolved(work(handle))
            raise RollBack
    except RollBack:
        return result


class PostgresClient:
    """A service with one driver. `transaction` commits at its end, and rolls back if its body raises."""

    is_async = False

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.parts = psycopg.conninfo.conninfo_to_dict(dsn)

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    @asynccontextmanager
    async def savepoint(self, handle: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        """A connection on which every statement is committed by itself."""
        raise NotImplementedError
        yield

    async def sql(self, handle: Any, statement: str) -> None:
        raise NotImplementedError

    async def close(self) -> None: ...

    @property
    def url_parts(self) -> dict[str, Any]:
        names = {"host": "host", "port": "port", "username": "user", "password": "password", "database": "dbname"}
        return {ours: self.parts.get(theirs) for ours, theirs in names.items()}


class Psycopg(PostgresClient):
    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        with psycopg.connect(self.dsn) as connection:
            if isolation:
                connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            yield connection

    @asynccontextmanager
    async def savepoint(self, handle: Any) -> AsyncIterator[Any]:
        with handle.transaction():
            yield handle

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            yield connection

    async def sql(self, handle: Any, statement: str) -> None:
        handle.execute(statement)


class AsyncPsycopg(PostgresClient):
    is_async = True

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            if isolation:
                await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            yield connection

    @asynccontextmanager
    async def savepoint(self, handle: Any) -> AsyncIterator[Any]:
        async with handle.transaction():
            yield handle

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            yield connection

    async def sql(self, handle: Any, statement: str) -> None:
        await handle.execute(statement)


class Asyncpg(PostgresClient):
    is_async = True

    async def connect(self) -> Any:
        given = self.parts
        return await asyncpg.connect(
            host=given["host"], port=given.get("port"), user=given["user"], database=given["dbname"],
            password=given.get("password"),
        )  # fmt: skip

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        connection = await self.connect()
        try:
            async with connection.transaction(isolation=isolation.lower() if isolation else None):
                yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def savepoint(self, handle: Any) -> AsyncIterator[Any]:
        async with handle.transaction():
            yield handle

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        connection = await self.connect()
        try:
            yield connection
        finally:
            await connection.close()

    async def sql(self, handle: Any, statement: str) -> None:
        await handle.execute(statement)


class SqlAlchemySession(PostgresClient):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.engine = sqlalchemy.create_engine(sqlalchemy.URL.create("postgresql+psycopg", **self.url_parts))

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        options = {"isolation_level": isolation} if isolation else {}
        with Session(self.engine.execution_options(**options)) as session, session.begin():
            yield session

    @asynccontextmanager
    async def savepoint(self, handle: Any) -> AsyncIterator[Any]:
        with handle.begin_nested():
            yield handle

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        with Session(self.engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            yield session

    async def sql(self, handle: Any, statement: str) -> None:
        handle.execute(sqlalchemy.text(statement))

    async def close(self) -> None:
        self.engine.dispose()


class SqlAlchemyConnection(SqlAlchemySession):
    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        options = {"isolation_level": isolation} if isolation else {}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        with self.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            yield connection


class AsyncSqlAlchemySession(PostgresClient):
    is_async = True
    driver = "postgresql+asyncpg"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.engine = create_async_engine(
            sqlalchemy.URL.create(self.driver, **self.url_parts), poolclass=sqlalchemy.NullPool
        )

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        engine = self.engine.execution_options(isolation_level=isolation) if isolation else self.engine
        async with AsyncSession(engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def savepoint(self, handle: Any) -> AsyncIterator[Any]:
        async with handle.begin_nested():
            yield handle

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            yield session

    async def sql(self, handle: Any, statement: str) -> None:
        await handle.execute(sqlalchemy.text(statement))

    async def close(self) -> None:
        await self.engine.dispose()


class AsyncSqlAlchemyConnection(AsyncSqlAlchemySession):
    driver = "postgresql+psycopg"

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        engine = self.engine.execution_options(isolation_level=isolation) if isolation else self.engine
        async with engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        async with self.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            yield connection


class Django(PostgresClient):
    """The database `outbox` of Django's settings, which every test points to its own."""

    ALIAS = "outbox"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        given = self.url_parts
        settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": given["database"], "HOST": given["host"], "PORT": given["port"], "USER": given["username"],
            "PASSWORD": given["password"] or "",
        }  # fmt: skip
        if not django.conf.settings.configured:
            django.conf.settings.configure(DATABASES={"default": {}, self.ALIAS: {}})
            django.setup()  # Django warns about queries before it
        self.connections = django.db.connections
        # The connection is made by thread and alias; this one belongs to this test.
        self.connections.databases[self.ALIAS] = self.connections.configure_settings({"default": {}, "x": settings})[
            "x"
        ]
        self.connections[self.ALIAS] = self.connections.create_connection(self.ALIAS)
        self.connection = self.connections[self.ALIAS]

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Any]:
        with _allowed(), django.db.transaction.atomic(self.ALIAS):
            if isolation:
                await self.sql(self.connection, f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            yield self.connection

    @asynccontextmanager
    async def savepoint(self, handle: Any) -> AsyncIterator[Any]:
        with django.db.transaction.atomic(self.ALIAS):
            yield handle

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        with _allowed():
            yield self.connection

    async def sql(self, handle: Any, statement: str) -> None:
        with handle.cursor() as cursor:
            cursor.execute(statement)

    async def close(self) -> None:
        with _allowed():
            self.connection.close()


@contextmanager
def _allowed() -> Iterator[None]:
    """Lets Django's blocking connection be used in the coroutine of a test, also by several threads at once."""
    with _lock:
        _users.append(threading.get_ident())
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        yield
    finally:
        with _lock:
            _users.remove(threading.get_ident())
            if not _users:
                del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


POSTGRES_CLIENTS = [
    Psycopg,
    AsyncPsycopg,
    Asyncpg,
    SqlAlchemySession,
    SqlAlchemyConnection,
    AsyncSqlAlchemySession,
    AsyncSqlAlchemyConnection,
    Django,
]


class Pymongo:
    """A service with pymongo, blocking."""

    is_async = False

    def __init__(self, uri: str) -> None:
        self.client: Any = MongoClient(uri)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.client.start_session() as session, session.start_transaction():
            yield session

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        with self.client.start_session() as session:
            yield session

    async def with_transaction(self, session: Any, work: Work) -> Any:
        return session.with_transaction(work)

    async def close(self) -> None:
        self.client.close()


class AsyncPymongo(Pymongo):
    is_async = True

    def __init__(self, uri: str) -> None:
        self.client = AsyncMongoClient(uri)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.client.start_session() as session, await session.start_transaction():
            yield session

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        async with self.client.start_session() as session:
            yield session

    async def with_transaction(self, session: Any, work: Work) -> Any:
        async def callback(session: Any) -> Any:
            return await resolved(work(session))

        return await session.with_transaction(callback)

    async def close(self) -> None:
        await self.client.close()


MONGO_CLIENTS = [Pymongo, AsyncPymongo]
