"""Marks the records of a rewound pipeline: events that were published before get the rewind's id in a header."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tailrace.event import OutboxEvent, Record, Row
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position
from tailrace.sources.postgres.source import PostgresSource
from tailrace.state.rewind_marker import HEADER, Rewind


def with_rewind_header(
    processor: EventProcessor, stored: Position | None, rewind: Rewind | None, *, parks: bool
) -> EventProcessor:
    """Returns a processor that marks events up to the end of the rewind, or the same one if no event needs a mark.

    `parks`: events may wait for a parked key, and be published long after the pipeline has passed that end.
    """
    if stored is None or rewind is None or not stored.is_alike(rewind.until):
        return processor
    if stored.progress >= rewind.until.progress and not parks:
        return processor
    header, until = (HEADER, rewind.id), rewind.until

    def marked(record: Record, source: OutboxEvent | Row) -> Record:
        return record._replace(headers=[*record.headers, header]) if until.covers(source.position) else record

    return processor.decorated(marked, marked)


def rewound(stored: Position | None, rewind: Rewind | None) -> Callable[[str], bool] | None:
    """Returns a test whether a row was published before the rewind; None if no row was."""
    if stored is None or rewind is None or not stored.is_alike(rewind.until):
        return None
    return rewind.until.covers if stored.progress < rewind.until.progress else None


def on_current_timeline(rewind: Rewind | None, source: RowSource) -> Rewind | None:
    """Returns the rewind with its end in the log that was opened: a failover since then has changed its timeline."""
    if rewind is None or not isinstance(source, PostgresSource) or source.until is None:
        return rewind
    return replace(rewind, until=source.until)
