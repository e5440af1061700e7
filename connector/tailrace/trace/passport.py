"""The passport of an event: what the outbox, Kafka and projections know of it, and what that means. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.resolutions import Resolution
from tailrace.event import OutboxEvent
from tailrace.positions.base import Position
from tailrace.trace.kafka_search import MARGIN_MS, FoundParking, FoundRecord
from tailrace.trace.outbox_row import FoundRow
from tailrace.trace.projections import FoundMarker

PUBLISHED = "published"
DEAD_LETTERED = "dead-lettered"
DISCARDED = "discarded"
PARKED = "parked"
WAITING = "waiting"
NOT_YET = "not published yet"
NOT_FOUND = "not on Kafka"


@dataclass(frozen=True, slots=True)
class Validation:
    """Whether the event would be published today. `passes` is None if a server that is needed is unavailable."""

    passes: bool | None
    topic: str | None = None
    key: bytes | None = None
    reason: str = ""
    explanation: str = ""
    """It may quote the payload."""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Passport:
    """Everything that is known of an event. `searched` is the number of records that were read."""

    id: str
    pipeline: str
    row: FoundRow | None = None
    event: OutboxEvent | None = None
    validation: Validation | None = None
    records: list[FoundRecord] = field(default_factory=list)
    dead_letters: list[tuple[DeadLetter, Resolution | None]] = field(default_factory=list)
    parking: FoundParking | None = None
    stored: Position | None = None
    projections: list[FoundMarker] = field(default_factory=list)
    since_ms: int | None = None
    searched: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        return bool(self.row or self.records or self.dead_letters or self.parking)

    @property
    def position(self) -> str:
        """Its position in the log of the database, as its record or dead letter states it; empty if not known."""
        stated = [record.position for record in self.records] + [letter.position for letter, _ in self.dead_letters]
        stated += [self.parking.position] if self.parking else []
        return next((each for each in stated if each), "")

    @property
    def state(self) -> str:
        """What became of the event."""
        if self.parking is not None:
            return PARKED if self.parking.is_first else WAITING
        if self.records:
            return PUBLISHED
        if self.dead_letters:
            is_open = any(resolution is None for _, resolution in self.dead_letters)
            return DEAD_LETTERED if is_open else DISCARDED
        return NOT_FOUND if self.is_passed else NOT_YET

    @property
    def is_passed(self) -> bool | None:
        """Whether the pipeline's stored position is beyond the event; None if that is not known."""
        if self.stored is None:
            return False if self.row else None
        if self.position:
            try:
                return self.stored.covers(self.position)
            except ValueError:
                return None  # a position of another log
        if self.row is None:
            return None
        if self.row.is_passed(self.stored):
            return True
        created = self.row.created_ms
        return bool(created and self.stored.at_ms > created + MARGIN_MS)


def passport_json(found: Passport, *, payload: bool, value_json: Any) -> dict[str, Any]:  # noqa: ANN401 - a function
    """Returns it as JSON; payloads only on request. `value_json` converts the bytes of a payload."""
    row, validation, parking = found.row, found.validation, found.parking
    return {
        "id": found.id,
        "pipeline": found.pipeline,
        "state": found.state,
        "position": found.position or None,
        "passed": found.is_passed,
        "stored_position": str(found.stored) if found.stored else None,
        "row": None if row is None else {
            "source": row.source, "created_ms": row.created_ms, "transaction": row.transaction, "marks": row.marks,
            **_event_json(found.event),
            **({"payload": _value(found.event.payload if found.event else None, value_json)} if payload else {}),
        },
        "validation": None if validation is None else {
            "passes": validation.passes, "topic": validation.topic, "reason": validation.reason or None,
            "remedy": validation.remedy or None,
            **({"explanation": validation.explanation or None} if payload else {}),
        },
        "records": [
            {"kind": each.kind, "topic": each.topic, "partition": each.partition, "offset": each.offset,
             "timestamp_ms": each.timestamp_ms, "key": text_of(each.key), "type": each.type or None,
             "position": each.position or None, "replay": each.replay or None, "redriven": each.redriven or None,
             "edited": each.edited, "for_consumer": each.for_consumer or None,
             **({"payload": _value(each.value, value_json)} if payload else {})}
            for each in found.records
        ],
        "dead_letters": [
            {"id": str(letter.id), "reason": letter.reason, "recorded_ms": letter.recorded_ms,
             "position": letter.position or None, "topic": letter.topic, "remedy": letter.remedy or None,
             "resolution": resolution.to_json() if resolution else None,
             **({"explanation": letter.explanation, "payload": _value(letter.value, value_json)} if payload else {})}
            for letter, resolution in found.dead_letters
        ],
        "parking": None if parking is None else {
            "first": parking.is_first, "aggregate": parking.entity[0], "key": text_of(parking.entity[1]),
            "since_ms": parking.key.since_ms, "first_event": parking.key.event, "offset": parking.offset,
        },
        "projections": [
            {"store": each.store, "projection": each.projection, "outcome": each.outcome,
             "processed_at": each.processed_at, "entity": each.entity, "version": each.version, "passed": each.passed}
            for each in found.projections
        ],
        "searched": {"since_ms": found.since_ms, "records": found.searched},
        "notes": list(found.notes),
    }  # fmt: skip


def text_of(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _event_json(event: OutboxEvent | None) -> dict[str, Any]:
    if event is None:
        return {"type": None, "aggregate": None, "key": None}
    return {"type": event.type, "aggregate": event.aggregate or None, "key": text_of(event.key)}


def _value(value: bytes | None, value_json: Any) -> object:  # noqa: ANN401
    return None if value is None else value_json(value)
