"""Connections to a projection's Postgres: settings, ownership, and the meaning of errors.

The user's settings stay, except those a projection relies on: a commit must be on disk, a transaction must see what was
committed while it waited for a lock, and a hanging worker must not hold a partition for ever.

A session has one holder at a time (`core/holders.py`): the code that acquired it, and the tasks it started. A task
that outlives its handler may keep the connection, and psycopg would run its statement even after the COMMIT it waited
for. So each statement is checked just before it is sent.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from tailrace.connection_causes import certificate_error
from tailrace.errors import AccessRefused, ConfigError, StoreUnavailable, TailraceError, TransactionEnded, Unavailable
from tailrace.projections.core import holders
from tailrace.projections.core.store import effects_ended
from tailrace.sources.postgres.connection_errors import (
    LOGIN_TEXTS,
    MALFORMED_REMEDY,
    MALFORMED_WHY,
    POSTGRES_TLS,
    RETRIED,
    RIGHTS,
    is_login_refused,
    is_malformed,
)
from tailrace.sql_names import quote


class Session(AsyncConnection[tuple[Any, ...]]):
    """A connection that refuses statements of others than its holder, and statements after the transaction's end."""

    _holder: object | None = None
    _is_in_transaction = False

    def acquire(self) -> None:
        """Makes the caller the holder, without the tasks that were started before."""
        before, self._holder = self._holder, object()
        holders.drop(frozenset({before}))
        holders.adopt(frozenset({self._holder}))

    def release(self) -> None:
        holders.drop(frozenset({self._holder}))
        self._holder = object()

    def require_transaction(self, required: bool) -> None:
        """Sets whether statements are refused once the open transaction has ended."""
        self._is_in_transaction = required

    @property
    def is_idle(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    async def wait(self, *given: Any, **options: Any) -> Any:  # noqa: ANN401 - psycopg's arguments
        """Checks the holder. psycopg sends everything through this method, after it has locked the connection."""
        if self._holder is not None and self._holder not in holders.current():
            raise effects_ended()
        if self._is_in_transaction and self.is_idle:
            raise transaction_ended()
        return await super().wait(*given, **options)


def transaction_ended() -> TransactionEnded:
    return TransactionEnded(
        "a handler has ended the transaction that its events are applied in",
        why="After a COMMIT or ROLLBACK by a handler, marker, effect and next offset would not be one transaction.",
        remedy="Remove it from the handler, then restart: the transaction was rolled back. SAVEPOINT, ROLLBACK TO"
        " and `connection.transaction()` are allowed.",
    )


_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    # A half-open connection looks alive: the kernel must notice it within a minute.
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Defaults that the user's connection string may override."""

_SETTINGS = """
    SELECT CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END,
           CASE current_setting('lock_timeout') WHEN '0' THEN set_config('lock_timeout', '10s', false) END,
           CASE current_setting('idle_in_transaction_session_timeout') WHEN '0'
                THEN set_config('idle_in_transaction_session_timeout', '5min', false) END
"""
_SEARCH_PATH = "SELECT set_config('search_path', %s || ', ' || current_setting('search_path'), false)"


async def connect(dsn: str, name: str, schema: str) -> Session:
    """Opens a session in autocommit mode for the projection `name`. No error shows the connection string."""
    fixed = {"application_name": f"tailrace {name}", "client_encoding": "utf8"}
    try:
        settings: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(dsn), **fixed}
        session = await Session.connect(make_conninfo("", **settings), autocommit=True)
    except psycopg.Error as error:
        if is_malformed(error):
            raise ConfigError(
                "libpq cannot parse the connection string of the projection's database",
                why=MALFORMED_WHY,
                remedy=MALFORMED_REMEDY,
            ) from None
        raise translate(error) from None
    try:
        await session.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await session.execute(_SETTINGS)
        if schema:
            await session.execute(_SEARCH_PATH, [quote(schema)])
    except BaseException as error:
        await session.close()
        if isinstance(error, psycopg.Error):
            raise translate(error) from None
        raise
    return session


def shut_down(session: Session) -> None:
    """Ends a session that another task may be waiting on.

    Closing it would free a file descriptor that the event loop still watches, and the next connection might get it.
    """
    if not session.closed:
        with socket.socket(fileno=os.dup(session.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)


_TRANSIENT = (*RETRIED, "53", "25006")  # also: no resources left, and a server that is only a standby for now
_RIGHTS = (*RIGHTS, "3D000")


def is_transient(error: BaseException) -> bool:
    """Whether a retry can succeed after this error."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, Unavailable)
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_TRANSIENT)
    # Without a SQLSTATE the error is not the server's: the connection is lost, or was never made.
    return isinstance(error, psycopg.OperationalError) and certificate_error(str(error), "", "") is None


def translate(error: psycopg.Error) -> TailraceError:
    """Translates an error that occurred while a session was opened or tables were created."""
    text = " ".join(str(error).split())
    state = error.sqlstate
    invalid = certificate_error(text, "the projection's database", POSTGRES_TLS) if state is None else None
    if invalid is not None:
        return invalid
    if is_login_refused(text, LOGIN_TEXTS) if state is None else state.startswith(_RIGHTS):
        return AccessRefused(
            f"the projection's database: {text}",
            why="The role, its password or its privileges do not allow it.",
            remedy="Check the connection string. The role needs LOGIN, CONNECT, and either CREATE on the schema or, "
            "where the tables exist already, SELECT, INSERT, UPDATE and DELETE on them.",
        )
    if is_transient(error):
        return StoreUnavailable(
            f"the projection's database: {text}",
            remedy="Tailrace retries automatically. No events are lost.",
        )
    return ConfigError(
        f"the projection's database refuses: {text} [{state}]",
        why="A statement that creates its tables is wrong, or conflicts with existing tables.",
        remedy="Fix the reported problem. `tables` is run at each start: use CREATE TABLE IF NOT EXISTS.",
    )
