"""Handles records that a topic rejects: finds those that it will never take, or sends smaller batches.

Kafka rejects a whole record batch for one of its records, or because all of them together are too large, so records
that failed are only suspects. Each suspect that may be too large is sent alone, in a transaction that is always
aborted. What fails again is rejected for good, and the next attempt dead-letters it. A rejection that concerns the
topic and not a record (rights, policy) stops the pipeline. So does that of a dead letter, which has nowhere else to go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.errors import RecordsRefused, TopicLimitsChanged, TopicRefused
from tailrace.event import Record, redriven_position
from tailrace.kafka.client import KafkaOptions, batch_size, error_of, producer_config, translate
from tailrace.kafka.topic_manager import TopicManager

CONCERN_A_RECORD = {
    KafkaError.MSG_SIZE_TOO_LARGE: "it is larger than the topic takes (max.message.bytes)",
    KafkaError.RECORD_LIST_TOO_LARGE: "it is larger than a segment of the topic (segment.bytes)",
    KafkaError.INVALID_RECORD: "it lacks what the topic demands, such as a key on a compacted topic",
}
TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
"""Said of a whole batch, which may be rejected although each of its records is taken alone."""
MAX_SUSPECTS = 10_000
"""As many as a batch may hold by default."""
INIT_TIMEOUT = 30.0
"""Fencing waits until the coordinator has finished the old producer's transaction."""
PROBE_TIMEOUT = 30.0
FIND_SECONDS = 20.0
"""How long one search for rejected records may take."""
BATCH_HEADER_BYTES = 61 + 30
"""A batch has a header of 61 bytes, and a record's lengths, offsets and times take a few more."""
HEADER_BYTES = 10
"""Two lengths."""


class Rejections:
    """The records of one producer that failed, and what can be done about it."""

    def __init__(self, options: KafkaOptions, topics: TopicManager) -> None:
        self.first: tuple[KafkaError, str] | None = None
        """The first failure, which is the cause of the others, and its topic."""
        self.batch_bytes = min(batch_size(options), topics.limits.batch_bytes)
        self.age_ms = topics.limits.age_ms
        self._options = options
        self._topics = topics
        self._suspects: set[int] = set()
        self._for_size = True
        """Whether all suspects were rejected for their size only."""

    def add(self, error: KafkaError, topic: str | None, key: object, value: object) -> None:
        """Notes a failed record. Kafka gives it back without its headers; topic, key and value identify it."""
        self.first = self.first or (error, str(topic))
        code = error.code()
        if code in CONCERN_A_RECORD and len(self._suspects) < MAX_SUSPECTS:
            self._suspects.add(hash((topic, key, value)))
            self._for_size = self._for_size and code in TOO_LARGE

    def require_fit(self, what: str) -> None:
        """Raises TopicLimitsChanged if the topics take less than the producer was built for."""
        limits = self._topics.limits
        if limits.batch_bytes < self.batch_bytes or limits.age_ms < self.age_ms:
            raise TopicLimitsChanged(
                what,
                why=f"Batches of {limits.batch_bytes:,} bytes are sent from now on, not of {self.batch_bytes:,}."
                if limits.batch_bytes < self.batch_bytes
                else f"Records older than {limits.age_ms / 1000:.0f} s get the time of publishing from now on.",
                remedy="Tailrace builds a new producer by itself. No event was skipped.",
            )

    def raise_remedy(self, records: list[Record], why: TopicRefused, going: Callable[[], bool]) -> None:
        """Raises the error that lets the next attempt pass, if there is one.

        That is TopicLimitsChanged for smaller batches or other timestamps, or RecordsRefused, which names the records
        to dead-letter. The search for them stops when `going` returns False.
        """
        if self.first is None:
            return
        code, topic = self.first[0].code(), self.first[1]
        limits = self._topics.limits
        if code in TOO_LARGE or code == KafkaError.INVALID_TIMESTAMP:
            self._topics.learn([topic])
            self.require_fit(why.what)
        if code == KafkaError.INVALID_TIMESTAMP and limits.distrust_times():
            self.require_fit(why.what)
        found = self._find(records, going)
        if found:
            raise RecordsRefused(why.what, found) from None
        alone = any(self._is_suspect(record) and record_bytes(record) > self.batch_bytes for record in records)
        # A record larger than a batch travels alone: only a dead letter is left here, which has nowhere else to go.
        if code in TOO_LARGE and not alone and limits.shrink(self.batch_bytes):
            self.require_fit(why.what)

    def _is_suspect(self, record: Record) -> bool:
        return hash((record.topic, record.key, record.value)) in self._suspects

    def _find(self, records: list[Record], going: Callable[[], bool]) -> dict[str, str]:
        """The records that are rejected even alone, by position, with the reason."""
        limits = self._topics.limits
        # Other records failed only because the suspects did. In a transaction, which is aborted, they can be probed as
        # well: then all that are too large are found at once.
        others = self.first[1] if self.first and self._suspects and self._options.exactly_once else None
        suspects = [
            record
            for record in records
            if (self._is_suspect(record) or (self._for_size and record.topic == others))
            and record.topic != self._options.dead_letter_topic
            and (not self._for_size or record_bytes(record) > limits.record_bytes(record.topic, self.batch_bytes))
        ]
        suspects.sort(key=self._is_suspect, reverse=True)
        deadline = time.monotonic() + FIND_SECONDS

        def producer() -> Producer:
            made = Producer(producer_config(self._options))
            if self._options.exactly_once:
                made.init_transactions(INIT_TIMEOUT)
            return made

        def in_time() -> bool:
            return going() and time.monotonic() < deadline

        try:
            return find_rejected(producer, suspects, transactional=self._options.exactly_once, going=in_time)
        except KafkaException as error:
            raise translate(error_of(error), "finding the record that a topic rejects") from None


def record_bytes(record: Record) -> int:
    """The uncompressed size, at most, of a record batch with only this record."""
    headers = sum(
        HEADER_BYTES + len(name.encode()) + len(value.encode() if isinstance(value, str) else value or b"")
        for name, value in record.headers
    )
    return BATCH_HEADER_BYTES + len(record.value or b"") + len(record.key or b"") + headers


def find_rejected(
    producers: Callable[[], Producer], suspects: Iterable[Record], *, transactional: bool, going: Callable[[], bool]
) -> dict[str, str]:
    """Sends each suspect alone and returns those that are rejected again, by position, with the reason.

    After a rejection a producer has gaps in its sequence and fails for that, so each is followed by a new one. Once
    something is found, the search ends early when `going` returns False or Kafka fails: the next attempt finds the
    others.
    """
    found: dict[str, str] = {}
    producer: Producer | None = None
    for record in suspects:
        position = _position(record)
        if position is None:
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
            why = f"the topic {record.topic} refuses the record for good: {CONCERN_A_RECORD[code]}"
            found.update(_named(record, position, why))
    return found


def positions_of(records: Iterable[Record], topic: str, why: str) -> dict[str, str]:
    """The positions of all events that go to a topic, with the reason why they cannot."""
    found: dict[str, str] = {}
    for record in records:
        position = _position(record) if record.topic == topic else None
        if position is not None:
            found.update(_named(record, position, why))
    return found


def _named(record: Record, position: str, why: str) -> dict[str, str]:
    redriven = any(name == "tailrace.redriven" for name, _ in record.headers)
    return {position: why, redriven_position(position): why} if redriven else {position: why}


def _position(record: Record) -> str | None:
    """The position in the log; every record of an event has it in a header, and no other record has."""
    return next((str(value) for name, value in record.headers if name == "position"), None)


def _probe(producer: Producer, record: Record, *, transactional: bool) -> int | None:
    """The error code with which the record is rejected alone, or None."""
    answers: list[int] = []
    topic, value, key, headers, _ = record
    now_ms = time.time_ns() // 1_000_000  # whether the topic takes the record's own time does not matter here

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
