"""The line of a pipeline that was set back: what was published before bears the rewind's id in a header."""

from __future__ import annotations

from dataclasses import replace

from tailrace.event import OutboxEvent, Record, Row
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position
from tailrace.sources.postgres.source import PostgresSource
from tailrace.state.rewind_marker import HEADER, Rewind


def rewound(
    processor: EventProcessor, stored: Position | None, rewind: Rewind | None, *, parks: bool
) -> EventProcessor:
    """The same line if there is nothing to mark. `parks`: events may wait, and come when the stretch is long passed."""
    if stored is None or rewind is None or not stored.is_alike(rewind.until):
        return processor
    if stored.progress >= rewind.until.progress and not parks:
        return processor
    header, until = (HEADER, rewind.id), rewind.until

    def marked(made: Record, source: OutboxEvent | Row) -> Record:
        return made._replace(headers=[*made.headers, header]) if until.covers(source.position) else made

    return processor.decorated(marked, marked)


def followed(rewind: Rewind | None, source: RowSource) -> Rewind | None:
    """The rewind in the log that was opened: after a failover it ends on another timeline than it was noted on."""
    if rewind is None or not isinstance(source, PostgresSource) or source.until is None:
        return rewind
    return replace(rewind, until=source.until)
