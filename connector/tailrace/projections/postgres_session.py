"""Sessions with a projection's Postgres: how they are opened, and what their errors mean.

Settings of the user stay, but for those a projection leans on: a commit must be on disk, its reader must see what was
committed while it waited for a lock, and a worker that hangs must not hold a partition for ever.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import AccessRefused, ConfigError, StoreUnavailable, TailraceError, Unavailable
from tailrace.sources.postgres.conninfo import MALFORMED_REMEDY, MALFORMED_WHY, is_malformed
from tailrace.sqlname import quote

Session = AsyncConnection[tuple[Any, ...]]

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
        session = await AsyncConnection.connect(make_conninfo("", **settings), autocommit=True)
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


def is_away(error: BaseException) -> bool:
    """Whether it heals by trying again."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, Unavailable)
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_AWAY)
    # Without a SQLSTATE it is not the server that speaks: the connection is gone, or never came to be.
    return isinstance(error, psycopg.OperationalError)


def refusal(error: psycopg.Error) -> TailraceError:
    """What an error means when a session is opened or tables are made."""
    text = " ".join(str(error).split())
    state = error.sqlstate
    login = state is None and any(sign in text for sign in _RIGHTS_TEXT) and "the database system" not in text
    if login or (state is not None and state.startswith(_RIGHTS)):
        return AccessRefused(
            f"the projection's database: {text}",
            why="The role, its password or its rights do not allow it.",
            remedy="Check the connection string. The role needs LOGIN, CONNECT, and either CREATE on the schema or, "
            "where the tables exist already, SELECT, INSERT, UPDATE and DELETE on them.",
        )
    if is_away(error):
        return StoreUnavailable(
            f"the projection's database: {text}",
            remedy="Nothing is lost: it is tried again, from where the projection stands.",
        )
    return ConfigError(
        f"the projection's database refuses: {text} [{state}]",
        why="A statement that makes its tables is wrong, or does not fit what is there.",
        remedy="Mend what it names; `tables` is run at each start, hence CREATE TABLE IF NOT EXISTS.",
    )
