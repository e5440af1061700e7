"""The line of a replay: what it publishes says so, and where it came from. Pure.

Extraction, routing and check are the pipeline's own. Beside the topics of the pipeline there may be shadows of them,
with a suffix to their names: only the record is led there, so that an event is judged as it is for its real topic.
"""

from __future__ import annotations

from dataclasses import replace

from tailrace.errors import Rejected
from tailrace.event import Headers, OutboxEvent, Record, Route, Row
from tailrace.pipeline.processor import Line
from tailrace.schemas.validation import ValidatedPayload
from tailrace.state.rewind_marker import HEADER, SHADOW


def replayed(line: Line, replay_id: str, *, suffix: str = "") -> Line:
    """The same line, for a replay. Nothing is parked: what cannot be published becomes a dead letter."""

    # A shadow may have a name that the pipeline's own template could have made: whoever compares must tell it apart.
    told: Headers = [(HEADER, replay_id), *([(SHADOW, suffix)] if suffix else [])]

    def marked(made: Record) -> Record:
        return made._replace(topic=made.topic + suffix, headers=[*made.headers, *told])

    def record(event: OutboxEvent, to: Route, checked: ValidatedPayload) -> Record:
        return marked(line.record(event, to, checked))

    def dead_letter(row: Row, event: OutboxEvent | None, topic: str | None, rejected: Rejected) -> Record:
        return marked(line.dead_letter(row, event, topic, rejected))

    return replace(line, record=record, dead_letter=dead_letter, park_on=frozenset())
