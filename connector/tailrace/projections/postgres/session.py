"""Sessions with a projection's Postgres: how they are opened, and what their errors mean.

Settings of the user stay, but for those a projection leans on: a commit must be on disk, its reader must see what was
committed while it waited for a lock, and a worker that hangs must not hold a partition for ever.

A session belongs to one holder at a time: the code that took it, and the tasks started from there. A task that outlives
the handler that started it may keep the connection, and psycopg lets it have its turn even behind the COMMIT it waited
for; so each statement is checked when its turn has come.
"""

from __future__ import annotations

import os
import socket
from contextvars import ContextVar
from typing import Any

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from tailrace.connection_causes import certificate_error
from tailrace.errors import AccessRefused, ConfigError, StoreUnavailable, TailraceError, TransactionEnded, Unavailable
from tailrace.sources.postgres.connection_errors import MALFORMED_REMEDY, MALFORMED_WHY, POSTGRES_TLS, is_malformed
from tailrace.sql_names import quote

_HELD: ContextVar[frozenset[object]] = ContextVar("held", default=frozenset())
"""What the running code holds; a task that it starts holds the same."""


class Session(AsyncConnection[tuple[Any, ...]]):
    """A connection that refuses statements of anybody but its holder, and in a transaction those behind its end."""

    _holder: object | None = None
    _is_in_transaction = False

    def hold(self) -> None:
        """Who calls it is the holder from now on, without the tasks that were started before."""
        before, self._holder = self._holder, object()
        _HELD.set(_HELD.get() - {before} | {self._holder})

    def let_go(self) -> None:
        _HELD.set(_HELD.get() - {self._holder})
        self._holder = object()

    def require_transaction(self, required: bool) -> None:
        """Whether statements are refused once the transaction that is open now has ended."""
        self._is_in_transaction = required

    @property
    def is_idle(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    async def wait(self, *given: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever psycopg gives
        """All that psycopg says to the server goes through here, when it has the connection for itself."""
        if self._holder is not None and self._holder not in _HELD.get():
            raise effects_ended()
        if self._is_in_transaction and self.is_idle:
            raise transaction_ended()
        return await super().wait(*given, **options)


def effects_ended() -> RuntimeError:
    return RuntimeError("the transaction of these effects has ended: a handler must not keep them")


def transaction_ended() -> TransactionEnded:
    return TransactionEnded(
        "a handler has ended the transaction that its events are applied in",
        why="After a COMMIT or ROLLBACK of its own, marker, effect and next offset would not be one transaction.",
        remedy="Remove it from the handler, then start again: the transaction was rolled back. SAVEPOINT, ROLLBACK TO"
        " and blocks of `connection.transaction()` are allowed.",
    )


_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    # A half-open connection looks alive: the kernel is to find out, within a minute.
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""What holds unless the user's connection string says otherwise."""

_SETTINGS = """
    SELECT CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END,
           CASE current_setting('lock_timeout') WHEN '0' THEN set_config('lock_timeout', '10s', false) END,
           CASE current_setting('idle_in_transaction_session_timeout') WHEN '0'
                THEN set_config('idle_in_transaction_session_timeout', '5min', false) END
"""
_SEARCH_PATH = "SELECT set_config('search_path', %s || ', ' || current_setting('search_path'), false)"


async def connect(dsn: str, name: str, schema: str) -> Session:
    """A session in autocommit mode for the projection `name`; our own errors, none of which shows the dsn."""
    fixed = {"application_name": f"tailrace {name}", "client_encoding": "utf8"}
    try:
        settings: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(dsn), **fixed}
        session = await Session.connect(make_conninfo("", **settings), autocommit=True)
    except psycopg.Error as error:
        if is_malformed(error):
            raise ConfigError(
                "the connection string of the projection's database is not one that libpq understands",
                why=MALFORMED_WHY,
                remedy=MALFORMED_REMEDY,
            ) from None
        raise refusal(error) from None
    try:
        await session.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await session.execute(_SETTINGS)
        if schema:
            await session.execute(_SEARCH_PATH, [quote(schema)])
    except BaseException as error:
        await session.close()
        if isinstance(error, psycopg.Error):
            raise refusal(error) from None
        raise
    return session


def hang_up(session: Session) -> None:
    """Ends a session that another task may be waiting on.

    To close it would free a file number that the event loop still watches, and that the next connection may be given.
    """
    if not session.closed:
        with socket.socket(fileno=os.dup(session.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)


# SQLSTATEs, or their beginnings, that heal by trying again: connections, resources, shutdowns, conflicts, timeouts of
# locks and idle sessions, and a server that is only a standby for now.
_AWAY = ("08", "53", "57P01", "57P02", "57P03", "57P05", "40001", "40P01", "55P03", "25P03", "25P04", "25006")
_RIGHTS = ("28", "42501", "3D000")
# A login fails before there is a result to ask for its SQLSTATE, so its text is all there is.
_RIGHTS_TEXT = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist", "permission denied")


def is_transient(error: BaseException) -> bool:
    """Whether it heals by trying again."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, Unavailable)
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_AWAY)
    # Without a SQLSTATE it is not the server that speaks: the connection is gone, or never came to be.
    return isinstance(error, psycopg.OperationalError) and certificate_error(str(error), "", "") is None


def refusal(error: psycopg.Error) -> TailraceError:
    """What an error means when a session is opened or tables are made."""
    text = " ".join(str(error).split())
    state = error.sqlstate
    invalid = certificate_error(text, "the projection's database", POSTGRES_TLS) if state is None else None
    if invalid is not None:
        return invalid
    login = state is None and any(sign in text for sign in _RIGHTS_TEXT) and "the database system" not in text
    if login or (state is not None and state.startswith(_RIGHTS)):
        return AccessRefused(
            f"the projection's database: {text}",
            why="The role, its password or its rights do not allow it.",
            remedy="Check the connection string. The role needs LOGIN, CONNECT, and either CREATE on the schema or, "
            "where the tables exist already, SELECT, INSERT, UPDATE and DELETE on them.",
        )
    if is_transient(error):
        return StoreUnavailable(
            f"the projection's database: {text}",
            remedy="Nothing is lost: it is tried again, from where the projection stands.",
        )
    return ConfigError(
        f"the projection's database refuses: {text} [{state}]",
        why="A statement that makes its tables is wrong, or does not fit what is there.",
        remedy="Mend what it names; `tables` is run at each start, hence CREATE TABLE IF NOT EXISTS.",
    )
