"""Estimates what a replay would publish, with a dry run over its source."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.errors import Rejected
from tailrace.event import OutboxEvent, Row
from tailrace.pipeline.processor import EventProcessor

if TYPE_CHECKING:
    from tailrace.replay.plan_source import SelectedSource

CHUNK_ROWS = 1000
WAIT_SECONDS = 1.0
EXAMPLES = 5
"""Examples per reason of failure."""
SLOWER = 2.0
"""Publishing takes longer than a dry run; a conservative factor."""
UNREADABLE = "(unreadable)"
NOWHERE = "(nowhere)"


@dataclass(slots=True)
class Estimate:
    """The counts of a dry run. `fails` counts events that today's rules and schemas reject, by reason."""

    events: int = 0
    by_type: Counter[str] = field(default_factory=Counter)
    by_topic: Counter[str] = field(default_factory=Counter)
    fails: Counter[str] = field(default_factory=Counter)
    examples: list[dict[str, str]] = field(default_factory=list)
    first_ms: int | None = None
    last_ms: int | None = None
    rows: int = 0
    """Rows that were read, selected or not."""
    seconds: float = 0.0

    @property
    def passes(self) -> int:
        return self.events - self.fails.total()

    @property
    def duration(self) -> float:
        """Estimated duration in seconds."""
        return round(max(1.0, self.seconds * SLOWER), 1)

    def note(self, row: Row, event: OutboxEvent | None, topic: str | None, rejected: Rejected | None) -> None:
        self.events += 1
        self.by_type[event.type if event else UNREADABLE] += 1
        self.by_topic[topic or NOWHERE] += 1
        self.first_ms = row.committed_ms if self.first_ms is None else min(self.first_ms, row.committed_ms)
        self.last_ms = row.committed_ms if self.last_ms is None else max(self.last_ms, row.committed_ms)
        if rejected is not None:
            self.fails[rejected.reason.value] += 1
            if self.fails[rejected.reason.value] <= EXAMPLES:
                # The text behind the first colon may quote the payload, which must not be written to a file.
                why = rejected.explanation.partition(": ")[0]
                name = event.id if event else row.position
                self.examples.append({"event": name, "reason": rejected.reason.value, "why": why})

    def to_json(self) -> dict[str, Any]:
        return {
            "events": self.events,
            "by_type": dict(self.by_type.most_common()),
            "by_topic": dict(self.by_topic.most_common()),
            "passes": self.passes,
            "fails": dict(self.fails.most_common()),
            "examples": self.examples,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "estimated_seconds": self.duration,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Estimate:
        """Raises KeyError, TypeError or ValueError if it is not an estimate."""
        return cls(
            int(fields["events"]),
            Counter(fields["by_type"]),
            Counter(fields["by_topic"]),
            Counter(fields["fails"]),
            list(fields["examples"]),
            fields["first_ms"],
            fields["last_ms"],
            int(fields["rows"]),
            float(fields["seconds"]),
        )


def estimate_events(
    source: SelectedSource,
    processor: EventProcessor,
    on_event: Callable[[OutboxEvent], None],
    on_progress: Callable[[SelectedSource, int], None],
) -> Estimate:
    """Reads the whole source and publishes nothing. `on_event` is called with each event."""
    estimate = Estimate()
    begun = time.monotonic()
    try:
        source.open(None, lambda _: None)
        while not source.over:
            chunk = source.read(CHUNK_ROWS, processor.batch_bytes, WAIT_SECONDS)
            for row in chunk.rows:
                event, topic, rejected = _tried(processor, row)
                estimate.note(row, event, topic, rejected)
                if event is not None:
                    on_event(event)
            source.confirm(chunk.position)
            on_progress(source, estimate.events)
    finally:
        source.close()
    estimate.rows = source.looked_at
    estimate.seconds = time.monotonic() - begun
    return estimate


def _tried(processor: EventProcessor, row: Row) -> tuple[OutboxEvent | None, str | None, Rejected | None]:
    event = topic = None
    try:
        event = processor.layout.read(row)
        to = processor.route(event)
        topic = to.topic
        processor.make_record(event, to, processor.validate(event, topic))
    except Rejected as rejected:
        return event, topic, rejected
    return event, topic, None
