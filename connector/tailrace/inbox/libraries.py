"""What the inbox needs of each Postgres driver beyond the outbox writer's adapters: savepoints, and plain statements.

The functions are the same for the blocking and the asyncio form of a driver, whose answers are awaited.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from tailrace.errors import ConfigError
from tailrace.outbox.writer.drivers.base import Driver
from tailrace.outbox.writer.drivers.psycopg import IDLE
from tailrace.outbox.writer.requests import Answer, Handle


class Library(NamedTuple):
    """A driver or framework for Postgres."""

    savepoint: Callable[[Handle], Any]
    """Returns a context manager that releases a savepoint, or rolls back to it if its body raises."""
    execute: Callable[[Handle, str], Answer]
    """Executes a statement that has neither parameters nor an answer."""
    begins_later: Callable[[Handle], bool]
    """Whether the transaction is begun by the first statement, and there was none yet."""
    has_left: Callable[[Handle], bool]
    """Whether the body of the savepoint has ended the transaction."""
    remedy: str
    """How to be in a transaction."""


def library_of(driver: Driver) -> Library:
    return _LIBRARIES[type(driver).__module__.rpartition(".")[2]]


def own_handle(given: Handle) -> Handle:
    """Returns the session of a scoped_session, and Django's default connection for `django.db.transaction`."""
    if isinstance(given, ModuleType):
        return sys.modules["django.db"].connection
    return given() if hasattr(given, "registry") else given


def _execute_text(session: Handle, sql: str) -> Answer:
    return session.execute(sys.modules["sqlalchemy"].text(sql.replace(":", r"\:")))


def _atomic(connection: Handle) -> Answer:
    """Django opens a savepoint on the connection that the thread has for an alias, not on a connection object."""
    current = sys.modules["django.db"].connections[connection.alias]
    # The proxy `django.db.connection` always stands for the current one.
    if connection is not current and not hasattr(connection, "_connections"):
        raise ConfigError(
            f"the connection is not the one that this thread has for {connection.alias!r}",
            why="Django would open the savepoint on the thread's own connection.",
            remedy='Pass connections["…"] of this thread, or django.db.transaction.',
        )
    return sys.modules["django.db.transaction"].atomic(connection.alias)


def _execute_django(connection: Handle, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _is_idle_below(connection: Handle) -> bool:
    driver = connection.connection  # of psycopg 2 or 3; None if it is closed
    return driver is not None and driver.info.transaction_status == IDLE


def _is_idle(connection: Handle) -> bool:
    return bool(connection.pgconn.transaction_status == IDLE)


_LIBRARIES = {
    "psycopg": Library(
        lambda connection: connection.transaction(),
        lambda connection, sql: connection.execute(sql),
        _is_idle,  # transaction() would be the outermost one, and commit
        _is_idle,
        "Open the block inside `with connection.transaction():`, or connect without autocommit.",
    ),
    "asyncpg": Library(
        lambda connection: connection.transaction(),
        lambda connection, sql: connection.execute(sql),
        lambda _: False,
        lambda connection: not connection.is_closed() and not connection.is_in_transaction(),
        "Open the block inside `async with connection.transaction():`.",
    ),
    "sqlalchemy": Library(
        lambda session: session.begin_nested(),
        _execute_text,
        lambda session: not session.in_transaction(),
        lambda session: not session.in_nested_transaction(),
        "Use a session or connection without the isolation level AUTOCOMMIT; with autobegin=False, begin() first.",
    ),
    "django": Library(
        _atomic,
        _execute_django,
        lambda _: False,
        _is_idle_below,
        "Open the block inside `with transaction.atomic():`.",
    ),
}
