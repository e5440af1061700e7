"""A connection to Postgres, with a timeout for every wait.

It serves both kinds of session: the replication session, which uses the simple protocol and then streams, and the
control session for catalog queries. psycopg has no replication API, so its `pq` layer is used. Values are returned as
text. A connection that is silent past its timeout is closed: half-open connections look alive.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import ConfigError, SourceUnavailable
from tailrace.sources.postgres.connection_errors import MALFORMED_REMEDY, MALFORMED_WHY, is_malformed, translate_error
from tailrace.sources.postgres.encoding import server_text

APPLICATION = "tailrace"
"""The application_name of our sessions."""
CONNECT_TIMEOUT = 10
"""Seconds for a login; a server that needs longer counts as unavailable and is retried."""

PROBE_TIMEOUT = 2
"""The minimum that libpq accepts."""

_SESSION = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c bytea_output=hex -c extra_float_digits=1 -c jit=off"
)
"""Values must have the same text form in the replication session and in the table reader. JIT compilation of a catalog
query takes far longer than running it.
"""

_Rows = list[tuple[str | None, ...]]


def may_copy_cluster(conninfo: str, timeout: float) -> bool:
    """Whether this role may use physical replication: `pg_basebackup` could then copy every database."""
    extra: dict[str, str | int] = {"replication": "true", "connect_timeout": max(2, int(timeout))}
    try:
        psycopg.connect(make_conninfo(conninfo, **extra), autocommit=True).close()
    except psycopg.Error:
        return False
    return True


def server_name(conninfo: str) -> str:
    """Returns host, port and database of a connection string, which may name a service instead; no credentials."""
    try:
        given = conninfo_to_dict(conninfo)
    except psycopg.Error:
        return ""
    names = ("service", "host", "hostaddr", "port", "dbname")
    return " ".join(str(given[name]) for name in names if given.get(name))


def is_up(conninfo: str) -> bool:
    """Whether the server accepts logins now; a cheap probe without a login, used while a pipeline waits."""
    try:
        probed = make_conninfo(conninfo, connect_timeout=PROBE_TIMEOUT)
    except psycopg.Error:
        return False
    return pq.PGconn.ping(probed.encode()) == pq.Ping.OK


class PgConnection:
    """A session with Postgres, for queries or for replication."""

    def __init__(self, conninfo: str, *, replication: bool, timeout: float, application: str = APPLICATION) -> None:
        """`application` is the name of the session in pg_stat_activity."""
        self.timeout = timeout
        extra: dict[str, str | int] = {
            "connect_timeout": min(CONNECT_TIMEOUT, max(2, int(timeout))),
            "options": _SESSION,
            "client_encoding": "utf8",
            "application_name": application,
        }
        if replication:
            extra["replication"] = "database"
        try:
            # The connection object only keeps the session open: all calls go through `pgconn`.
            self._connection = psycopg.connect(make_conninfo(conninfo, **extra), autocommit=True)
        except psycopg.Error as error:
            if is_malformed(error):
                raise ConfigError(
                    "source.postgres is not a connection string that libpq understands",
                    why=MALFORMED_WHY,
                    remedy=MALFORMED_REMEDY,
                ) from None
            raise translate_error(error.sqlstate, str(error)) from None
        self.pgconn: pq.abc.PGconn = self._connection.pgconn
        encoding = (self.pgconn.parameter_status(b"server_encoding") or b"").decode()
        self.text = server_text(encoding)
        """Converts values that the server does not convert itself; None if the server sends UTF-8."""
        self.codec = self.text.codec if self.text else "utf-8"
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)
        if self.text is not None:
            self.query("SET client_encoding TO 'SQL_ASCII'")
        if self.server_version >= 140000:
            # Our sessions may wait long for events.
            self.query("SET idle_session_timeout = 0")

    def __enter__(self) -> PgConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def server_version(self) -> int:
        """The version number of Postgres: 160014 is 16.14."""
        return self.pgconn.server_version

    def parameter(self, name: str) -> str:
        """Returns the value of a connection parameter that libpq uses, defaults included."""
        return next((option.val or b"" for option in self.pgconn.info if option.keyword == name.encode()), b"").decode()

    def query(self, sql: str, parameters: Sequence[str | None] | None = None, *, timeout: float | None = None) -> _Rows:
        """Runs one statement and returns its rows as text; without parameters it uses the simple protocol."""
        try:
            if parameters is None:
                self.pgconn.send_query(self._bytes(sql))
            else:
                self.pgconn.send_query_params(
                    self._bytes(sql), [None if value is None else self._bytes(value) for value in parameters]
                )
            result = self._result(time.monotonic() + (timeout or self.timeout))
        except psycopg.Error as error:
            raise translate_error(error.sqlstate, str(error)) from None
        return [
            tuple(self._text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def begin_copy(self, sql: str) -> None:
        """Sends a command that starts a two-way copy, such as START_REPLICATION."""
        try:
            self.pgconn.send_query(self._bytes(sql))
            self._result(time.monotonic() + self.timeout, copying=True)
        except psycopg.Error as error:
            raise translate_error(error.sqlstate, str(error)) from None

    def frames(self) -> Iterator[bytes]:
        """Yields the CopyData frames that have arrived; never waits."""
        # A generator, because a call per frame would cost as much as the frame itself.
        get = self.pgconn.get_copy_data
        try:
            while True:
                size, data = get(1)
                if size == 0:
                    self.pgconn.consume_input()
                    size, data = get(1)
                if size <= 0:
                    break
                yield bytes(data)  # a copy: values are sliced from it and must outlive libpq's buffer
            if size == -1:
                # The server ended the copy: an error result follows, or the server just closes the connection.
                self._result(time.monotonic() + self.timeout)
                raise SourceUnavailable(
                    "Postgres ended the replication stream", remedy="Tailrace reconnects by itself."
                )
        except psycopg.Error as error:
            raise translate_error(error.sqlstate, str(error)) from None

    def end_copy(self, seconds: float) -> None:
        """Ends a two-way copy and waits until the server confirms it; ignores a broken connection."""
        deadline = time.monotonic() + seconds
        try:
            self.pgconn.put_copy_end(None)
            while self.pgconn.flush() == 1:
                self._wait(deadline, select.POLLIN | select.POLLOUT)
                self.pgconn.consume_input()
            while (size := self.pgconn.get_copy_data(1)[0]) != -1:
                if size == 0:
                    self._wait(deadline, select.POLLIN)
                    self.pgconn.consume_input()
        except (psycopg.Error, SourceUnavailable):
            pass  # nothing is lost: the next start sends its position itself

    def send(self, frame: bytes) -> None:
        """Sends one CopyData frame."""
        deadline = time.monotonic() + self.timeout
        try:
            self.pgconn.put_copy_data(frame)
            while self.pgconn.flush() == 1:
                self._wait(deadline, select.POLLIN | select.POLLOUT)
                self.pgconn.consume_input()
        except psycopg.Error as error:
            raise translate_error(error.sqlstate, str(error)) from None

    def _bytes(self, text: str) -> bytes:
        return text.encode(self.codec, "surrogateescape")

    def _text(self, value: bytes | None) -> str | None:
        # A database in SQL_ASCII may hold any bytes; surrogateescape keeps them.
        return None if value is None else value.decode(self.codec, "surrogateescape")

    def _result(self, deadline: float, *, copying: bool = False) -> pq.abc.PGresult:
        while self.pgconn.flush() == 1:
            self._wait(deadline, select.POLLIN | select.POLLOUT)
            self.pgconn.consume_input()
        last: pq.abc.PGresult | None = None
        while True:
            while self.pgconn.is_busy():
                self._wait(deadline, select.POLLIN)
                self.pgconn.consume_input()
            result = self.pgconn.get_result()
            if result is None:
                break
            last = result
            if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.NONFATAL_ERROR):
                state = result.error_field(pq.DiagnosticField.SQLSTATE)
                error = translate_error(
                    state.decode() if state else None, result.error_message.decode("utf-8", "replace")
                )
                self._drain(deadline)
                raise error
            if copying and result.status == pq.ExecStatus.COPY_BOTH:
                return result
        if last is None:
            raise SourceUnavailable("Postgres closed the connection", remedy="Tailrace reconnects by itself.")
        return last

    def _drain(self, deadline: float) -> None:
        """Reads what follows an error, so that the connection can be used again; it may also be closed."""
        with suppress(psycopg.Error, SourceUnavailable):
            while True:
                while self.pgconn.is_busy():
                    self._wait(deadline, select.POLLIN)
                    self.pgconn.consume_input()
                if self.pgconn.get_result() is None:
                    return

    def _wait(self, deadline: float, events: int) -> None:
        self._poll.modify(self.pgconn.socket, events)
        left = deadline - time.monotonic()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise SourceUnavailable(
                f"Postgres did not answer within {self.timeout:.0f} s",
                why="The server is overloaded, or the network path is half-open.",
                remedy="Tailrace reconnects by itself; source.link_timeout sets the limit.",
            )
