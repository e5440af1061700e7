"""Events that waited behind parked keys are released once and in order, in limited turns."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.dlq import release
from tailrace.dlq.parked_keys import Entity, ParkedKey, ParkingState, entity_of, state_topic, waiting_record
from tailrace.dlq.release import Releaser
from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent, Record
from tailrace.kafka.client import KafkaOptions

OPTIONS = KafkaOptions("localhost:1", "shop")
LIMIT = 5


class Waited:
    """A record as a consumer returns it."""

    def __init__(self, record: Record, offset: int) -> None:
        self._record, self._offset = record, offset

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> list[tuple[str, bytes]]:
        return [(name, value.encode() if isinstance(value, str) else value or b"") for name, value in self._record[3]]

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._record.timestamp


class Topic:
    """The waiting topic in memory, with gaps for transaction markers."""

    def __init__(self) -> None:
        self.records: list[Waited] = []
        self.reads = self.position = self._end = 0

    def append(self, record: Record) -> None:
        self.records.append(Waited(record, self._end))
        self._end += 2

    def end(self) -> int:
        return self._end

    def seek(self, offset: int) -> None:
        self.position = offset

    def read(self) -> list[Any]:
        found = [each for each in self.records if each.offset() >= self.position][:3]
        self.position = found[-1].offset() + 2 if found else self._end
        self.reads += len(found)
        return found

    def pause(self) -> None: ...


class Processor:
    park_on = frozenset({Reason.SCHEMA_VALIDATION_FAILED})
    batch_bytes = 1_000_000

    def record_of_waiting(self, event: OutboxEvent) -> Record:
        if event.payload == b"bad":
            raise Rejected(Reason.SCHEMA_VALIDATION_FAILED, "bad")
        return Record("out", event.id.encode(), event.key, [], 0)

    def dead_letter_of(self, event: OutboxEvent, rejected: Rejected) -> Record:
        return Record("letters", event.id.encode(), event.key, [], 0)


class Pipeline:
    """A pipeline with parked keys, and the state that Kafka keeps if the process is killed."""

    def __init__(self) -> None:
        self.topic, self.durable, self.out = (
            Topic(),
            ParkingState(),
            defaultdict[bytes | None, list[bytes | None]](list),
        )
        self.written = defaultdict[bytes | None, list[bytes]](list)
        self.letters: list[bytes | None] = []
        self.count = 0
        self.start()

    def start(self) -> None:
        self.keys: dict[Entity, ParkedKey] = dict(self.durable.keys)
        self.releasing = Releaser(OPTIONS, self.topic, self.keys)  # type: ignore[arg-type]
        self.releasing.open()

    def insert(self, key: bytes, payload: bytes) -> None:
        self.count += 1
        event = OutboxEvent(str(self.count), "T", "order", key, payload, None, f"0/{self.count}:0", 0, [])
        self.written[key].append(event.id.encode())
        entity = entity_of(event)
        assert entity is not None
        if entity in self.keys:
            self.topic.append(waiting_record(OPTIONS, event))
        elif payload == b"bad":
            self.letters.append(event.id.encode())
            self.releasing.note(entity, ParkedKey(0, event.position, self.releasing.bound))
            self.durable.keys[entity] = self.keys[entity]
        else:
            self.out[key].append(event.id.encode())

    def fill(self, count: int) -> None:
        for _ in range(count):
            for key in (b"a", b"b", b"c"):
                self.insert(key, b"good")

    def redrive(self, key: bytes) -> None:
        """Publishes the first event, so that those behind it can be released."""
        state = self.keys.get(("order", key))
        if state is not None and not state.releasing:
            self.out[key].append(state.place[2:-2].encode())
            released = ParkedKey(state.since_ms, state.place, state.released, releasing=True)
            self.releasing.note(("order", key), released)
            self.durable.keys["order", key] = released

    def turn(self, transactions: int = 1_000_000) -> None:
        """One turn; the pipeline is killed and restarted if it takes more transactions than that."""
        for number, records in enumerate(self.releasing.turn(Processor(), LIMIT)):
            if number >= transactions:
                self.start()
                return
            assert len(records) <= LIMIT + 1
            for record in records:
                if record.topic == "out":
                    self.out[record.key].append(record.value)
                elif record.topic == state_topic(OPTIONS):
                    self.durable.read(record.key, record.value)
                else:
                    self.letters.append(record.value)

    def settle(self) -> None:
        for _ in range(1000):
            if not self.keys:
                return
            for _, key in list(self.keys):
                self.redrive(key)
            self.turn()
        raise AssertionError("it never comes to an end")


KEYS = st.sampled_from([b"a", b"b", b"c"])
DEEDS = st.one_of(
    st.tuples(st.just("insert"), KEYS, st.just(b"bad")),
    st.tuples(st.just("fill"), st.integers(1, 4)),
    st.tuples(st.just("redrive"), KEYS),
    st.tuples(st.just("turn")),
    st.tuples(st.just("turn"), st.integers(0, 2)),
)
PARKED = [("insert", key, b"bad") for key in (b"a", b"b", b"c")]
REDRIVEN = [("redrive", key) for key in (b"a", b"b", b"c")]


@pytest.mark.parametrize("seconds", [0.0, 10.0])
@settings(max_examples=200)
@example(deeds=[*PARKED, ("fill", 3), *REDRIVEN, ("turn", 1), ("turn",)])
@example(deeds=[*PARKED, ("fill", 3), REDRIVEN[0], ("turn",), ("turn",), *REDRIVEN, ("turn",)])
@given(deeds=st.lists(DEEDS, max_size=40))
def test_each_event_is_published_once_and_in_order(deeds: list[tuple[Any, ...]], seconds: float) -> None:
    """Events, requests, turns and kills in any order, with turns as short as possible and with very long ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "TURN_SECONDS", seconds)
        pipeline = Pipeline()
        for name, *arguments in deeds:
            getattr(pipeline, name)(*arguments)
        pipeline.settle()
    assert pipeline.durable.keys == {}
    assert len(pipeline.letters) == len(set(pipeline.letters))
    assert pipeline.out == pipeline.written


def test_keys_that_are_released_together_need_one_pass() -> None:
    pipeline = Pipeline()
    names = [str(number).encode() for number in range(100)]
    for payload in (b"bad", *[b"good"] * 10):
        for name in names:
            pipeline.insert(name, payload)
    for name in names:
        pipeline.redrive(name)
    pipeline.settle()
    assert pipeline.topic.reads == len(pipeline.topic.records) == 1000


def test_a_pass_ends_even_if_events_arrive_as_fast_as_they_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release, "TURN_SECONDS", 0.0)
    pipeline = Pipeline()
    for payload in (b"bad", *[b"good"] * 50):
        pipeline.insert(b"a", payload)
    pipeline.redrive(b"a")
    turns = 0
    while pipeline.keys:
        pipeline.turn()
        turns += 1
        assert turns < 100
        for _ in range(2 * LIMIT):
            pipeline.insert(b"a", b"good")
    assert pipeline.out == pipeline.written
