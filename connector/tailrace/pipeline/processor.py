"""Processes rows one by one: extract, route, validate, make the record, and decide what becomes of a failed event.

This is the whole per-event policy. The pipeline runs it on every row; the release of parked keys, redrives, replays,
recoveries and `verify` use the same steps on single events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from tailrace.errors import Halted, Reason, Rejected
from tailrace.event import OutboxEvent, Record, Route, Row, redriven_position
from tailrace.outbox.layouts import Layout
from tailrace.pipeline.batch import Batch
from tailrace.pipeline.record_retries import RecordRetries, refused
from tailrace.schemas.validation import ValidatedPayload


class KeyParking(Protocol):
    """Parked keys: later events of a key wait while its first failed event is a dead letter.

    The records it returns are part of the batch.
    """

    @property
    def keys(self) -> Mapping[tuple[str, bytes], object]:
        """The parked keys, by aggregate and key."""

    def open(self) -> None: ...
    def wait(self, event: OutboxEvent) -> Record: ...
    def park(self, event: OutboxEvent, letter: Record) -> list[Record]: ...
    def due(self) -> bool: ...
    def release(self, processor: EventProcessor, limit: int) -> Iterator[list[Record]]:
        """Yields a bounded part of the events to release, one list of records per transaction."""

    def close(self) -> None: ...


class SequenceNumbers(Protocol):
    """The check of sequence numbers. It sees all rows, in commit order."""

    def observe(self, rows: list[Row]) -> dict[str, Rejected]:
        """Returns the rejections of rows whose numbers are out of order, by position."""

    def records(self) -> list[Record]:
        """Returns the records that store the numbers; they are part of the batch."""


@dataclass(frozen=True, slots=True)
class EventProcessor:
    """The steps for each event and the failure policy. Each step raises Rejected if the event cannot be published."""

    layout: Layout
    route: Callable[[OutboxEvent], Route]
    validate: Callable[[OutboxEvent, str], ValidatedPayload]
    make_record: Callable[[OutboxEvent, Route, ValidatedPayload], Record]
    make_dead_letter: Callable[[Row, OutboxEvent | None, str | None, Rejected], Record]
    halt_on: frozenset[Reason]
    batch_records: int
    batch_bytes: int
    refused: dict[str, str] = field(default_factory=dict)
    """Events that their topic refuses for good: the reason, by position."""
    park_on: frozenset[Reason] = frozenset()
    retries: RecordRetries | None = None
    """Events that their topic refused and that may be sent again."""
    prepare: Callable[[list[Row], Callable[[], bool]], bool] | None = None
    """Runs business rules on many rows at once, which may take a while; None if there are no rules.

    It calls its second argument about every second, and returns False if that does.
    """
    sequence: SequenceNumbers | None = None
    validated: Callable[[float], None] | None = None
    """Called with the seconds that validation took, for the first row of a batch: chunks may have only a few rows."""

    def process(self, rows: list[Row], batch: Batch, parking: KeyParking | None = None) -> None:
        """Adds to the batch what is published for each row: its record, its dead letter, or a record that waits."""
        rejections = self._known_rejections(rows)
        if self.validated is None or not rows or batch.records:
            self._process(rows, self.validate, rejections, batch, parking)
        else:
            self._process(rows[:1], self._timed_validate, rejections, batch, parking)
            self._process(rows[1:], self.validate, rejections, batch, parking)
        if self.sequence is not None:
            stored = self.sequence.records()
            for record in stored:
                batch.add(record)
            batch.other_records += len(stored)

    def _timed_validate(self, event: OutboxEvent, topic: str) -> ValidatedPayload:
        began = time.perf_counter()
        try:
            return self.validate(event, topic)
        finally:
            if self.validated is not None:
                self.validated(time.perf_counter() - began)

    def _process(
        self,
        rows: list[Row],
        validate: Callable[[OutboxEvent, str], ValidatedPayload],
        rejections: dict[str, Rejected],
        batch: Batch,
        parking: KeyParking | None,
    ) -> None:
        read, route, make_record, add = self.layout.read, self.route, self.make_record, batch.add
        parked = parking.keys if parking is not None else {}
        for row in rows:
            event = to = None
            try:
                event = read(row)
                # A refused event may have been refused by the topic of waiting events: it becomes a dead letter.
                if parked and parking and (event.aggregate, event.key) in parked and row.position not in rejections:
                    add(parking.wait(event))
                    batch.other_records += 1
                    continue
                to = route(event)
                if rejections and row.position in rejections:
                    raise rejections[row.position]
                made = make_record(event, to, validate(event, to[0]))
            except Rejected as rejected:
                self._reject(row, event, to and to.topic, rejected, batch, parking)
            else:
                add(made)

    def record_of_waiting(self, event: OutboxEvent) -> Record:
        """Returns the record of an event that waited behind a parked key."""
        to = self.route(event)
        why = self.refused.get(event.position)
        rejected = self.retries.of_waiting(event.position) if why is None and self.retries else None
        if why is not None or rejected is not None:
            raise rejected or refused(why or "")
        return self.make_record(event, to, self.validate(event, to.topic))

    def record_of_redriven(self, event: OutboxEvent) -> Record:
        """Returns the record of an event whose dead letter is redriven, perhaps edited: earlier refusals do not count.

        A refusal of this very redrive counts once.
        """
        why = self.refused.pop(redriven_position(event.position), None)
        if why is not None:
            raise Rejected(Reason.PERMANENT_FAILURE, why, remedy="Make it smaller, or let the topic take it.")
        return self.to_record(event)

    def to_record(self, event: OutboxEvent) -> Record:
        """Routes and validates the event, and returns its record."""
        to = self.route(event)
        return self.make_record(event, to, self.validate(event, to.topic))

    def dead_letter(self, row: Row, event: OutboxEvent | None, topic: str | None, rejected: Rejected) -> Record:
        """Returns the dead letter of a rejected event; raises Halted if the policy for its reason is `halt`."""
        if rejected.reason in self.halt_on:
            # The explanation quotes the payload, which may be stored in a dead letter but not in a log.
            raise Halted(
                f"the event {event.id if event else '?'} at {row.position} cannot be published: "
                f"{rejected.reason.value}",
                why="The policy for this reason is `halt`. Nothing of its batch was published.",
                remedy=f"{rejected.remedy or 'Fix the schema or the service.'} To get past this event: set "
                f"dead_letters.reasons: {{{rejected.reason.value}: dead_letter}}, start again, and see `tailrace dlq`.",
            )
        return self.make_dead_letter(row, event, topic, rejected)

    def dead_letter_of(self, event: OutboxEvent, rejected: Rejected) -> Record:
        """The same for an event whose row is not available."""
        return self.dead_letter(Row((), (), event.position, event.committed_ms), event, None, rejected)

    def decorated(
        self,
        record: Callable[[Record, OutboxEvent], Record],
        dead_letter: Callable[[Record, Row], Record],
        *,
        parks: bool = True,
    ) -> EventProcessor:
        """Returns a copy that passes each record and dead letter through these functions; without `parks` no key is
        parked.
        """
        make_record, make_dead_letter = self.make_record, self.make_dead_letter

        def decorated_record(event: OutboxEvent, to: Route, checked: ValidatedPayload) -> Record:
            return record(make_record(event, to, checked), event)

        def decorated_letter(row: Row, event: OutboxEvent | None, topic: str | None, rejected: Rejected) -> Record:
            return dead_letter(make_dead_letter(row, event, topic, rejected), row)

        return replace(
            self,
            make_record=decorated_record,
            make_dead_letter=decorated_letter,
            park_on=self.park_on if parks else frozenset(),
        )

    def _known_rejections(self, rows: list[Row]) -> dict[str, Rejected]:
        """Returns which of the rows are dead-lettered regardless of their content, by position; nearly always none.

        Raises RecordDelayed if one of them must not be sent yet.
        """
        found: dict[str, Rejected] = {}
        if self.refused:
            found = {
                each.position: refused(self.refused[each.position]) for each in rows if each.position in self.refused
            }
        if self.retries is not None and self.retries.pending:
            found |= self.retries.decide(rows)
        if self.sequence is not None:
            found = {**self.sequence.observe(rows), **found}
        return found

    def _reject(
        self,
        row: Row,
        event: OutboxEvent | None,
        topic: str | None,
        rejected: Rejected,
        batch: Batch,
        parking: KeyParking | None,
    ) -> None:
        letter = self.dead_letter(row, event, topic, rejected)
        records = [letter]
        if parking is not None and event is not None and rejected.reason in self.park_on:
            records = parking.park(event, letter)
        for record in records:
            batch.add(record)
        batch.dead_letters += 1
        batch.other_records += len(records) - 1
