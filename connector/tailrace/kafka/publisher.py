"""The publisher: one thread and one producer that write each batch in one Kafka transaction.

The order of the steps is the guarantee. On start: fence the old producer, then read the stored position. Per batch:
write events, dead letters and the position in one transaction (I5); only after its commit does the position count as
stored. Anything but a clean commit ends this publisher with an error. The next one reads on the offsets topic what
happened; no batch is ever sent again without that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace import failpoints
from tailrace.errors import (
    Fenced,
    KafkaUnavailable,
    OutcomeUnknown,
    RecordsRefused,
    TailraceError,
    TopicMissing,
    TopicRefused,
)
from tailrace.event import Record
from tailrace.kafka.client import (
    TRANSACTION_TIMEOUT_MS,
    KafkaOptions,
    error_of,
    producer_config,
    require_token,
    translate,
    unusable,
)
from tailrace.kafka.rejected_records import INIT_TIMEOUT, Rejections, positions_of
from tailrace.kafka.topic_manager import NameRefused, TopicManager
from tailrace.pipeline.batch import Batch
from tailrace.pipeline.recorder import NullRecorder, Recorder
from tailrace.positions.base import Position
from tailrace.wakeup import Wakeup

COMMIT_TIMEOUT = 75.0
"""Longer than the timeouts of a message and of a transaction: by then Kafka has committed or aborted it."""
MARKER_SECONDS = 0.004
"""How long a broker takes to write the markers of a transaction, nearly always."""
SMALL_BATCH = 1000
"""Sending a larger batch takes longer than that anyway."""
COMMIT_STEP = 0.5
"""A commit waits in steps of this length, so that a stop or a failed record is noticed in between."""
STEP_TIMEOUT = 5.0
"""For an abort, and for the thread to end."""
OWNED_TIMEOUT = 10.0
"""How long it may take to find out who owns the pipeline."""
ANY_PARTITION = -1
"""The partitioner chooses, by the key."""
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class PositionStore(Protocol):
    """Where the position of a pipeline is stored: `state.stored_state.StoredState`."""

    def read(self) -> Position | None:
        """The stored position. Called only after the older producer is fenced."""

    def record(self, position: Position) -> Record:
        """The record that stores a position."""


class Publisher:
    """Implements `pipeline.loop.BatchPublisher`. Call `submit` from one thread; `wakeup` is set when idle again."""

    def __init__(
        self,
        options: KafkaOptions,
        topics: TopicManager,
        positions: PositionStore,
        *,
        wakeup: Wakeup,
        dead_lettered: Callable[[list[Record]], None] = lambda _: None,
        require_owned: Callable[[float], None] = lambda _: None,
        recorder: Recorder | None = None,
    ) -> None:
        """`dead_lettered` is called with the dead letters of each committed batch that has some; it must not block.

        `require_owned` is called where no transaction fences this instance: it raises Fenced if another one runs the
        pipeline, and may wait for the given seconds to find out.
        """
        self._options = options
        self._topics = topics
        self._wakeup = wakeup
        self._positions = positions
        self._dead_lettered = dead_lettered
        self._require_owned = require_owned
        self._recorder = recorder or NullRecorder()
        self._turn = threading.Condition()
        self._work: Batch | None = None
        self._closing = False
        self._error: BaseException | None = None
        self._rejections = Rejections(options, topics)
        self._began = self._commit_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.stored: Position | None = None
        self.published = 0
        self.dead_letters = 0
        self.amend: Callable[[Batch], None] = lambda _: None
        """Called with each batch before it is published, in the thread that submits it."""
        self.committed: Callable[[Batch], None] = lambda _: None
        """Called with each committed batch before its position counts as stored; it must not block."""

    def open(self) -> Position | None:
        """Takes over from any older instance and returns the stored position."""
        require_token(self._options)
        try:
            config = producer_config(self._options, batch_bytes=self._rejections.batch_bytes)
            # A bound method would make a cycle, and the garbage collector may run in a thread of the client itself.
            failed = partial(_add_failure, self._rejections, exactly_once=self._options.exactly_once)
            self._producer = Producer(config, on_delivery=failed)
        except KafkaException as error:
            raise unusable(error) from None
        if self._options.exactly_once:
            try:
                # Fence: from here on no older producer of this pipeline can commit, and its open transaction is
                # committed or aborted.
                self._producer.init_transactions(INIT_TIMEOUT)
            except KafkaException as error:
                raise translate(error_of(error), "taking over the pipeline's transactions") from None
        # Only now is the stored position final.
        self.stored = self._positions.read()
        self._thread.start()
        return self.stored

    @property
    def idle(self) -> bool:
        return self._work is None

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it has written to, or may."""
        return self._topics.known

    def check(self) -> None:
        """Raises the error that ended the publisher, if any."""
        if self._error is not None:
            raise self._error
        if not self._options.exactly_once:
            self._require_owned(0.0)

    def submit(self, batch: Batch) -> None:
        """Hands over a batch; only while idle."""
        self.amend(batch)
        batch.submitted_at = time.time()
        with self._turn:
            self._work = batch
            self._turn.notify_all()

    def wait(self, seconds: float) -> bool:
        """Waits until idle; False if that took longer. Raises if the publisher has ended."""
        with self._turn:
            self._turn.wait_for(lambda: self._work is None or self._error is not None, seconds)
        self.check()
        return self.idle

    def store(self, position: Position) -> None:
        """Stores a position without events, at once."""
        self.submit(Batch(position))
        while not self.wait(1.0):
            pass

    def close(self) -> None:
        """Ends the thread. An open transaction is not committed; the next start fences it."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        if self._thread.is_alive():
            self._thread.join(STEP_TIMEOUT + 1)
        if hasattr(self, "_producer"):
            # Queued records belong to a transaction that will not commit; flushing them would only wait.
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._work is not None or self._closing)
                batch = self._work
            if batch is None:
                return
            self._recorder.publisher_alive(busy=True)
            try:
                self._publish(batch)
            except BaseException as error:  # noqa: BLE001 - any error ends the pipeline
                self._error = error
            self._recorder.publisher_alive(busy=False)
            self._await_markers(batch)
            with self._turn:
                self._work = None
                self._turn.notify_all()
            self._wakeup.set()
            if self._error is not None or self._closing:
                return

    def _await_markers(self, batch: Batch) -> None:
        """Stays busy a moment longer after a small batch, while the next batch grows.

        Kafka confirms a commit before it has written its markers, and delays a transaction that begins before that
        by 20 ms.
        """
        if self._options.exactly_once and self._error is None and len(batch.records) < SMALL_BATCH:
            self._wakeup.set()  # the position is stored and can already be confirmed to the source
            with self._turn:
                self._turn.wait_for(lambda: self._closing, MARKER_SECONDS)

    def _publish(self, batch: Batch) -> None:
        topics = list(batch.topics)
        try:
            # A batch may have many new topics, and Kafka may take a second for each.
            self._topics.require(topics, lambda: self._recorder.publisher_alive(busy=True))
        except NameRefused as refused:
            # The events name the topic themselves: the next attempt dead-letters them.
            why_not = f"{refused.what}: {refused.why}"
            raise RecordsRefused(refused.what, positions_of(batch.records, refused.topic, why_not)) from None
        self._rejections.require_fit("a topic that is written to for the first time takes less")
        self._began = time.monotonic()
        try:
            if self._options.exactly_once:
                self._producer.begin_transaction()
                failpoints.reached(failpoints.BEFORE_PRODUCE)
                self._produce(batch.records)
                self._produce([self._positions.record(batch.position)])
                failpoints.reached(failpoints.AFTER_PRODUCE)
                self._finish(self._producer.commit_transaction)
            else:
                self._require_owned(OWNED_TIMEOUT)
                failpoints.reached(failpoints.BEFORE_PRODUCE)
                self._produce(batch.records)
                # The position must not overtake its events: without a transaction they are separate writes.
                self._finish(self._producer.flush)
                failpoints.reached(failpoints.AFTER_PRODUCE)
                self._require_owned(OWNED_TIMEOUT)
                self._produce_position(batch.position)
                self._finish(self._producer.flush)
        except KafkaException as error:
            why = self._why(error_of(error), topics)
            self._abandon(why)
            if isinstance(why, TopicRefused):
                self._rejections.raise_remedy(batch.records, why, self._may_search)
            raise why from None
        failpoints.reached(failpoints.AFTER_COMMIT if batch.records else failpoints.IDLE_STORED)
        self.committed(batch)
        self.stored = batch.position
        self.published += len(batch.records) - batch.dead_letters - batch.other_records
        self.dead_letters += batch.dead_letters
        self._recorder.committed(batch, self._commit_seconds)
        if self._options.dead_letter_topic in batch.topics:
            self._dead_lettered([each for each in batch.records if each.topic == self._options.dead_letter_topic])

    def _produce(self, records: list[Record]) -> None:
        """Queues the records in order. If the queue is full, waits and then queues the same record."""
        produce = self._producer.produce
        deadline = 0.0
        now_ms = time.time_ns() // 1_000_000
        oldest_ms = now_ms - self._rejections.age_ms
        for topic, value, key, headers, timestamp in records:
            while True:
                try:
                    # Positional arguments, the two callbacks included: names cost a tenth of the call.
                    at = timestamp if oldest_ms < timestamp <= now_ms else now_ms  # `publish_time`, without the call
                    produce(topic, value, key, ANY_PARTITION, None, None, at, headers)
                    break
                except KafkaException as error:
                    self._producer.poll(0)  # reports the record that failed first and made Kafka reject this one
                    self._rejections.add(error_of(error), topic, key, value)
                    raise
                except BufferError:
                    deadline = deadline or time.monotonic() + COMMIT_TIMEOUT
                    self._producer.poll(0.1)
                    self._check_going(deadline, "waiting for room in the send queue")

    def _produce_position(self, position: Position) -> None:
        """Stores a position without a transaction. Never after `close`: a newer position may be stored by then."""
        with self._turn:
            self._check_going(time.monotonic() + COMMIT_TIMEOUT, "publishing a batch")
            self._produce([self._positions.record(position)])

    def _finish(self, step: Callable[[float], int | None]) -> None:
        """Runs a commit or a flush to its end; a timeout of one step is no answer yet."""
        began = time.monotonic()
        deadline = began + COMMIT_TIMEOUT
        while True:
            try:
                left = step(COMMIT_STEP)
            except KafkaException as error:
                if not error_of(error).retriable():
                    raise
                left = 1
                # A commit waits for failed records until their callbacks have run.
                self._producer.poll(0)
            if not left:
                # Not before: a commit that is still under way cannot be aborted.
                if self._rejections.first is not None:
                    if not self._options.exactly_once:
                        self._check_going(deadline, "publishing a batch")
                    raise KafkaException(self._rejections.first[0])
                self._commit_seconds = time.monotonic() - began
                return
            self._check_going(deadline, "committing a batch")

    def _may_search(self) -> bool:
        self._recorder.publisher_alive(busy=True)
        return not self._closing

    def _check_going(self, deadline: float, doing: str) -> None:
        self._recorder.publisher_alive(busy=True)
        if self._closing:
            raise OutcomeUnknown(f"stopped while {doing}", remedy="The next start reads the offsets topic.")
        if time.monotonic() > deadline:
            raise KafkaUnavailable(
                f"no answer within {COMMIT_TIMEOUT:.0f} s while {doing}",
                why="Kafka is unavailable or too slow.",
                remedy="Tailrace builds a new producer and reads on the offsets topic what happened.",
            )

    def _abandon(self, why: TailraceError) -> None:
        """Aborts the transaction if it is still ours, because readers stop at an open transaction."""
        if self._options.exactly_once and not isinstance(why, Fenced | KafkaUnavailable):
            try:
                self._producer.abort_transaction(STEP_TIMEOUT)
            except KafkaException:
                pass  # the next start or the transaction's timeout aborts it

    def _why(self, error: KafkaError, topics: list[str]) -> TailraceError:
        """The cause of a failed batch: a failed record explains it better than the error of the commit."""
        topic = None
        first = self._rejections.first
        if first is not None and error.code() not in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            error, topic = first
        try:
            gone = self._topics.vanished(topics)
        except TailraceError:
            gone = []
        if gone:
            return TopicMissing(
                f"the topic {', '.join(gone)} was deleted while in use",
                why="Kafka no longer has it.",
                remedy="Create it again, or restart to have it created from its spec. No event was skipped.",
            )
        why = translate(error, "publishing a batch", topic or " or ".join(topics[:5]) or None)
        if isinstance(why, TopicMissing):
            return KafkaUnavailable(
                f"publishing a batch: {error.str()}",
                why="Brokers that start or take over partitions may not know a topic for a while.",
                remedy="Tailrace retries by itself, and creates a missing topic or reports it.",
            )
        return self._out_of_time(why) if isinstance(why, Fenced) else why

    def _out_of_time(self, fenced: Fenced) -> TailraceError:
        """Kafka also fences a producer whose transaction took too long, although no other instance has taken over."""
        timeout_ms = float(self._options.settings.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        if time.monotonic() - self._began < timeout_ms / 1000:
            return fenced
        return OutcomeUnknown(
            f"{fenced.what}, {time.monotonic() - self._began:.0f} s after the transaction began",
            why="Kafka was unavailable, or this process was suspended, for longer than the transaction's timeout.",
            remedy="Tailrace builds a new producer and reads the offsets topic, by itself.",
        )


def _add_failure(rejections: Rejections, error: KafkaError, message: Message, *, exactly_once: bool) -> None:
    # Purged records of a transaction failed because the transaction did. Without one nothing else reports them: a
    # flush counts records that were purged from the queue as sent.
    if error is not None and not (exactly_once and error.code() in _PURGED):
        rejections.add(error, message.topic(), message.key(), message.value())
