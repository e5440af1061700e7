"""A range of a log or a table as a source, filtered by a selection.

The pipeline's own loop runs over it, so a replay is published like everything else. Behind its end it only returns the
end as its position; once that is stored, the replay is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.event import Chunk, Row
from tailrace.pipeline.loop import RowSource
from tailrace.positions.base import Position

PAUSE = 0.02
"""Seconds between two checks whether the end is stored."""


class SelectedSource:
    """A source limited to a range and a selection."""

    def __init__(
        self,
        source: RowSource,
        start: Position,
        end: Position,
        wants: Callable[[Row], bool],
        named: Callable[[Row], Row] = lambda row: row,
    ) -> None:
        """Leaves out rows that `end` does not cover and rows that `wants` rejects. `named` gives a row its original
        position.
        """
        self._source = source
        self.start = start
        self.end = end
        self._wants = wants
        self._named = named
        self.position = start
        self.over = False
        self.looked_at = 0
        """Rows that were read, selected or not."""

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Opens the source at `stored`, a position of the same replay, or at the start."""
        self.position = self._source.open(self.start if stored is None else stored, store)
        self.over = self.position.progress >= self.end.progress
        return self.position

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        if self.over:
            # Nothing follows, so the end is stored soon.
            time.sleep(min(wait, PAUSE))
            return Chunk([], self.end, more=False, urgent=True)
        rows, position, more, size, urgent = self._source.read(limit, limit_bytes, wait)
        came = len(rows)
        if position.progress >= self.end.progress:
            rows = [row for row in rows if self.end.covers(row.position)]
            position, more, self.over = self.end, False, True
        self.position = position
        self.looked_at += len(rows)
        rows = [self._named(row) for row in rows if self._wants(row)]
        if len(rows) != came:
            size = sum(len(value) for row in rows for value in row.values if value)
        return Chunk(rows, position, more, size, urgent)

    def settle(self) -> None:
        self._source.settle()

    def confirm(self, position: Position) -> None:
        self._source.confirm(position)

    def keep_alive(self) -> None:
        self._source.keep_alive()

    def passed(self, position: Position) -> str:
        return self._source.passed(position)

    def close(self) -> None:
        self._source.close()
