"""The line of a pipeline that was set back: what was published before bears the rewind's id in a header."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tailrace.errors import Rejected
from tailrace.event import OutboxEvent, Record, Route, Row
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import Line
from tailrace.positions.base import Position
from tailrace.schemas.validation import ValidatedPayload
from tailrace.sources.postgres.source import PostgresSource
from tailrace.state.rewind_marker import HEADER, Rewind


def rewound(line: Line, stored: Position | None, rewind: Rewind | None, *, parks: bool) -> Line:
    """The same line if there is nothing to mark. `parks`: events may wait, and come when the stretch is long passed."""
    if stored is None or rewind is None or not stored.is_alike(rewind.until):
        return line
    if stored.progress >= rewind.until.progress and not parks:
        return line
    header = (HEADER, rewind.id)
    return replace(
        line,
        record=_record(line.record, rewind.until, header),
        dead_letter=_letter(line.dead_letter, rewind.until, header),
    )


def followed(rewind: Rewind | None, source: RowSource) -> Rewind | None:
    """The rewind in the log that was opened: after a failover it ends on another timeline than it was noted on."""
    if rewind is None or not isinstance(source, PostgresSource) or source.until is None:
        return rewind
    return replace(rewind, until=source.until)


def _record(
    make: Callable[[OutboxEvent, Route, ValidatedPayload], Record], until: Position, header: tuple[str, str]
) -> Callable[[OutboxEvent, Route, ValidatedPayload], Record]:
    def again(event: OutboxEvent, to: Route, checked: ValidatedPayload) -> Record:
        made = make(event, to, checked)
        return made._replace(headers=[*made.headers, header]) if until.covers(event.position) else made

    return again


def _letter(
    make: Callable[[Row, OutboxEvent | None, str | None, Rejected], Record], until: Position, header: tuple[str, str]
) -> Callable[[Row, OutboxEvent | None, str | None, Rejected], Record]:
    def again(row: Row, event: OutboxEvent | None, topic: str | None, rejected: Rejected) -> Record:
        made = make(row, event, topic, rejected)
        return made._replace(headers=[*made.headers, header]) if until.covers(row.position) else made

    return again
