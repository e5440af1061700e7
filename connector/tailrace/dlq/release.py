"""Publishes the events that waited behind resolved dead letters: all such keys in one pass over the waiting topic.

A pass begins at the first waiting event of its keys and takes as many turns as it needs. Between turns the pipeline
goes on reading, and newer events of these keys go to the end of the waiting topic. A key is free again when a pass has
reached that end, in a turn in which nothing else was read. So each record is read once for all keys that are released
together, and no key waits for the release of another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from confluent_kafka import Message

from tailrace import failpoints
from tailrace.dlq.parked_keys import FIRST, Entity, ParkedKey, state_record, waiting_event, waiting_key
from tailrace.dlq.reader import dead_letter_of
from tailrace.dlq.waiting_topic import WaitingEvents
from tailrace.errors import Rejected
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions
from tailrace.pipeline.processor import EventProcessor

TURN_SECONDS = 0.25
"""How long a turn delays other keys; a turn may take longer to get ahead of new events."""


@dataclass(slots=True)
class ReleaseBatch:
    """One transaction: records, and the states of keys after them; None for a key that is free."""

    records: list[Record] = field(default_factory=list)
    states: dict[Entity, ParkedKey | None] = field(default_factory=dict)
    size: int = 0

    def add(self, *records: Record) -> None:
        for record in records:
            self.records.append(record)
            self.size += len(record.value or b"") + len(record.key or b"")

    def is_full(self, processor: EventProcessor, limit: int) -> bool:
        return len(self.records) + len(self.states) >= limit or self.size >= processor.batch_bytes


class Releaser:
    """Releases keys. Belongs to the pipeline's thread."""

    def __init__(self, options: KafkaOptions, waiting: WaitingEvents, keys: dict[Entity, ParkedKey]) -> None:
        self._options = options
        self._waiting = waiting
        self._keys = keys
        self._busy: set[Entity] = set()
        self._members: dict[bytes, Entity] = {}
        """The keys of the pass under way, by the key of their records."""
        self._left = 0
        self.key_bytes = 0
        """Size of all parked keys together."""
        self.bound = 0
        """Offset of the waiting topic: below it, no event of a key that is not parked waits."""

    def open(self) -> int:
        """Begins with the states that were read; returns where the waiting topic ends."""
        self.bound = self._waiting.end()
        self._busy = {entity for entity, state in self._keys.items() if state.releasing}
        self.key_bytes = sum(map(_size, self._keys))
        return self.bound

    def close(self) -> None:
        self._waiting.close()

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    def committed(self, part: ReleaseBatch) -> Iterator[list[Record]]:
        """Yields the transaction. Applies its states when the caller takes the next one: then it is committed."""
        if not part.records and not part.states:
            return
        now = time.time_ns() // 1_000_000
        yield [*part.records, *(state_record(self._options, *state, now) for state in part.states.items())]
        for entity, state in part.states.items():
            self.note(entity, state)

    def note(self, entity: Entity, state: ParkedKey | None) -> None:
        """Sets the new state of a key, which is committed or about to be; None if it is no longer parked."""
        self.key_bytes += (state is not None) * _size(entity) - (entity in self._keys) * _size(entity)
        if state is None:
            self._keys.pop(entity, None)
        else:
            self._keys[entity] = state
        (self._busy.add if state is not None and state.releasing else self._busy.discard)(entity)

    def turn(self, processor: EventProcessor, limit: int) -> Iterator[list[Record]]:
        """A part of the pass, in transactions. Nothing may be read, and nothing else published, until it is over."""
        if not self._busy:
            return
        self._join()
        end, until = self._waiting.end(), time.monotonic() + TURN_SECONDS
        # However fast events of these keys come, each turn leaves fewer than the one before, so the pass ends.
        goal = max(0, self._left - limit)
        part = ReleaseBatch()
        while self._waiting.position < end and (
            time.monotonic() < until or (self._left and end - self._waiting.position > goal)
        ):
            for message in self._waiting.read():
                if part.is_full(processor, limit):
                    yield from self.committed(part)
                    failpoints.reached(failpoints.RELEASING)
                    part = ReleaseBatch()
                self._add_waiting(message, part, processor)
        self._left = max(0, end - self._waiting.position)
        if not self._left:
            for entity in self._members.values():
                if part.is_full(processor, limit):
                    yield from self.committed(part)
                    part = ReleaseBatch()
                part.states[entity] = None
        yield from self.committed(part)
        if self._left:
            failpoints.reached(failpoints.RELEASING)
        else:
            self.bound = max(self.bound, end)
            self._members.clear()
        if not self._members:
            self._waiting.pause()

    def _join(self) -> None:
        """Begins a pass, or adds keys to it whose events are still ahead."""
        if not self._members:
            self._waiting.seek(min(self._keys[entity].released for entity in self._busy))
            self._left = 0
        for entity in self._busy:
            if self._keys[entity].released >= self._waiting.position:
                self._members[waiting_key(entity)] = entity

    def _add_waiting(self, message: Message, part: ReleaseBatch, processor: EventProcessor) -> None:
        """Adds the record or dead letter of an event that waited, if its key is being released."""
        key = message.key()
        entity = self._members.get(key) if isinstance(key, bytes) else None
        found = dead_letter_of(message) if entity is not None else None
        if entity is None or found is None:
            return
        state = part.states.get(entity) or self._keys[entity]
        offset = found.id.offset
        if offset < state.released:
            return
        event = waiting_event(found.headers, found.value)
        try:
            part.add(processor.record_of_waiting(event))
        except Rejected as rejected:
            letter = processor.dead_letter_of(event, rejected)
            if rejected.reason in processor.park_on:
                part.add(with_first_header(letter))
                part.states[entity] = ParkedKey(state.since_ms, event.position, offset + 1, event=event.id)
                del self._members[waiting_key(entity)]
                return
            part.add(letter)
        part.states[entity] = replace(state, released=offset + 1)


def _size(entity: Entity) -> int:
    return len(entity[0]) + len(entity[1])


def with_first_header(letter: Record) -> Record:
    """Adds the header which says that other events wait behind this dead letter."""
    return letter._replace(headers=[*letter.headers, (FIRST, "first")])
