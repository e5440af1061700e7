"""Keys that are parked behind an event that was set aside, kept in order until somebody deals with it.

Everything is written by the pipeline itself, in the transactions of its batches, because only it can tell what comes
before what: a person's request is written down, and carried out here between two batches. The letter in front goes out
or is given up; then everything that waited behind it goes through the line, in order, before any newer event of the
key. Cut off at any point, the state on the topic says how far it came, and the next start goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace import killpoint
from tailrace.errors import ConfigError, ParkingFull, ParkingUnfit, Reason, Rejected
from tailrace.event import OutboxEvent, Record
from tailrace.kafka import marks
from tailrace.kafka.client import KafkaOptions, consumer_config
from tailrace.kafka.letter_box import LetterBox, letter_in
from tailrace.kafka.letters import Letter
from tailrace.kafka.marks import Mark
from tailrace.kafka.parked import (
    FIRST,
    Board,
    Entity,
    Parked,
    Request,
    answered,
    entity_of,
    is_of,
    state_record,
    state_topic,
    waiting_event,
    waiting_record,
    waiting_topic,
)
from tailrace.kafka.topics import create_topic, partition_counts, topic_config
from tailrace.routing.specs import TopicSpec

POLL_SECONDS = 0.5
"""How often requests are looked for, and only while something is parked."""
NEARLY = 0.8
"""Of a bound: from here on there is a warning."""
WAITING_BYTES = 16 * 1024 * 1024
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Bounds:
    keys: int = 10_000
    age_hours: float = 168


class Steps(Protocol):
    """What the pipeline does with an event."""

    @property
    def park_on(self) -> frozenset[Reason]:
        """The reasons for which a key is parked."""

    @property
    def batch_bytes(self) -> int:
        """What a transaction holds at most, unless a single event is larger."""

    def through(self, event: OutboxEvent) -> Record:
        """Its record; Rejected if it cannot be published."""

    def again(self, event: OutboxEvent) -> Record:
        """The same for an event that is redriven, and may have been mended."""

    def letter(self, event: OutboxEvent, rejected: Rejected) -> Record:
        """Its dead letter; Halted if the policy is to stop."""


class Parking:
    """The parked keys of one pipeline. Belongs to the pipeline's thread; made anew for each attempt."""

    def __init__(
        self, options: KafkaOptions, admin: AdminClient, bounds: Bounds, *, warn: Callable[[str], None]
    ) -> None:
        self._options = options
        self._admin = admin
        self._bounds = bounds
        self._warn = warn
        self._warned: set[str] = set()
        self._box = LetterBox(options)
        self._board = Board()
        self._tail: Consumer | None = None
        self._polled = 0.0
        self._bound: int | None = None
        self.keys: dict[Entity, Parked] = self._board.keys

    def open(self) -> None:
        """Reads what is parked. After the older instance is fenced: nothing changes it any more."""
        self._ensure(self._admin)
        topic = state_topic(self._options)
        spans = self._box.spans_of(topic, final=True, known=True)
        for message in self._box.scan(topic, spans):
            self._board.read(message.key(), message.value())
        end = self._box.end_of(waiting_topic(self._options), final=True)
        if any(state.released > end for state in self.keys.values()):
            raise ParkingUnfit(
                f"{waiting_topic(self._options)} ends at {end}, before what is known to have been there",
                why="It was deleted and made anew, and what waited there is gone.",
                remedy="Restore it from a backup; or replay the keys' events from the outbox table.",
            )
        self._tail = Consumer(consumer_config(self._options, f"tailrace-parking-{self._options.pipeline}"))
        self._tail.assign([TopicPartition(topic, 0, spans[0].end if spans else 0)])

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def wait(self, event: OutboxEvent) -> Record:
        """The record of an event whose key is parked."""
        return waiting_record(self._options, event)

    def park(self, event: OutboxEvent, letter: Record) -> list[Record]:
        """Parks the event's key behind its letter; from now on `keys` holds it.

        Just the letter, if it has no key, or cannot even wait behind the one that is in front.
        """
        entity = entity_of(event)
        if entity is None or entity in self.keys:
            return [letter]
        if len(self.keys) >= self._bounds.keys:
            raise ParkingFull(
                f"{len(self.keys):,} keys are parked, which is the bound",
                why="Each holds back all later events of its key.",
                remedy="See `tailrace dlq list`; redrive or discard letters, or raise dead_letters.park_keys.",
            )
        self._warn_nearly(len(self.keys) / self._bounds.keys, f"{len(self.keys):,} keys are parked", "park_keys")
        now = time.time_ns() // 1_000_000
        self.keys[entity] = state = Parked(now, event.place, self._end())
        return [_in_front(letter), state_record(self._options, entity, state, now)]

    def due(self) -> bool:
        """Whether there is something to release. Looks for requests now and then; ParkingFull if one is too old."""
        if not self.keys:
            return bool(self._board.requests)  # left over: they are to be answered, too
        now = time.monotonic()
        if now - self._polled >= POLL_SECONDS and self._tail is not None:
            self._polled = now
            for message in self._tail.consume(num_messages=1000, timeout=0):
                if message.error() is None:
                    self._board.read_request(message.key(), message.value())
        due = bool(self._board.requests) or any(state.releasing for state in self.keys.values())
        if not due:
            self._check_age()  # what was asked for comes first: it may be the remedy
        return due

    def release(self, steps: Steps, limit: int) -> Iterator[list[Record]]:
        """What is to be published, transaction by transaction; whoever asks for the next has committed the last."""
        for entity, state in list(self.keys.items()):
            if state.releasing:
                yield from self._behind(entity, state, steps, limit, [])
        for request in list(self._board.requests.values()):
            for records in self._answer(request, steps, limit):
                yield records
                self._board.requests.pop(request.letter, None)

    def _answer(self, request: Request, steps: Steps, limit: int) -> Iterator[list[Record]]:
        now = time.time_ns() // 1_000_000
        try:
            entity = self._in_front(request)
            letter = self._box.fetch(request.letter)
            if letter.position != request.position:
                raise ConfigError(
                    f"letter {letter.id} is not the one that was meant", remedy="See `tailrace dlq list`."
                )
            records = [] if request.action == "discard" else [self._redriven(letter, request, steps)]
        except (ConfigError, Rejected) as refusal:
            failure = refusal.explanation if isinstance(refusal, Rejected) else refusal.what
            yield answered(self._options, request, failure, now)
            return
        done = Mark(
            action="redriven" if records else "discarded",
            at_ms=now,
            by=request.by,
            why=request.why,
            topic=records[0].topic if records else "",
            edited=_edited(letter, request),
            position=letter.position,
        )
        records += [marks.record(self._options, letter, done), *answered(self._options, request, None, now)]
        yield from self._behind(entity, replace(self.keys[entity], releasing=True), steps, limit, records)

    def _behind(
        self, entity: Entity, state: Parked, steps: Steps, limit: int, records: list[Record]
    ) -> Iterator[list[Record]]:
        """Everything that waits behind the front, until one of it must be parked again."""
        size = 0
        for offset, event in self._waiting(entity, state.released):
            if len(records) >= limit or size >= steps.batch_bytes:
                state = replace(state, released=offset, releasing=True)
                yield [*records, self._state(entity, state)]
                self.keys[entity] = state
                killpoint.reached(killpoint.RELEASING)
                records, size = [], 0
            size += len(event.payload or b"") + len(event.key or b"")
            try:
                records.append(steps.through(event))
            except Rejected as rejected:
                letter = steps.letter(event, rejected)
                if rejected.reason in steps.park_on:
                    state = Parked(state.since_ms, event.place, offset + 1)
                    yield [*records, _in_front(letter), self._state(entity, state)]
                    self.keys[entity] = state
                    return
                records.append(letter)
        yield [*records, self._state(entity, None)]
        self.keys.pop(entity, None)
        self._bound = None

    def _end(self) -> int:
        """Where the waiting topic ends, or ended when a key was last released: what lies before it was dealt with."""
        if self._bound is None:
            self._bound = self._box.end_of(waiting_topic(self._options))
        return self._bound

    def _waiting(self, entity: Entity, start: int) -> Iterator[tuple[int, OutboxEvent]]:
        topic = waiting_topic(self._options)
        # To the very end: Kafka may answer a commit before readers of committed records see what it holds.
        for message in self._box.scan(topic, self._box.spans_of(topic, start=start, final=True, known=True)):
            letter = letter_in(message)
            if letter is not None and is_of(entity, letter.key):
                yield letter.id.offset, waiting_event(letter.headers, letter.value)

    def _redriven(self, letter: Letter, request: Request, steps: Steps) -> Record:
        whole = letter if request.payload is None else letter.with_payload(request.payload)
        record = steps.again(whole.event())
        headers = [*record.headers, ("tailrace.redriven", str(letter.id))]
        if _edited(letter, request):
            headers.append(("tailrace.edited", "true"))
        return record._replace(headers=headers)

    def _in_front(self, request: Request) -> Entity:
        # By place, and not by the letter's key, which may have been too large for it.
        for entity, state in self.keys.items():
            if state.place == request.position and not state.releasing:
                return entity
        raise ConfigError(f"nothing waits behind letter {request.letter} any more", remedy="See `tailrace dlq list`.")

    def _state(self, entity: Entity, state: Parked | None) -> Record:
        return state_record(self._options, entity, state, time.time_ns() // 1_000_000)

    def _check_age(self) -> None:
        oldest = min(state.since_ms for state in self.keys.values())
        hours = (time.time_ns() // 1_000_000 - oldest) / HOUR_MS
        if hours > self._bounds.age_hours:
            raise ParkingFull(
                f"a key has been parked for {hours:.0f} hours, which is beyond the bound",
                why="All its later events wait.",
                remedy="See `tailrace dlq list`; redrive or discard its letter, or raise dead_letters.park_hours.",
            )
        self._warn_nearly(hours / self._bounds.age_hours, f"a key has been parked for {hours:.0f} hours", "park_hours")

    def _warn_nearly(self, share: float, what: str, bound: str) -> None:
        if share >= NEARLY and bound not in self._warned:
            self._warned.add(bound)
            self._warn(f"{what}: at the bound, dead_letters.{bound}, the pipeline stops")

    def _ensure(self, admin: AdminClient) -> None:
        marks.ensure(self._options, admin)
        there = partition_counts(admin)
        copies, room = self._options.internal_replication, {"max.message.bytes": str(WAITING_BYTES)}
        for spec in (
            TopicSpec(state_topic(self._options), 1, copies, {"cleanup.policy": "compact", **room}),
            TopicSpec(waiting_topic(self._options), 1, copies, {"retention.ms": "-1", "retention.bytes": "-1", **room}),
        ):
            if spec.topic not in there:
                create_topic(admin, spec)
                continue
            found = topic_config(admin, spec.topic)
            unfit = [f"{name}={found.get(name)}" for name, value in spec.config.items() if found.get(name) != value]
            if unfit or there[spec.topic] != 1:
                raise ParkingUnfit(
                    f"the topic {spec.topic} is not fit: {', '.join([f'{there[spec.topic]} partitions', *unfit])}",
                    why="Events that wait would be deleted, or lose their order.",
                    remedy="It needs one partition and "
                    + ", ".join(f"{name}={value}" for name, value in spec.config.items())
                    + ". Delete it if nothing is parked: Tailrace creates it as it should be.",
                )


def _edited(letter: Letter, request: Request) -> bool:
    return request.payload is not None and not letter.is_original(request.payload)


def _in_front(letter: Record) -> Record:
    return letter._replace(headers=[*letter.headers, (FIRST, "first")])
