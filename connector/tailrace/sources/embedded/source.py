"""The entries of an embedded outbox as rows, in the order of their sequence numbers.

It reads up to the first entry whose acceptance has not ended: a position behind it would pass it. Entries are deleted
after Kafka has stored the position behind them. What a crash leaves in between is deleted at the next start, and not
published again.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tailrace import failpoints
from tailrace.embedded.outbox import EmbeddedOutbox
from tailrace.embedded.records import Entry
from tailrace.errors import PositionAhead, SourceUnavailable, StoreFailed, TailraceError, WrongLog
from tailrace.event import TEXT, Chunk, Column, Row
from tailrace.positions.base import Position, other_kind
from tailrace.positions.embedded import EmbeddedPosition
from tailrace.wakeup import Wakeup

TYPE = "captured"
"""The type of all events: what an entry is, only its bytes say."""
COLUMNS = tuple(Column(name, TEXT) for name in ("id", "aggregatetype", "aggregateid", "type", "payload"))


class EmbeddedSource:
    """Implements `pipeline.loop.RowSource`. `aggregate` is that of all events."""

    def __init__(self, outbox: EmbeddedOutbox, aggregate: str, *, wakeup: Wakeup, adopt: bool = False) -> None:
        self._outbox = outbox
        self._aggregate = aggregate.encode()
        self._wakeup = wakeup
        self._adopt = adopt
        self._poll = select.poll()
        self._poll.register(wakeup, select.POLLIN)
        self._at = 0
        self._is_open = False

    def check_start(self, stored: Position | None) -> None:
        """Raises the error with which `open` would fail. Changes nothing."""
        error = self._mismatch(stored)
        if error is not None and not self._adopt:
            raise error

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> EmbeddedPosition:
        self.check_start(stored)
        if self._mismatch(stored) is not None:
            # Also if nothing is ever published: the next start must not need `adopt`.
            store(self._position(0, time.time_ns() // 1_000_000))
        elif isinstance(stored, EmbeddedPosition):
            self._at = stored.sequence
            self.confirm(stored)
        self._outbox.subscribe(self._wakeup.set)
        self._is_open = True
        return self._position(self._at, time.time_ns() // 1_000_000)

    def _mismatch(self, stored: Position | None) -> TailraceError | None:
        """Returns why the outbox cannot be continued at a position."""
        outbox = self._outbox
        if stored is None:
            return None
        if not isinstance(stored, EmbeddedPosition):
            return other_kind(stored, "an embedded outbox")
        if stored.outbox != outbox.identity:
            return WrongLog(
                f"the stored position is {stored}, but {outbox.path} is the outbox {outbox.identity[:8]}",
                why="The folder was deleted and created again, or it is another one.",
                remedy="Give the pipeline its folder. If this one is right, start once with adopt=True: everything in "
                "it is published.",
            )
        epoch = outbox.epoch(stored.sequence)
        if stored.sequence <= outbox.last_sequence and epoch in ("", stored.epoch):
            return None
        return PositionAhead(
            f"the stored position is {stored}, which {outbox.path} has never had",
            why=f"The folder was restored from an older copy. Its last entry is {outbox.last_sequence:,}, and what was "
            "written to it since would be skipped.",
            remedy="Restore the newest copy. To publish everything that is in it, start once with adopt=True: "
            "events may be published again.",
        )

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        entries = self._entries(limit, limit_bytes)
        if not entries and wait:
            self._poll.poll(wait * 1000)
            entries = self._entries(limit, limit_bytes)
        if not entries:
            return Chunk([], self._position(self._at, time.time_ns() // 1_000_000), more=False)
        failpoints.reached(failpoints.ROWS_READ)
        last = entries[-1]
        self._at = last.sequence
        size = sum(entry.size for entry in entries)
        more = len(entries) == limit or size >= limit_bytes
        return Chunk([*map(self._row, entries)], self._position(self._at, last.written_ms), more=more, size=size)

    def settle(self) -> None:
        """Does nothing: positions are only behind entries that were read."""

    def confirm(self, position: Position) -> None:
        """Deletes the entries that Kafka has."""
        # After an adoption, the stored position is at first the one that does not match.
        if isinstance(position, EmbeddedPosition) and self._mismatch(position) is None:
            with self._translated():
                self._outbox.remove_through(position.sequence)

    def keep_alive(self) -> None:
        """Does nothing: there is no connection."""

    def passed(self, position: Position) -> str:
        return ""

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._outbox.unsubscribe(self._wakeup.set)

    def _entries(self, limit: int, limit_bytes: int) -> list[Entry]:
        with self._translated():
            return self._outbox.read(limit, after=self._at, ordered=True, limit_bytes=limit_bytes)

    def _position(self, sequence: int, at_ms: int) -> EmbeddedPosition:
        return EmbeddedPosition(self._outbox.identity, sequence, at_ms, self._outbox.epoch(sequence))

    def _row(self, entry: Entry) -> Row:
        # An older copy of the outbox gives a number again, and never with the same epoch.
        name = f"{self._outbox.epoch(entry.sequence)}-{entry.sequence}".encode()
        values = (name, self._aggregate, entry.key, TYPE.encode(), entry.raw)
        return Row(COLUMNS, values, str(entry.sequence), entry.written_ms)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """A full disk may have room again: the service's next write opens the folder again, and so does a retry."""
        try:
            yield
        except StoreFailed as error:
            raise SourceUnavailable(error.what, why=error.why, remedy=error.remedy) from None
