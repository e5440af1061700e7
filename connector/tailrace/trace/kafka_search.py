"""Finds everything that Kafka holds of one event: records, dead letters, and events that wait behind a parked key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tailrace.dlq import requests
from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.parked_keys import Entity, ParkedKey, entity_of, waiting_event, waiting_topic
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.resolutions import Resolution
from tailrace.event import OutboxEvent
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import RangeReader, read_topic
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.state.rewind_marker import HEADER as REPLAY

MARGIN_MS = 3_600_000
"""How long before the row its record is searched, since clocks differ."""
REDRIVEN, REDRIVEN_FOR, EDITED = "tailrace.redriven", "tailrace.redriven.for", "tailrace.edited"


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record of the event. `replay` is the id of a replay, `redriven` that of a dead letter; empty if neither."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    type: str
    position: str
    replay: str
    redriven: str
    edited: bool
    for_consumer: str

    @property
    def kind(self) -> str:
        return "replay" if self.replay else "redrive" if self.redriven else "original"


@dataclass(frozen=True, slots=True)
class FoundParking:
    """The event is the first of a parked key, or waits behind it. `position` is that of the waiting event."""

    entity: Entity
    key: ParkedKey
    is_first: bool
    position: str
    offset: int | None = None


def find_records(
    options: KafkaOptions, topics: Sequence[str], event_id: str, since_ms: int | None
) -> tuple[list[FoundRecord], int]:
    """Returns the records of an event, oldest first in each partition, and how many records were read."""
    wanted, own = event_id.encode(), options.pipeline.encode()
    found: list[FoundRecord] = []
    read = 0
    with RangeReader(options, "trace") as reader:
        ranges = {
            (topic, number): range_
            for topic in topics
            for number, range_ in reader.ranges(topic, since_ms=since_ms, include_open=True).items()
        }
        if not ranges:
            return [], 0
        with closing(reader.batches(ranges)) as batches:
            for batch in batches:
                read += len(batch)
                for message in batch:
                    headers: Any = message.headers() or []
                    if ("id", wanted) in headers and not _is_of_others(headers, own):
                        found.append(_record(message, headers))
    return sorted(found, key=lambda each: (each.timestamp_ms, each.topic, each.partition, each.offset)), read


def find_dead_letters(
    options: KafkaOptions, event_id: str, since_ms: int | None
) -> list[tuple[DeadLetter, Resolution | None]]:
    """Returns the dead letters of an event, with what was decided about them."""
    reader = DeadLetterReader(options)
    with closing(reader.dead_letters(reader.ranges(since_ms))) as letters:
        found = [letter for letter in letters if letter.event_id == event_id]
    resolved = reader.resolutions(found) if found else {}
    return [(letter, resolved.get(letter.id)) for letter in found]


def find_parking(options: KafkaOptions, event_id: str) -> FoundParking | None:
    """Returns where the event is parked; None if it is not."""
    state = requests.parking_state(options)
    for entity, key in state.keys.items():
        if key.event == event_id and not key.releasing:
            return FoundParking(entity, key, is_first=True, position=key.place)
    if not state.keys:
        return None
    with closing(read_topic(options, waiting_topic(options))) as messages:
        for message in messages:
            headers: Any = message.headers()
            event: OutboxEvent = waiting_event(headers, message.value() or b"")
            if event.id != event_id or (behind := entity_of(event)) is None:
                continue
            held = state.keys.get(behind)
            if held is not None and (message.offset() or 0) >= held.released:
                return FoundParking(behind, held, is_first=False, position=event.position, offset=message.offset())
    return None


def _is_of_others(headers: Sequence[tuple[str, bytes | None]], own: bytes) -> bool:
    return any(name == PIPELINE_HEADER and value != own for name, value in headers)


def _record(message: Any, headers: Sequence[tuple[str, bytes | None]]) -> FoundRecord:  # noqa: ANN401 - typed loosely by the driver
    said = {name: (value or b"").decode(errors="backslashreplace") for name, value in headers}
    return FoundRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        said.get("type", ""),
        said.get("position", ""),
        said.get(REPLAY, ""),
        said.get(REDRIVEN, ""),
        EDITED in said,
        said.get(REDRIVEN_FOR, ""),
    )
