"""The line: what happens to each event between log and Kafka, as the steps that a pipeline is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.errors import Halted, Reason, Rejected
from tailrace.event import OutboxEvent, Record, Route, Row, redriven_position
from tailrace.schemas.validation import ValidatedPayload


class Layout(Protocol):
    def read(self, row: Row) -> OutboxEvent: ...


@dataclass(frozen=True, slots=True)
class Line:
    """What happens to each event on its way; each step raises Rejected for an event that cannot go on."""

    layout: Layout
    route: Callable[[OutboxEvent], Route]
    check: Callable[[OutboxEvent, str], ValidatedPayload]
    record: Callable[[OutboxEvent, Route, ValidatedPayload], Record]
    dead_letter: Callable[[Row, OutboxEvent | None, str | None, Rejected], Record]
    halt_on: frozenset[Reason]
    batch_records: int
    batch_bytes: int
    refused: dict[str, str] = field(default_factory=dict)
    """Events that their topic is known to refuse for good: why, by their place in the log."""
    park_on: frozenset[Reason] = frozenset()


@dataclass(frozen=True, slots=True)
class Steps:
    """What is done with an event that waited: the same as with any other."""

    line: Line

    @property
    def park_on(self) -> frozenset[Reason]:
        return self.line.park_on

    @property
    def batch_bytes(self) -> int:
        return self.line.batch_bytes

    def again(self, event: OutboxEvent) -> Record:
        """The record of an event that was mended: only a refusal of this very redrive counts, and once."""
        why = self.line.refused.pop(redriven_position(event.position), None)
        if why is not None:
            raise Rejected(Reason.PERMANENT_FAILURE, why, remedy="Make it smaller, or let the topic take it.")
        to = self.line.route(event)
        return self.line.record(event, to, self.line.check(event, to.topic))

    def through(self, event: OutboxEvent) -> Record:
        to = self.line.route(event)
        self.require_taken(event.position)
        return self.line.record(event, to, self.line.check(event, to.topic))

    def require_taken(self, place: str) -> None:
        """Rejected for an event that its topic is known to refuse."""
        why = self.line.refused.get(place)
        if why is not None:
            raise Rejected(
                Reason.PERMANENT_FAILURE, why, remedy="Make it smaller, or let the topic take it; then redrive."
            )

    def letter(self, event: OutboxEvent, rejected: Rejected) -> Record:
        row = Row((), (), event.position, event.committed_ms)
        return self.set_aside(row, event, None, rejected)

    def set_aside(self, row: Row, event: OutboxEvent | None, topic: str | None, rejected: Rejected) -> Record:
        """The dead letter; Halted if the policy is to stop."""
        if rejected.reason in self.line.halt_on:
            # Its explanation quotes the payload, which belongs into a dead letter but not into a log.
            raise Halted(
                f"the event {event.id if event else '?'} at {row.position} cannot be published: "
                f"{rejected.reason.value}",
                why="The policy for it is `halt`. Nothing of the batch that contains it was published.",
                remedy=f"{rejected.remedy or 'Mend the schema or the service.'} To get past this event: set "
                f"dead_letters.reasons: {{{rejected.reason.value}: dead_letter}}, start again, and see `tailrace dlq`.",
            )
        return self.line.dead_letter(row, event, topic, rejected)
