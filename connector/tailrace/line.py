"""The line: what happens to each event between log and Kafka, as the steps that a pipeline is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.errors import Halted, Reason, Rejected
from tailrace.event import OutboxEvent, Record, Route, Row
from tailrace.schemas.checking import Checked


class Layout(Protocol):
    def read(self, row: Row) -> OutboxEvent: ...


@dataclass(frozen=True, slots=True)
class Line:
    """What happens to each event on its way; each step raises Rejected for an event that cannot go on."""

    layout: Layout
    route: Callable[[OutboxEvent], Route]
    check: Callable[[OutboxEvent, str], Checked]
    record: Callable[[OutboxEvent, Route, Checked], Record]
    dead_letter: Callable[[Row, OutboxEvent | None, str | None, Rejected], Record]
    halt_on: frozenset[Reason]
    batch_records: int
    batch_bytes: int
    refused: Mapping[str, str] = field(default_factory=dict)
    """Events that their topic is known to refuse for good: why, by their place in the log."""
    park_on: frozenset[Reason] = frozenset()


@dataclass(frozen=True, slots=True)
class Steps:
    """What is done with an event that waited: the same as with any other."""

    line: Line

    @property
    def park_on(self) -> frozenset[Reason]:
        return self.line.park_on

    def through(self, event: OutboxEvent) -> Record:
        to = self.line.route(event)
        self.require_taken(event.place)
        return self.line.record(event, to, self.line.check(event, to.topic))

    def require_taken(self, place: str) -> None:
        """Rejected for an event that its topic is known to refuse."""
        why = self.line.refused.get(place)
        if why is not None:
            raise Rejected(
                Reason.PERMANENT_FAILURE, why, remedy="Make it smaller, or let the topic take it; then redrive."
            )

    def letter(self, event: OutboxEvent, rejected: Rejected) -> Record:
        row = Row((), (), event.place, event.committed_ms)
        return self.set_aside(row, event, None, rejected)

    def set_aside(self, row: Row, event: OutboxEvent | None, topic: str | None, rejected: Rejected) -> Record:
        """The dead letter; Halted if the policy is to stop."""
        if rejected.reason in self.line.halt_on:
            # Its explanation quotes the payload, which belongs into a dead letter but not into a log.
            raise Halted(
                f"the event {event.id if event else '?'} at {row.place} cannot be published: {rejected.reason.value}",
                why="The policy for it is `halt`. Nothing of the batch that contains it was published.",
                remedy="Look the row up by its id. "
                + (rejected.remedy or "Mend the schema or the row's producer, or set on_invalid: dead_letter."),
            )
        return self.line.dead_letter(row, event, topic, rejected)
