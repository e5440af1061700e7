"""A part of a log or a table, as a source: from where to where, and which rows of that.

The pipeline's own loop runs over it, so a replay is published as everything is. It ends by itself: behind its end it
brings nothing but the end as its position, and once that is stored, the replay is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.event import Chunk, Row
from tailrace.pipeline.loop import RowSource
from tailrace.positions.base import Position

PAUSE = 0.02
"""Seconds between two looks at whether the end is stored by now."""


class SelectedSource:
    """Implements `pipeline.Source`."""

    def __init__(
        self,
        source: RowSource,
        start: Position,
        end: Position,
        wants: Callable[[Row], bool],
        named: Callable[[Row], Row] = lambda row: row,
    ) -> None:
        """Rows that `end` does not cover are not in it, nor are those that `wants` denies. `named` gives a row the
        place by which its event is to be known.
        """
        self._source = source
        self.start = start
        self.end = end
        self._wants = wants
        self._named = named
        self.position = start
        self.over = False
        self.looked_at = 0
        """Rows that came, wanted or not."""

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Goes on at `stored`, a place where the same replay was before."""
        self.position = self._source.open(self.start if stored is None else stored, store)
        self.over = self.position.progress >= self.end.progress
        return self.position

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        if self.over:
            # Nothing more comes. Soon stored, as a source that waits for that.
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
