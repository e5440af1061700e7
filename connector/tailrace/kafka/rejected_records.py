"""Records that a topic will never take: too large for it, or without the key it wants. Which of a batch they are.

Kafka refuses a whole record batch for one of its records, or because all of them together are too large. So those that
failed are only suspects. Each that may be too large is then sent alone, in a transaction that is aborted in any case:
what fails again is guilty. A refusal that concerns the topic and not a record (rights, policy) has nothing to do with
this: it stops the pipeline. So does the refusal of a dead letter, which has nowhere else to go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.event import Record, redriven_position
from tailrace.kafka.client import error_of

CONCERN_A_RECORD = {
    KafkaError.MSG_SIZE_TOO_LARGE: "it is larger than the topic takes (max.message.bytes)",
    KafkaError.RECORD_LIST_TOO_LARGE: "it is larger than a segment of the topic (segment.bytes)",
    KafkaError.INVALID_RECORD: "it lacks what the topic demands, such as a key on a compacted topic",
}
TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
"""What is said of a whole batch, which may be refused though each of its records is taken alone."""
MAX_SUSPECTS = 10_000
"""As many as a batch may hold by default."""
PROBE_TIMEOUT = 30.0
BATCH_HEADER_BYTES = 61 + 30
"""A batch has a header of 61 bytes, and a record's lengths, offsets and times take a few more."""
HEADER_BYTES = 10
"""Two lengths."""


class Suspects:
    """The records of one batch that came back refused: without their headers, but topic, key and value tell."""

    def __init__(self) -> None:
        self._marks: set[int] = set()
        self.for_size = True
        """Whether all of them were refused for nothing but their size."""

    def __bool__(self) -> bool:
        return bool(self._marks)

    def __contains__(self, record: Record) -> bool:
        return hash((record.topic, record.key, record.value)) in self._marks

    def add(self, error: KafkaError, topic: str | None, key: object, value: object) -> None:
        code = error.code()
        if code in CONCERN_A_RECORD and len(self._marks) < MAX_SUSPECTS:
            self._marks.add(hash((topic, key, value)))
            self.for_size = self.for_size and code in TOO_LARGE


def record_bytes(record: Record) -> int:
    """What a record batch with only this record has at most, uncompressed."""
    headers = sum(
        HEADER_BYTES + len(name.encode()) + len(value.encode() if isinstance(value, str) else value or b"")
        for name, value in record.headers
    )
    return BATCH_HEADER_BYTES + len(record.value or b"") + len(record.key or b"") + headers


def find_rejected(
    producers: Callable[[], Producer], suspects: Iterable[Record], *, transactional: bool, going: Callable[[], bool]
) -> dict[str, str]:
    """Why those of the suspects that are refused even alone are refused. Sends them; nobody gets to see them.

    After a refusal a producer fails for other reasons, too: each is followed by a new one. Once something is found,
    this ends early when it is not `going` any more, or Kafka fails: the next attempt finds the others.
    """
    found: dict[str, str] = {}
    producer: Producer | None = None
    for record in suspects:
        place = _place(record)
        if place is None:
            continue
        if found and not going():
            break
        try:
            producer = producer or producers()
            code = _probe(producer, record, transactional=transactional)
        except KafkaException:
            if found:
                break
            raise
        if code is not None:
            producer = None
            found.update(
                _named(record, place, f"the topic {record.topic} refuses the record for good: {CONCERN_A_RECORD[code]}")
            )
    return found


def places_of(records: Iterable[Record], topic: str, why: str) -> dict[str, str]:
    """The places of all events that go to a topic, with the reason why they cannot."""
    found: dict[str, str] = {}
    for record in records:
        place = _place(record) if record.topic == topic else None
        if place is not None:
            found.update(_named(record, place, why))
    return found


def _named(record: Record, place: str, why: str) -> dict[str, str]:
    redriven = any(name == "tailrace.redriven" for name, _ in record.headers)
    return {place: why, redriven_position(place): why} if redriven else {place: why}


def _place(record: Record) -> str | None:
    """Its place in the log, which every record of an event carries, and no other."""
    return next((str(value) for name, value in record.headers if name == "position"), None)


def _probe(producer: Producer, record: Record, *, transactional: bool) -> int | None:
    """The code with which the record is refused alone, or None."""
    answers: list[int] = []
    topic, value, key, headers, _ = record
    now_ms = time.time_ns() // 1_000_000  # whether the topic takes the record's own time is another question

    def answered(error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() in CONCERN_A_RECORD:
            answers.append(error.code())

    if transactional:
        producer.begin_transaction()
    try:
        producer.produce(topic, value, key, timestamp=now_ms, headers=headers, on_delivery=answered)
        producer.flush(PROBE_TIMEOUT)
    except KafkaException as error:
        if error_of(error).code() not in CONCERN_A_RECORD:
            raise
        answers.append(error_of(error).code())
    if transactional:
        producer.abort_transaction(PROBE_TIMEOUT)
    return answers[0] if answers else None
