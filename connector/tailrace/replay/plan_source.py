"""Opens the source of a plan: the log next to the pipeline, the table or collections, or the archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.archive import require_installed
from tailrace.event import Columns, Row
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.base import Position
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition
from tailrace.replay.plan import Origin
from tailrace.replay.selected_source import SelectedSource
from tailrace.replay.selection import Selection, chooser
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
    wake: Wakeup,
    named: Callable[[Row], Row] = lambda row: row,
) -> SelectedSource:
    """Returns the source, not yet connected. `named` gives rows their original position."""
    if isinstance(end, ArchivePosition):
        # A file stores the original position of a row, so it need not be searched.
        return SelectedSource(
            _archive(wiring, end, selection), start, end, chooser(selection, processor.layout, processor.route)
        )
    source = _source(wiring, id_, origin, selection, wake)
    return SelectedSource(source, start, end, chooser(selection, processor.layout, processor.route), named)


def _source(wiring: Wiring, id_: str, origin: Origin, selection: Selection, wake: Wakeup) -> RowSource:
    database = wiring.database
    if isinstance(database, MongoOptions):
        from tailrace.sources.mongo.source import MongoSource  # optional driver

        # A name of its own, so that it is not taken for the connector. A start position with a collection read makes it
        # read the collections first; the end position stops it there.
        named = replace(database, app_name=f"{database.app_name} (replay)", create=False, adopt=False, untimed_ms=0)
        return MongoSource(named, wake=wake)
    if origin == "table":
        return TableRescan(database, within=(selection.since_ms, selection.until_ms))
    return LogRescan(database, name=id_, wake=wake)


def _archive(wiring: Wiring, end: ArchivePosition, selection: Selection) -> RowSource:
    require_installed()
    from tailrace.archive.repository import open_repository
    from tailrace.archive.source import ArchiveSource

    database = wiring.database
    within = (selection.since_ms, selection.until_ms)
    if not isinstance(database, MongoOptions):
        from tailrace.archive.postgres_outbox import outbox_row

        return ArchiveSource(lambda: open_repository(wiring.settings), outbox_row, end=end, within=within)
    from tailrace.archive.mongo_outbox import document_row, rows_from  # optional driver

    documents = rows_from(database)

    def made(columns: Columns, kept: ArchivedRow, place: str) -> Row:
        return document_row(documents, columns, kept, place)

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
