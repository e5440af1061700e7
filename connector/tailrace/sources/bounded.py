"""The base of sources that are read once, from a start to an end: tables, collections and archives.

A pipeline's loop runs over them as over a log. Behind the last row they return their end as the position; once that is
stored, the caller is done.
"""

from __future__ import annotations

import select
from typing import Protocol

from tailrace import failpoints
from tailrace.event import Chunk, Row
from tailrace.positions.base import Position
from tailrace.wakeup import Wakeup

REST_SECONDS = 0.2
"""The longest wait in a `read` behind the end."""


class PageReader(Protocol):
    """Reads the rows of a table or of collections page by page."""

    def read(self, limit: int, limit_bytes: int) -> tuple[list[Row], Position | None]:
        """Returns the next rows and the position behind them; the position is None when everything is read."""

    def close(self) -> None: ...


def read_page(reader: PageReader, limit: int, limit_bytes: int) -> Chunk | None:
    """Returns the next page as a chunk; None when everything is read."""
    rows, position = reader.read(limit, limit_bytes)
    if rows:
        failpoints.reached(failpoints.TABLE_ROWS_READ)
    return None if position is None else Chunk(rows, position, more=True, size=row_bytes(rows))


def row_bytes(rows: list[Row]) -> int:
    """Returns how many bytes the values of the rows have."""
    return sum(len(value) for row in rows for value in row.values if value)


class BoundedSource:
    """A row source with an end. It confirms nothing, and no session of it must be kept alive.

    A subclass defines `open`, which connects and sets `_reader` and `_end`.
    """

    def __init__(self, wakeup: Wakeup | None = None) -> None:
        """`wakeup` ends a wait behind the end early; without it `read` never waits."""
        self._reader: PageReader | None = None
        self._end: Position
        self._poll: select.poll | None = None
        self._wakeup = wakeup  # the poll refers to its file descriptor only
        if wakeup is not None:
            self._poll = select.poll()
            self._poll.register(wakeup, select.POLLIN)

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        """Returns the next rows; behind the last of them, no rows and the end."""
        if self._reader is not None:
            page = read_page(self._reader, limit, limit_bytes)
            if page is not None:
                return page
            self._close_reader()
            return Chunk(self._last_rows(), self._end, more=False, urgent=True)
        if wait and self._poll is not None:
            self._poll.poll(min(wait, REST_SECONDS) * 1000)
        return Chunk([], self._end, more=False, urgent=True)

    def _last_rows(self) -> list[Row]:
        """Returns rows that follow what the reader has read."""
        return []

    def settle(self) -> None:
        """Raises if rows may be missing before a position without rows; what is read here is complete."""

    def confirm(self, position: Position) -> None:
        """Does nothing: no server keeps a log for this source."""

    def keep_alive(self) -> None:
        """Does nothing: a session that reads a table may be silent."""

    def passed(self, position: Position) -> str:
        """Returns an empty text: no snapshot is known to lie before the position."""
        return ""

    def close(self) -> None:
        self._close_reader()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
