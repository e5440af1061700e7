"""The events that a pipeline has passed without publishing them: dead letters, and events behind parked keys.

Delivery marks need them, because such a row is passed but not published. Discarded dead letters count as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import orjson

from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.parked_keys import entity_of, waiting_event, waiting_topic
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.requests import parking_state
from tailrace.dlq.resolutions import PUBLISHED, Resolution, resolutions_topic
from tailrace.event import Headers, Record
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange, RangeReader, read_topic
from tailrace.positions.base import MALFORMED

WAITING = "waiting"
"""The reason of an event that waits behind a parked key."""
PARKED = "waits behind the dead letter of an earlier event with the same key"


class Undelivered(NamedTuple):
    """An event that is passed and not published."""

    event_id: str
    position: str
    reason: str
    error: str


def of_dead_letter(letter: DeadLetter, id_column: str) -> Undelivered | None:
    """Returns the event of a dead letter; None if not even the id of its row can be read."""
    event_id = letter.event_id
    if event_id is None:
        try:
            found = orjson.loads(letter.value)[id_column]
        except MALFORMED:
            return None
        if not isinstance(found, str):
            return None
        event_id = found
    return Undelivered(event_id, letter.position, letter.reason, letter.explanation)


def of_record(record: Record, id_column: str) -> Undelivered | None:
    """The same for the record of a dead letter that was just published."""
    letter = DeadLetter(DeadLetterId(0, 0), record.timestamp, record.key, record.value or b"", record.headers)
    return of_dead_letter(letter, id_column)


def of_waiting(headers: Headers, value: bytes | None) -> Undelivered:
    """Returns the event in a record of the topic of waiting events."""
    event = waiting_event(headers, value or b"")
    return Undelivered(event.id, event.position, WAITING, PARKED)


def read_undelivered(options: KafkaOptions, id_column: str) -> Iterator[Undelivered]:
    """Yields all undelivered events that Kafka knows, up to the end that the topics have now."""
    with closing(ResolutionWatch(options)) as watch:
        redriven = {hash(position) for position in watch.read()}
    reader = DeadLetterReader(options)
    with closing(reader.dead_letters(reader.ranges())) as letters:
        for letter in letters:
            if hash(letter.position) not in redriven and (found := of_dead_letter(letter, id_column)) is not None:
                yield found
    state = parking_state(options)
    if not state.keys:
        return
    with closing(read_topic(options, waiting_topic(options))) as messages:
        for message in messages:
            headers: Any = message.headers()
            entity = entity_of(waiting_event(headers, message.value() or b""))
            parked = None if entity is None else state.keys.get(entity)
            if parked is not None and (message.offset() or 0) >= parked.released:
                yield of_waiting(headers, message.value())


class ResolutionWatch:
    """Reads the resolutions of dead letters; each call continues where the last one ended."""

    def __init__(self, options: KafkaOptions) -> None:
        self._topic = resolutions_topic(options)
        self._reader = RangeReader(options, "marks")
        self._next = 0

    def read(self) -> list[str]:
        """Returns the positions of the events that were published after they had been dead-lettered."""
        positions: list[str] = []
        found = self._reader.bounds(self._topic).get(0)
        if found is None or found.end <= self._next:
            return positions
        self._next = max(self._next, found.start)
        for message in self._reader.records(self._topic, {0: OffsetRange(self._next, found.end)}):
            value = message.value()
            resolution = None if value is None else Resolution.parse(value)
            if resolution is not None and resolution.action in PUBLISHED and resolution.position:
                positions.append(resolution.position)
        self._next = found.end
        return positions

    def close(self) -> None:
        self._reader.close()
