"""Publishes dead letters again, each with its resolution in the same Kafka transaction.

So a dead letter is published exactly once, however often a redrive is killed and run again: Kafka has both its record
and its resolution, or neither. The transactional id is that of the pipeline with the suffix `.redrive`; for dead
letters of consumers it is their topic with that suffix. Two redrives fence each other, and never the pipeline.
Resolutions are read after the older redrive is fenced, so they are final.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace import failpoints
from tailrace.dlq import resolutions
from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.resolutions import Resolution
from tailrace.errors import (
    Fenced,
    KafkaUnavailable,
    LayoutMismatch,
    OutcomeUnknown,
    Reason,
    Rejected,
    TailraceError,
    TopicRefused,
)
from tailrace.event import Headers, Record
from tailrace.kafka.client import KafkaOptions, error_of, producer_config, require_token, translate, unusable
from tailrace.kafka.rejected_records import CONCERN_A_RECORD
from tailrace.kafka.topic_limits import publish_time
from tailrace.kafka.topic_manager import NameRefused
from tailrace.pipeline.processor import EventProcessor
from tailrace.state.rewind_marker import HEADER as REPLAY

TRANSACTIONAL_SUFFIX = ".redrive"
BATCH_LETTERS = 500
BATCH_BYTES = 8 * 1024 * 1024
"""Limit of one transaction, unless a single dead letter is larger."""
INIT_TIMEOUT = 30.0
COMMIT_TIMEOUT = 75.0
"""Longer than the timeouts of a message and of a transaction: by then Kafka has committed or aborted it."""
ABORT_TIMEOUT = 30.0
ATTEMPTS = 3
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class RedriveItem(NamedTuple):
    """A dead letter, its resolution, and the record to publish; None if it is discarded."""

    letter: DeadLetter
    resolution: Resolution
    record: Record | None = None

    @property
    def size(self) -> int:
        return len(self.letter.value)


class RedriveFailure(NamedTuple):
    """An item that its topic rejects."""

    item: RedriveItem
    error: TailraceError


def pass_again(processor: EventProcessor, letter: DeadLetter, *, edited: bool = False) -> Record:
    """The record that the pipeline makes of the event now; raises Rejected if it still cannot be published."""
    try:
        event = processor.layout.read(letter.row()) if letter.is_row else letter.event()
    except LayoutMismatch as error:
        raise Rejected(Reason.PERMANENT_FAILURE, error.what, remedy=error.remedy) from None
    made = processor.to_record(event)
    return redriven(made._replace(timestamp=publish_time(made.timestamp, _now_ms())), letter, edited=edited)


def publish_again(letter: DeadLetter, *, edited: bool = False) -> Record:
    """The record that a consumer read, unchanged except for its timestamp. It was validated and routed before.

    With its old timestamp, the topic's retention could delete it before the consumer reads it.
    """
    return redriven(letter.record()._replace(timestamp=_now_ms()), letter, edited=edited)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def redriven(made: Record, letter: DeadLetter, *, edited: bool) -> Record:
    """Adds the headers of a redrive, and that of a replay if the replay wrote the dead letter."""
    added: Headers = [("tailrace.redriven", str(letter.id))]
    replay = letter.details.get(REPLAY) if letter.consumer is None else None
    if replay is not None and REPLAY not in dict(made.headers):
        added.append((REPLAY, replay))
    if letter.consumer is not None:
        added.append(("tailrace.redriven.for", letter.consumer))
    if edited:
        added.append(("tailrace.edited", "true"))
    return made._replace(headers=[*made.headers, *added])


class RedrivePublisher:
    """Publishes items in transactions of limited size. Belongs to one thread."""

    def __init__(self, options: KafkaOptions, require: Callable[[list[str]], None]) -> None:
        """`require` creates missing topics or raises an error, as the pipeline does."""
        self._options = options
        self._require = require
        self._failure: tuple[KafkaError, str] | None = None
        self._batch: list[RedriveItem] = []
        self._size = 0

    def open(self) -> None:
        """Fences any other redrive: the resolutions that are read afterwards are final."""
        require_token(self._options)
        own = replace(self._options, pipeline=self._options.pipeline + TRANSACTIONAL_SUFFIX, exactly_once=True)
        try:
            self._producer = Producer(producer_config(own), on_delivery=self._on_failure)
        except KafkaException as error:
            raise unusable(error) from None
        try:
            self._producer.init_transactions(INIT_TIMEOUT)
        except KafkaException as error:
            raise translate(error_of(error), "fencing other redrives") from None

    def add(self, item: RedriveItem) -> tuple[list[RedriveItem], list[RedriveFailure]]:
        """Adds an item. If that fills the batch, sends the items before it; returns what `flush` returns."""
        full = self._batch and (len(self._batch) >= BATCH_LETTERS or self._size + item.size > BATCH_BYTES)
        done = self.flush() if full else ([], [])
        self._batch.append(item)
        self._size += item.size
        return done

    def flush(self) -> tuple[list[RedriveItem], list[RedriveFailure]]:
        """Sends the batch; returns the items that are committed, and those that their topics reject."""
        batch, self._batch, self._size = self._batch, [], 0
        if not batch:
            return [], []
        try:
            self._send(batch)
        except TopicRefused as error:
            if not self._concerns_a_record(error):
                raise
        else:
            return batch, []
        # Kafka rejects a whole record batch for one record, so send each item alone.
        sent: list[RedriveItem] = []
        rejected: list[RedriveFailure] = []
        for item in batch:
            try:
                self._send([item])
                sent.append(item)
            except TopicRefused as error:
                if not self._concerns_a_record(error):
                    raise
                rejected.append(RedriveFailure(item, error))
        return sent, rejected

    def _send(self, batch: list[RedriveItem]) -> None:
        """Sends one transaction; retries it if Kafka requires an abort, as it often does after a rejected record."""
        published = [item.record for item in batch if item.record is not None]
        if published:
            self._require(sorted({record.topic for record in published}))
        for left in reversed(range(ATTEMPTS)):
            try:
                self._transact(published, batch)
                break
            except KafkaException as error:
                why = self._why(error_of(error))
                again = isinstance(why, OutcomeUnknown) and error_of(error).txn_requires_abort()
                aborted = not isinstance(why, Fenced) and self._aborted()
                if not (again and aborted and left):
                    raise why from None
            except BaseException:
                self._aborted()  # mainly for Ctrl-C
                raise
        failpoints.reached(failpoints.REDRIVE_AFTER_COMMIT)

    def _transact(self, published: list[Record], batch: list[RedriveItem]) -> None:
        self._failure = None
        self._producer.begin_transaction()
        failpoints.reached(failpoints.REDRIVE_BEFORE_PRODUCE)
        for record in published:
            self._produce(record)
        for item in batch:
            self._produce(resolutions.record(self._options, item.letter.id, item.resolution))
        failpoints.reached(failpoints.REDRIVE_AFTER_PRODUCE)
        self._commit()

    def _produce(self, record: Record) -> None:
        topic, value, key, headers, timestamp = record
        deadline = time.monotonic() + COMMIT_TIMEOUT
        while True:
            try:
                self._producer.produce(topic, value, key, timestamp=timestamp, headers=headers)
                break
            except KafkaException as error:
                self._failure = self._failure or (error_of(error), topic)
                raise
            except BufferError:
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise self._too_slow() from None

    def _commit(self) -> None:
        deadline = time.monotonic() + COMMIT_TIMEOUT
        while True:
            if self._failure is not None:
                raise KafkaException(self._failure[0])
            try:
                self._producer.commit_transaction(5.0)
                break
            except KafkaException as error:
                if not error_of(error).retriable():
                    raise
            if time.monotonic() > deadline:
                raise self._too_slow()

    def _on_failure(self, error: KafkaError, message: Message) -> None:
        # Purged records are a consequence of a failed transaction, not its cause.
        if error is None or error.code() in _PURGED:
            return
        # The first failure is the cause, unless a later one concerns a record: a gap in the sequence follows from that.
        if self._failure is None or (error.code() in CONCERN_A_RECORD and not self._concerns_a_record()):
            self._failure = (error, str(message.topic()))

    def _concerns_a_record(self, error: TopicRefused | None = None) -> bool:
        """Whether a record or its topic name was rejected, rather than the sender."""
        if isinstance(error, NameRefused):
            return True
        return self._failure is not None and self._failure[0].code() in CONCERN_A_RECORD

    def _why(self, error: KafkaError) -> TailraceError:
        topic = None
        if self._failure is not None and error.code() not in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            error, topic = self._failure
        why = translate(error, "redriving dead letters", topic)
        if isinstance(why, Fenced):
            return Fenced(
                why.what,
                why="Another `dlq redrive` or `dlq discard` of these dead letters was started.",
                remedy="Wait until it ends, then run this command again. It skips resolved dead letters.",
            )
        if isinstance(why, OutcomeUnknown | KafkaUnavailable):
            return type(why)(
                why.what,
                why=why.why,
                remedy="Run it again. It skips resolved dead letters, so nothing is published twice.",
            )
        return why

    def _aborted(self) -> bool:
        """Aborts the open transaction, which holds back readers; returns whether that worked."""
        try:
            self._producer.abort_transaction(ABORT_TIMEOUT)
        except KafkaException:
            return False  # the next redrive or the transaction's timeout aborts it
        return True

    def _too_slow(self) -> KafkaUnavailable:
        return KafkaUnavailable(
            f"no answer within {COMMIT_TIMEOUT:.0f} s while redriving dead letters",
            why="Kafka is unavailable or too slow.",
            remedy="Run it again. It skips resolved dead letters, so nothing is published twice.",
        )
