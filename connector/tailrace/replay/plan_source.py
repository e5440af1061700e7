"""The source of a plan: a selected range of the log, the table or collections, or the archive.

The pipeline's own loop runs over it, so a replay is published like everything else. Behind its end the source only
returns the end as its position; once that is stored, the replay is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.archive import require_installed
from tailrace.event import Chunk, Columns, Row
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.base import Position
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition
from tailrace.replay.plan import Origin, Selection, row_selector
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.table_rescan import LogRescan, TableRescan
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import Wiring

if TYPE_CHECKING:
    from tailrace.archive.format import ArchivedRow


def open_selected(
    wiring: Wiring,
    processor: EventProcessor,
    *,
    id_: str,
    origin: Origin,
    start: Position,
    end: Position,
    selection: Selection,
    wakeup: Wakeup,
    named: Callable[[Row], Row] = lambda row: row,
) -> SelectedSource:
    """Returns the source, not yet connected. `named` gives rows their original position."""
    source: RowSource
    if isinstance(end, ArchivePosition):
        source = _archive(wiring, end, selection)
    else:
        source = _source(wiring, id_, origin, selection, wakeup)
    return SelectedSource(source, start, end, row_selector(selection, processor.layout, processor.route), named)


def _source(wiring: Wiring, id_: str, origin: Origin, selection: Selection, wakeup: Wakeup) -> RowSource:
    database = wiring.database
    if isinstance(database, MongoOptions):
        from tailrace.sources.mongo.source import MongoSource  # optional driver

        # Another name, so that it is not counted as a connector. A start position with a collection read makes it
        # read the collections first; the end position stops it there.
        name = f"{database.app_name} (replay)"
        named = replace(database, app_name=name, create=False, adopt=False, untimed_ms=0, start_where="")
        return MongoSource(named, wakeup=wakeup)
    if origin == "table":
        return TableRescan(database, within=(selection.since_ms, selection.until_ms))
    return LogRescan(database, name=id_, wakeup=wakeup)


def _archive(wiring: Wiring, end: ArchivePosition, selection: Selection) -> RowSource:
    require_installed()
    from tailrace.archive.repository import open_repository
    from tailrace.archive.source import ArchiveSource

    database = wiring.database
    within = (selection.since_ms, selection.until_ms)
    if not isinstance(database, MongoOptions):
        from tailrace.archive.postgres_outbox import outbox_row

        return ArchiveSource(lambda: open_repository(wiring.settings), outbox_row, end=end, within=within)
    from tailrace.archive.mongo_outbox import document_row  # optional driver
    from tailrace.sources.mongo.documents import DocumentConverter

    documents = DocumentConverter.of(database)

    def made(columns: Columns, kept: ArchivedRow, position: str) -> Row:
        return document_row(documents, columns, kept, position)

    return ArchiveSource(lambda: open_repository(wiring.settings), made, end=end, within=within)


def share_done(position: Position, start: Position, end: Position, rows: int) -> float:
    """Returns how much is done, from 0 to 1, by position, so that it is correct when a replay is continued."""
    if position.progress >= end.progress:
        return 1.0
    if isinstance(position, ArchivePosition) and isinstance(end, ArchivePosition):
        return min(1.0, position.rows / rows) if rows else position.file / (end.file + 1)
    if isinstance(position, LsnPosition) and isinstance(start, LsnPosition) and isinstance(end, LsnPosition):
        if position.table_read is not None:
            return min(1.0, position.table_read.rows / max(1, rows))
        return (position.lsn - start.lsn) / max(1, end.lsn - start.lsn)
    if isinstance(position, TokenPosition) and isinstance(start, TokenPosition) and isinstance(end, TokenPosition):
        if position.collection_read is not None:
            return min(1.0, position.collection_read.documents / max(1, rows))
        return (position.time.seconds - start.time.seconds) / max(1, end.time.seconds - start.time.seconds)
    return 0.0


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
