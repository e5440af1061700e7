"""The source that a plan is read from: the log beside the pipeline, or the table or collections themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tailrace.event import Row
from tailrace.line import Line
from tailrace.lsn_position import LsnPosition
from tailrace.pipeline import Source
from tailrace.position import Position
from tailrace.replay.plan import Origin
from tailrace.replay.selected import Selected
from tailrace.replay.selection import Selection, chooser
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.again import LogAgain, TableAgain
from tailrace.token_position import TokenPosition
from tailrace.wake import Wake
from tailrace.worker.assembly import Assembly


def open_selected(
    assembly: Assembly,
    line: Line,
    *,
    id_: str,
    origin: Origin,
    start: Position,
    end: Position,
    selection: Selection,
    wake: Wake,
    named: Callable[[Row], Row] = lambda row: row,
) -> Selected:
    """Not yet connected: that is for whoever calls its `open`. `named` gives rows the places they are known by."""
    source = _source(assembly, id_, origin, selection, wake)
    return Selected(source, start, end, chooser(selection, line.layout, line.route), named)


def _source(assembly: Assembly, id_: str, origin: Origin, selection: Selection, wake: Wake) -> Source:
    database = assembly.database
    if isinstance(database, MongoOptions):
        from tailrace.sources.mongo.source import MongoSource  # its driver is only there for those who need it

        # Under a name of its own: it must not be taken for the connector. A position that says how far the collections
        # are read makes it read those first; here, it ends there.
        named = replace(database, app_name=f"{database.app_name} (replay)", create=False, adopt=False, untimed_ms=0)
        return MongoSource(named, wake=wake)
    if origin == "table":
        return TableAgain(database, within=(selection.since_ms, selection.until_ms))
    return LogAgain(database, name=id_, wake=wake)


def share_done(position: Position, start: Position, end: Position, rows: int) -> float:
    """How much of the way is done, from 0 to 1; by the place, so that it is right also when a replay goes on."""
    if position.progress >= end.progress:
        return 1.0
    if isinstance(position, LsnPosition) and isinstance(start, LsnPosition) and isinstance(end, LsnPosition):
        if position.table_read is not None:
            return min(1.0, position.table_read.rows / max(1, rows))
        return (position.lsn - start.lsn) / max(1, end.lsn - start.lsn)
    if isinstance(position, TokenPosition) and isinstance(start, TokenPosition) and isinstance(end, TokenPosition):
        if position.collection_read is not None:
            return min(1.0, position.collection_read.documents / max(1, rows))
        return (position.time.seconds - start.time.seconds) / max(1, end.time.seconds - start.time.seconds)
    return 0.0
