"""Parks keys behind a dead-lettered event, and keeps their events in order until it is resolved.

The pipeline itself writes everything, in the transactions of its batches, because only it knows the order. Requests of
people are carried out here between two batches, a limited part at a time, so that other keys go on. The dead letter is
redriven or discarded; then everything that waited behind it is processed, in order, before any newer event of the key
(`release.py`). The state on the topic says how far that came, so a start after a crash goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.dlq import resolutions
from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.parked_keys import (
    Entity,
    ParkedKey,
    ParkingRequest,
    ParkingState,
    answered,
    entity_of,
    given_up,
    state_record,
    state_topic,
    waiting_record,
    waiting_topic,
)
from tailrace.dlq.reader import DeadLetterReader, unknown_topic
from tailrace.dlq.redrive import redriven
from tailrace.dlq.release import ReleaseBatch, Releaser, with_first_header
from tailrace.dlq.resolutions import Resolution
from tailrace.dlq.waiting_topic import WaitingEvents
from tailrace.errors import ConfigError, ParkingFull, ParkingUnfit, Rejected, TopicMissing
from tailrace.event import OutboxEvent, Record
from tailrace.kafka.client import KafkaOptions, consumer_config
from tailrace.kafka.reader import RangeReader
from tailrace.kafka.topics import create_topic, partition_counts, topic_config
from tailrace.pipeline.processor import EventProcessor
from tailrace.routing.specs import TopicSpec

POLL_SECONDS = 0.5
"""How often requests are read, only while a key is parked."""
LOOKS = 20
"""How many thousand records of the state topic are read at a time."""
REQUESTS = 500
NEAR = 20_000
"""How many requests a turn carries out, and how far apart their dead letters may be: one read gets them all."""
KEY_BYTES = 64 * 1024 * 1024
"""Limit for all parked keys together. Keys of ordinary size reach `ParkingLimits.keys` long before."""
NEARLY = 0.8
"""Part of a limit at which a warning is logged."""
WAITING_BYTES = 16 * 1024 * 1024
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ParkingLimits:
    keys: int = 10_000
    age_hours: float = 168


class Parking:
    """The parked keys of one pipeline. Belongs to the pipeline's thread; each attempt creates a new one."""

    def __init__(
        self,
        options: KafkaOptions,
        admin: AdminClient,
        bounds: ParkingLimits,
        *,
        warn: Callable[[str], None],
        parks: bool = True,
    ) -> None:
        """Without `parks` no further key is parked; keys parked under earlier settings are kept and released."""
        self._parks = parks
        self._options = options
        self._admin = admin
        self._bounds = bounds
        self._warn = warn
        self._warned: set[str] = set()
        self._reader = DeadLetterReader(options)
        self._state = ParkingState()
        self._tail: Consumer | None = None
        self._polled = 0.0
        self.keys: dict[Entity, ParkedKey] = self._state.keys
        self._releasing = Releaser(options, WaitingEvents(options, admin), self.keys)

    def open(self) -> None:
        """Reads the parked keys. Call it after the older instance is fenced, when no other instance changes them."""
        self._ensure(self._admin)
        topic = state_topic(self._options)
        with RangeReader(self._options, "dlq") as reader:
            try:
                ranges = reader.ranges(topic, include_open=True, must_exist=True)
            except TopicMissing:
                raise unknown_topic(topic) from None
            for message in reader.records(topic, ranges):
                self._state.read(message.key(), message.value())
        if self._parks or self.keys:
            require_kept(self._options, topic_config(self._admin, self._options.dead_letter_topic), self._bounds)
        end = self._releasing.open()
        if any(state.released > end for state in self.keys.values()):
            raise ParkingUnfit(
                f"{waiting_topic(self._options)} ends at {end}, before the offsets of events that waited there",
                why="It was deleted and re-created. The events that waited there are gone.",
                remedy="Restore it from a backup, or replay the events of the parked keys from the outbox table.",
            )
        self._tail = Consumer(consumer_config(self._options, f"tailrace-parking-{self._options.pipeline}"))
        self._tail.assign([TopicPartition(topic, 0, ranges[0].end if ranges else 0)])

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None
        self._releasing.close()

    def wait(self, event: OutboxEvent) -> Record:
        """The record of an event whose key is parked."""
        return waiting_record(self._options, event)

    def park(self, event: OutboxEvent, letter: Record) -> list[Record]:
        """Parks the event's key behind its dead letter, and adds it to `keys`. Returns the records to publish.

        These are only the dead letter if the event has no key, or if its key is parked already.
        """
        entity = entity_of(event)
        if entity is None or entity in self.keys:
            return [letter]
        if len(self.keys) >= self._bounds.keys:
            raise ParkingFull(
                f"{len(self.keys):,} keys are parked, which is the limit",
                why="All later events of a parked key wait.",
                remedy="See `tailrace dlq list`. Redrive or discard dead letters, or raise dead_letters.park_keys.",
            )
        if self._releasing.key_bytes + len(event.key or b"") > KEY_BYTES:
            raise ParkingFull(
                f"the {len(self.keys):,} parked keys have more than {KEY_BYTES:,} bytes together, which is the limit",
                why="They are kept in memory.",
                remedy="See `tailrace dlq list`. Redrive or discard dead letters.",
            )
        self._warn_nearly(len(self.keys) / self._bounds.keys, f"{len(self.keys):,} keys are parked", "park_keys")
        now = time.time_ns() // 1_000_000
        state = ParkedKey(now, event.position, self._releasing.bound, event=event.id)
        self._releasing.note(entity, state)
        return [with_first_header(letter), state_record(self._options, entity, state, now)]

    def due(self) -> bool:
        """Whether there is something to release. Reads requests now and then; ParkingFull if a key is too old."""
        if not self.keys:
            # Requests for keys that are no longer parked need an answer, too.
            return bool(self._state.requests or self._state.gives_up)
        now = time.monotonic()
        looked = now - self._polled >= POLL_SECONDS
        if looked:
            self._polled = now
            self._look_for_requests()
        due = bool(self._state.requests or self._state.gives_up) or self._releasing.is_busy
        if looked and not due:
            self._check_age()  # requests come first: they may release the key
        return due

    def _look_for_requests(self) -> None:
        """Reads new records of the state topic, up to a limit: during a release most of them are our own."""
        for _ in range(LOOKS):
            messages = self._tail.consume(num_messages=1000, timeout=0) if self._tail is not None else []
            for message in messages:
                if message.error() is None:
                    self._state.read_request(message.key(), message.value())
            if len(messages) < 1000:
                return

    def release(self, processor: EventProcessor, limit: int) -> Iterator[list[Record]]:
        """One turn: yields the records of each transaction, a limited part of all that is to be released.

        The caller commits a transaction before it takes the next one, and reads no event in between.
        """
        yield from self._give_up(processor, limit)
        yield from self._answers(processor, limit)
        yield from self._releasing.turn(processor, limit)

    def _give_up(self, processor: EventProcessor, limit: int) -> Iterator[list[Record]]:
        """Carries out requests for keys whose dead letter is gone: records that the first event is discarded."""
        part = ReleaseBatch()
        for entity, request in list(self._state.gives_up.items()):
            if part.is_full(processor, limit):
                yield from self._releasing.committed(part)
                part = ReleaseBatch()
            now = time.time_ns() // 1_000_000
            state = self.keys.get(entity)
            part.add(given_up(self._options, entity, now))
            if state is not None and not state.releasing and state.place == request.position:
                done = Resolution("discarded", now, request.by, request.why, position=state.place)
                part.add(resolutions.given_up(self._options, state.event or state.place, done))
                part.states[entity] = replace(state, releasing=True)
        yield from self._releasing.committed(part)
        self._state.gives_up.clear()

    def _answers(self, processor: EventProcessor, limit: int) -> Iterator[list[Record]]:
        """Carries out requests to redrive or discard dead letters; what waits behind them is released afterwards."""
        requests = _neighbours(self._state.requests)
        if not requests:
            return
        # By position, because a dead letter may lack its key if that was too large.
        first_events = {state.place: entity for entity, state in self.keys.items() if not state.releasing}
        part = ReleaseBatch()
        answered_now: list[DeadLetterId] = []
        for request, letter in self._with_letters(requests):
            if part.is_full(processor, limit):
                yield from self._releasing.committed(part)
                part = ReleaseBatch()
                self._forget(answered_now)
            self._answer(request, letter, first_events, part, processor)
            answered_now.append(request.letter)
        yield from self._releasing.committed(part)
        self._forget(answered_now)

    def _with_letters(
        self, requests: dict[DeadLetterId, ParkingRequest]
    ) -> Iterator[tuple[ParkingRequest, DeadLetter | None]]:
        """Each request with its dead letter, or None if that is gone."""
        left = dict(requests)
        with closing(self._reader.near(requests.keys())) as letters:
            for letter in letters:
                yield left.pop(letter.id), letter
        yield from ((request, None) for request in left.values())

    def _forget(self, answered_now: list[DeadLetterId]) -> None:
        for letter in answered_now:
            self._state.requests.pop(letter, None)
        answered_now.clear()

    def _answer(
        self,
        request: ParkingRequest,
        letter: DeadLetter | None,
        first_events: dict[str, Entity],
        part: ReleaseBatch,
        processor: EventProcessor,
    ) -> None:
        now = time.time_ns() // 1_000_000
        try:
            entity = first_events.get(request.position)
            if entity is None:
                raise _refusal(f"no events wait behind dead letter {request.letter} any more")
            if letter is None:
                raise _refusal(f"dead letter {request.letter} no longer exists")
            if letter.position != request.position:
                raise _refusal(f"dead letter {letter.id} is not the requested one: the topic was re-created")
            published = [] if request.action == "discard" else [self._redriven(letter, request, processor)]
        except (ConfigError, Rejected) as refusal:
            failure = refusal.explanation if isinstance(refusal, Rejected) else refusal.what
            part.add(*answered(self._options, request, failure, now))
            return
        done = Resolution(
            action="redriven" if published else "discarded",
            at_ms=now,
            by=request.by,
            why=request.why,
            topic=published[0].topic if published else "",
            edited=_edited(letter, request),
            position=letter.position,
        )
        part.add(
            *published, resolutions.record(self._options, letter.id, done), *answered(self._options, request, None, now)
        )
        part.states[entity] = replace(self.keys[entity], releasing=True)
        del first_events[request.position]

    def _redriven(self, letter: DeadLetter, request: ParkingRequest, processor: EventProcessor) -> Record:
        whole = letter if request.payload is None else letter.with_payload(request.payload)
        return redriven(processor.record_of_redriven(whole.event()), letter, edited=_edited(letter, request))

    def _check_age(self) -> None:
        oldest = min(state.since_ms for state in self.keys.values())
        hours = (time.time_ns() // 1_000_000 - oldest) / HOUR_MS
        if hours > self._bounds.age_hours:
            raise ParkingFull(
                f"a key has been parked for {hours:.0f} hours, which is longer than the limit",
                why="All its later events wait.",
                remedy="See `tailrace dlq parked`. Redrive or discard its dead letter (with discard --parked-key if it "
                "is gone), or raise dead_letters.park_hours.",
            )
        self._warn_nearly(hours / self._bounds.age_hours, f"a key has been parked for {hours:.0f} hours", "park_hours")

    def _warn_nearly(self, share: float, what: str, bound: str) -> None:
        if share >= NEARLY and bound not in self._warned:
            self._warned.add(bound)
            self._warn(f"{what}; the pipeline stops at the limit, dead_letters.{bound}")

    def _ensure(self, admin: AdminClient) -> None:
        resolutions.ensure(self._options, admin)
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
                    f"the topic {spec.topic} is set wrongly: {', '.join([f'{there[spec.topic]} partitions', *unfit])}",
                    why="Kafka could delete waiting events, or their order could be lost.",
                    remedy="It needs one partition and "
                    + ", ".join(f"{name}={value}" for name, value in spec.config.items())
                    + ". If no key is parked, delete it: Tailrace creates it correctly.",
                )


def require_kept(options: KafkaOptions, config: Mapping[str, str], bounds: ParkingLimits) -> None:
    """Raises ParkingUnfit if the topic could delete a dead letter while its key is still parked."""
    kept_ms = int(config.get("retention.ms", "-1"))
    needed_ms = round(bounds.age_hours * HOUR_MS)
    if 0 <= kept_ms < needed_ms:
        topic = options.dead_letter_topic
        raise ParkingUnfit(
            f"the dead-letter topic {topic} keeps records for {kept_ms / HOUR_MS:g} hours, but a key may be "
            f"parked for {bounds.age_hours:g} (dead_letters.park_hours)",
            why="Without its dead letter, the first event of a parked key cannot be redriven.",
            remedy=f"kafka-configs --bootstrap-server {options.bootstrap} --alter --entity-type topics --entity-name "
            f"{topic} --add-config retention.ms={needed_ms}; or lower dead_letters.park_hours.",
        )


def _neighbours(requests: dict[DeadLetterId, ParkingRequest]) -> dict[DeadLetterId, ParkingRequest]:
    """The first requests whose dead letters are close to each other, so that one read finds them."""
    names = sorted(requests)
    near = [name for name in names[:REQUESTS] if name[0] == names[0][0] and name[1] - names[0][1] < NEAR]
    return {name: requests[name] for name in near}


def _refusal(what: str) -> ConfigError:
    return ConfigError(what, remedy="See `tailrace dlq list`.")


def _edited(letter: DeadLetter, request: ParkingRequest) -> bool:
    return request.payload is not None and not letter.is_original(request.payload)
