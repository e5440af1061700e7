"""Dead letters put through the line again: what passes is published, and marked in the same Kafka transaction.

So a letter is published exactly once, however often a redrive is killed and run again: either both its record and its
mark are there, or neither. The transactional id is the pipeline's with `.redrive` behind it (for the letters of
consumers, their topic's): two redrives fence each other, and the pipeline itself is never disturbed. Marks are read
after the older redrive is fenced, so they are final.
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
from tailrace.kafka.client import KafkaOptions, error_of, producer_config, translate, unusable
from tailrace.kafka.rejected_records import CONCERN_A_RECORD
from tailrace.kafka.topic_limits import publish_time
from tailrace.kafka.topic_manager import NameRefused
from tailrace.pipeline.processor import EventProcessor
from tailrace.state.rewind_marker import HEADER as REPLAY

TRANSACTIONAL_SUFFIX = ".redrive"
BATCH_LETTERS = 500
BATCH_BYTES = 8 * 1024 * 1024
"""What one transaction holds at most, unless a single letter is larger."""
INIT_TIMEOUT = 30.0
COMMIT_TIMEOUT = 75.0
"""Longer than a message's and a transaction's timeout: by then Kafka itself has decided."""
ABORT_TIMEOUT = 30.0
ATTEMPTS = 3
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class RedriveItem(NamedTuple):
    """A letter, its mark, and what is published for it: nothing, if it is discarded."""

    letter: DeadLetter
    mark: Resolution
    record: Record | None = None

    @property
    def size(self) -> int:
        return len(self.letter.value)


class RedriveFailure(NamedTuple):
    """A posting that its topic does not take, and why."""

    posting: RedriveItem
    why: TailraceError


def pass_again(processor: EventProcessor, letter: DeadLetter, *, edited: bool = False) -> Record:
    """The record that the pipeline of today makes of the letter's event; Rejected if it still cannot be published."""
    try:
        event = processor.layout.read(letter.row()) if letter.is_row else letter.event()
    except LayoutMismatch as error:
        raise Rejected(Reason.PERMANENT_FAILURE, error.what, remedy=error.remedy) from None
    made = processor.to_record(event)
    return redriven(made._replace(timestamp=publish_time(made.timestamp, _now_ms())), letter, edited=edited)


def publish_again(letter: DeadLetter, *, edited: bool = False) -> Record:
    """The record that a consumer read, as it was: it has been checked and routed before.

    But for its time. With the old one, a topic that is quiet and keeps records for a shorter time than they were set
    aside would delete it again before its consumer is back.
    """
    return redriven(letter.record()._replace(timestamp=_now_ms()), letter, edited=edited)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def redriven(made: Record, letter: DeadLetter, *, edited: bool) -> Record:
    """The record with the headers of a redrive. The letter of a replay keeps the replay's: it was published before."""
    told: Headers = [("tailrace.redriven", str(letter.id))]
    replay = letter.details.get(REPLAY) if letter.consumer is None else None
    if replay is not None and REPLAY not in dict(made.headers):
        told.append((REPLAY, replay))
    if letter.consumer is not None:
        told.append(("tailrace.redriven.for", letter.consumer))
    if edited:
        told.append(("tailrace.edited", "true"))
    return made._replace(headers=[*made.headers, *told])


class RedrivePublisher:
    """Sends postings, a bounded batch a transaction. Belongs to one thread."""

    def __init__(self, options: KafkaOptions, require: Callable[[list[str]], None]) -> None:
        """`require` creates or refuses topics that are missing, as the pipeline does."""
        self._options = options
        self._require = require
        self._refused: tuple[KafkaError, str] | None = None
        self._batch: list[RedriveItem] = []
        self._size = 0

    def open(self) -> None:
        """Takes over from any other redrive: from here on the marks that can be read are final."""
        own = replace(self._options, pipeline=self._options.pipeline + TRANSACTIONAL_SUFFIX, exactly_once=True)
        try:
            self._producer = Producer(producer_config(own), on_delivery=self._on_failure)
        except KafkaException as error:
            raise unusable(error) from None
        try:
            self._producer.init_transactions(INIT_TIMEOUT)
        except KafkaException as error:
            raise translate(error_of(error), "taking over from other redrives") from None

    def add(self, posting: RedriveItem) -> tuple[list[RedriveItem], list[RedriveFailure]]:
        """Takes one; gives those that were sent on this occasion, which may be none yet."""
        full = self._batch and (len(self._batch) >= BATCH_LETTERS or self._size + posting.size > BATCH_BYTES)
        done = self.flush() if full else ([], [])
        self._batch.append(posting)
        self._size += posting.size
        return done

    def flush(self) -> tuple[list[RedriveItem], list[RedriveFailure]]:
        """Sends what was added; gives what is committed, and what its topic refuses."""
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
        # Kafka refuses a whole set of records for one of them. Alone, the others pass.
        sent: list[RedriveItem] = []
        refused: list[RedriveFailure] = []
        for posting in batch:
            try:
                self._send([posting])
                sent.append(posting)
            except TopicRefused as error:
                if not self._concerns_a_record(error):
                    raise
                refused.append(RedriveFailure(posting, error))
        return sent, refused

    def _send(self, batch: list[RedriveItem]) -> None:
        """A transaction that Kafka wants aborted, and that is, may be tried again: one after a refusal often fails."""
        published = [posting.record for posting in batch if posting.record is not None]
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
                self._aborted()  # Ctrl-C, above all
                raise
        failpoints.reached(failpoints.REDRIVE_AFTER_COMMIT)

    def _transact(self, published: list[Record], batch: list[RedriveItem]) -> None:
        self._refused = None
        self._producer.begin_transaction()
        failpoints.reached(failpoints.REDRIVE_BEFORE_PRODUCE)
        for record in published:
            self._produce(record)
        for posting in batch:
            self._produce(resolutions.record(self._options, posting.letter.id, posting.mark))
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
                self._refused = self._refused or (error_of(error), topic)
                raise
            except BufferError:
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise self._too_slow() from None

    def _commit(self) -> None:
        deadline = time.monotonic() + COMMIT_TIMEOUT
        while True:
            if self._refused is not None:
                raise KafkaException(self._refused[0])
            try:
                self._producer.commit_transaction(5.0)
                break
            except KafkaException as error:
                if not error_of(error).retriable():
                    raise
            if time.monotonic() > deadline:
                raise self._too_slow()

    def _on_failure(self, error: KafkaError, message: Message) -> None:
        # Records that were purged failed because the transaction did, not it by them.
        if error is None or error.code() in _PURGED:
            return
        # The first failure is the cause, unless it only followed from one that concerns a record: a gap, for instance.
        if self._refused is None or (error.code() in CONCERN_A_RECORD and not self._concerns_a_record()):
            self._refused = (error, str(message.topic()))

    def _concerns_a_record(self, error: TopicRefused | None = None) -> bool:
        """Whether something was refused for what it is, and not for who sends it."""
        if isinstance(error, NameRefused):
            return True
        return self._refused is not None and self._refused[0].code() in CONCERN_A_RECORD

    def _why(self, error: KafkaError) -> TailraceError:
        topic = None
        if self._refused is not None and error.code() not in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            error, topic = self._refused
        why = translate(error, "redriving dead letters", topic)
        if isinstance(why, Fenced):
            return Fenced(
                why.what,
                why="Another `dlq redrive` or `dlq discard` of these letters began meanwhile.",
                remedy="Let it end, then run this one again: letters that are marked are left out.",
            )
        if isinstance(why, OutcomeUnknown | KafkaUnavailable):
            return type(why)(
                why.what,
                why=why.why,
                remedy="Run it again: letters that are marked are left out, so nothing is published twice.",
            )
        return why

    def _aborted(self) -> bool:
        """Readers stop at an open transaction until it is decided: ends it now if that is still ours to do."""
        try:
            self._producer.abort_transaction(ABORT_TIMEOUT)
        except KafkaException:
            return False  # then the next redrive ends it, or its timeout
        return True

    def _too_slow(self) -> KafkaUnavailable:
        return KafkaUnavailable(
            f"no answer within {COMMIT_TIMEOUT:.0f} s while redriving dead letters",
            why="Kafka is away, or too slow.",
            remedy="Run it again: letters that are marked are left out, so nothing is published twice.",
        )
