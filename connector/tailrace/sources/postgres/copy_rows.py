"""Reads all rows of a table with COPY: several times faster than a cursor, but in no order.

Values have the same text form as in the stream: COPY only escapes a few bytes. Every wait has a timeout.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Iterator

import psycopg
from psycopg import pq

from tailrace.errors import SourceError, SourceUnavailable
from tailrace.sources.postgres.connection import PgConnection

NULL = b"\\N"
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_escape = re.compile(rb"\\(.)", re.DOTALL)

Fields = tuple[bytes | None, ...]


class CopyConnection(PgConnection):
    """A connection that can also run COPY (query) TO STDOUT."""

    def copied(self, query: str) -> Iterator[Fields]:
        """Yields the rows of `query` with all fields in text form. The query must be valid."""
        try:
            self.pgconn.send_query(self._bytes(f"COPY ({query}) TO STDOUT"))
            self._begin()
            get = self.pgconn.get_copy_data
            while (answer := get(1))[0] != -1:
                size, data = answer
                if size:
                    yield fields(bytes(data))
                else:
                    self._more()
            self._result(time.monotonic() + self.timeout)
        except psycopg.Error as error:
            raise SourceUnavailable(
                " ".join(str(error).split()) or "Postgres closed the connection",
                remedy="Run it again when Postgres is back.",
            ) from None

    def _begin(self) -> None:
        deadline = time.monotonic() + self.timeout
        while self.pgconn.flush() == 1:
            self._wait(deadline, select.POLLIN | select.POLLOUT)
            self.pgconn.consume_input()
        while self.pgconn.is_busy():
            self._more()
        result = self.pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            answer = result.error_message.decode("utf-8", "replace") if result else "no answer"
            raise SourceError(f"the table cannot be copied: {' '.join(answer.split())}", remedy="See the server's log.")

    def _more(self) -> None:
        self._wait(time.monotonic() + self.timeout, select.POLLIN)
        self.pgconn.consume_input()


def fields(line: bytes) -> Fields:
    """Parses one line of COPY's text form."""
    parts = line.rstrip(b"\n").split(b"\t")
    if b"\\" not in line:
        return tuple(parts)
    return tuple([part if b"\\" not in part else _value(part) for part in parts])


def _value(part: bytes) -> bytes | None:
    return None if part == NULL else _escape.sub(_unescaped, part)


def _unescaped(found: re.Match[bytes]) -> bytes:
    return _ESCAPED.get(found[1], found[1])
