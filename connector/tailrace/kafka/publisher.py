"""The publisher: one thread, one producer, one batch at a time; each batch one Kafka transaction.

The order of the steps is the guarantee. On start: fence the old producer, then read the stored position. Per batch:
events, dead letters and the position in one transaction (I5); only after its commit is the position called `stored`.
Anything but a clean commit ends this publisher with an error: it is thrown away, and the next one asks the offsets
topic what happened. Nothing is ever sent again on a guess.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace import failpoints
from tailrace.dlq.record import reason_and_type
from tailrace.errors import (
    Fenced,
    KafkaUnavailable,
    OutcomeUnknown,
    RecordsRefused,
    TailraceError,
    TopicLimitsChanged,
    TopicMissing,
    TopicRefused,
)
from tailrace.event import Record
from tailrace.kafka.client import (
    TRANSACTION_TIMEOUT_MS,
    KafkaOptions,
    batch_size,
    error_of,
    producer_config,
    translate,
    unusable,
)
from tailrace.kafka.rejected_records import TOO_LARGE, Suspects, find_rejected, places_of, record_bytes
from tailrace.kafka.topics import NameRefused, TopicManager
from tailrace.pipeline.batch import Batch
from tailrace.positions.base import Position
from tailrace.state import offsets, rewind_marker
from tailrace.state.rewind_marker import Rewind
from tailrace.wakeup import Wakeup

INIT_TIMEOUT = 30.0
"""Fencing waits for the old producer's transaction to be finished by its coordinator."""
COMMIT_TIMEOUT = 75.0
"""Longer than a message's and a transaction's timeout: by then Kafka itself has decided."""
MARKER_SECONDS = 0.004
"""How long a broker takes to write the markers of a transaction, nearly always."""
SMALL_BATCH = 1000
"""To send a larger one takes longer than that anyway."""
COMMIT_STEP = 0.5
"""A commit waits in steps of this length, so that a stop or a failed record is noticed in between."""
STEP_TIMEOUT = 5.0
"""For an abort, and for the thread to end."""
OWNED_TIMEOUT = 10.0
"""How long it may take to find out who owns the pipeline."""
FIND_SECONDS = 20.0
"""How long the records that a topic refuses are looked for at a time."""
ANY_PARTITION = -1
"""The partitioner chooses, by the key."""
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class Publisher:
    """Implements `pipeline.Publisher`. `submit` from one thread; `wake` is set when idle again."""

    def __init__(
        self,
        options: KafkaOptions,
        topics: TopicManager,
        *,
        wake: Wakeup,
        tell: Callable[[str, str, int], None] = lambda *_: None,
        require_owned: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`tell` hears of dead letters that are committed: their reason, their type and how many; it must not block.

        `require_owned` is asked where no transaction fences this instance: it raises Fenced if another one runs the
        pipeline, and may wait for the given seconds to find out.
        """
        self._options = options
        self._topics = topics
        self._wake = wake
        self._tell = tell
        self._require_owned = require_owned
        self._turn = threading.Condition()
        self._work: Batch | None = None
        self._closing = False
        self._error: BaseException | None = None
        self._refused: tuple[KafkaError, str] | None = None
        self._suspects = Suspects()
        self._began = 0.0
        self._batch_bytes = min(batch_size(options), topics.limits.batch_bytes)
        self._age_ms = topics.limits.age_ms
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.stored: Position | None = None
        self.rewind: Rewind | None = None
        self.published = 0
        self.dead_letters = 0
        self.amend: Callable[[Batch], None] = lambda _: None
        """Called with each batch before it is published, in the thread that submits it."""

    def open(self) -> Position | None:
        """Takes over from any older instance and returns the stored position."""
        try:
            config = producer_config(self._options, batch_bytes=self._batch_bytes)
            self._producer = Producer(config, on_delivery=self._on_failure)
        except KafkaException as error:
            raise unusable(error) from None
        if self._options.exactly_once:
            try:
                # 1. Fence: from here on no older producer of this pipeline can commit, and its open transaction is
                #    finished one way or the other.
                self._producer.init_transactions(INIT_TIMEOUT)
            except KafkaException as error:
                raise translate(error_of(error), "taking over the pipeline's transactions") from None
        # 2. Only now is the stored position final.
        keys = self._options.pipeline.encode(), rewind_marker.key(self._options)
        position, rewind = map(offsets.read_keys(self._options, set(keys)).get, keys)
        self.stored = None if position is None else offsets.parse(self._options, position)
        self.rewind = None if rewind is None else rewind_marker.parse(self._options, rewind)
        self._thread.start()
        return self.stored

    @property
    def idle(self) -> bool:
        return self._work is None

    @property
    def topics(self) -> frozenset[str]:
        """Those that it has written to, or may."""
        return self._topics.known

    def check(self) -> None:
        """Raises what ended the publisher, if anything did."""
        if self._error is not None:
            raise self._error
        if not self._options.exactly_once:
            self._require_owned(0.0)

    def submit(self, batch: Batch) -> None:
        """Hands over a batch; only while idle."""
        self.amend(batch)
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
        """Ends the thread. A transaction that is still open is left to be fenced: it is not committed."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        if self._thread.is_alive():
            self._thread.join(STEP_TIMEOUT + 1)
        if hasattr(self, "_producer"):
            # What is queued belongs to a transaction that will not commit; flushing it would only wait.
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._work is not None or self._closing)
                batch = self._work
            if batch is None:
                return
            try:
                self._publish(batch)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the pipeline's failure
                self._error = error
            self._let_markers_pass(batch)
            with self._turn:
                self._work = None
                self._turn.notify_all()
            self._wake.set()
            if self._error is not None or self._closing:
                return

    def _let_markers_pass(self, batch: Batch) -> None:
        """Kafka answers a commit before it has written its markers, and puts a transaction that begins meanwhile off by
        20 ms. So a publisher of small batches stays busy a moment longer, while the next batch grows.
        """
        if self._options.exactly_once and self._error is None and len(batch.records) < SMALL_BATCH:
            self._wake.set()  # the position is stored: let it be confirmed meanwhile
            with self._turn:
                self._turn.wait_for(lambda: self._closing, MARKER_SECONDS)

    def _publish(self, batch: Batch) -> None:
        topics = list(batch.topics)
        try:
            self._topics.require(topics)
        except NameRefused as refused:
            # The events name the topic themselves: the next attempt sets them aside.
            told = f"{refused.what}: {refused.why}"
            raise RecordsRefused(refused.what, places_of(batch.records, refused.topic, told)) from None
        self._require_fit("a topic that is written to for the first time takes less")
        self._began = time.monotonic()
        try:
            if self._options.exactly_once:
                self._producer.begin_transaction()
                failpoints.reached(failpoints.BEFORE_PRODUCE)
                self._produce(batch.records)
                self._produce([offsets.record(self._options, batch.position)])
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
                self._learn_from(batch, why)
            raise why from None
        failpoints.reached(failpoints.AFTER_COMMIT if batch.records else failpoints.IDLE_STORED)
        self.stored = batch.position
        self.published += len(batch.records) - batch.dead_letters - batch.beside
        self.dead_letters += batch.dead_letters
        if self._options.dead_letter_topic in batch.topics:
            letters = (record for record in batch.records if record.topic == self._options.dead_letter_topic)
            for (reason, type_name), count in Counter(map(reason_and_type, letters)).items():
                self._tell(reason, type_name, count)

    def _require_fit(self, what: str) -> None:
        """Raises TopicLimitsChanged if the topics take less than the producer was built for."""
        limits = self._topics.limits
        if limits.batch_bytes < self._batch_bytes or limits.age_ms < self._age_ms:
            raise TopicLimitsChanged(
                what,
                why=f"Batches of {limits.batch_bytes:,} bytes are sent from now on, not of {self._batch_bytes:,}."
                if limits.batch_bytes < self._batch_bytes
                else f"Records older than {limits.age_ms / 1000:.0f} s bear the time of their publishing from now on.",
                remedy="Tailrace builds a new producer, by itself. Nothing was skipped.",
            )

    def _learn_from(self, batch: Batch, why: TopicRefused) -> None:
        """Raises what lets the next attempt pass, if there is such a thing: smaller batches, other times, or
        RecordsRefused, so that single records are set aside.
        """
        if self._refused is None:
            return
        code, topic = self._refused[0].code(), self._refused[1]
        limits = self._topics.limits
        if code in TOO_LARGE or code == KafkaError.INVALID_TIMESTAMP:
            self._topics.learn([topic])
            self._require_fit(why.what)
        if code == KafkaError.INVALID_TIMESTAMP and limits.distrust_times():
            self._require_fit(why.what)
        found = self._find_rejected(batch)
        if found:
            raise RecordsRefused(why.what, found) from None
        alone = any(record in self._suspects and record_bytes(record) > self._batch_bytes for record in batch.records)
        # A record larger than a batch travels alone: only a dead letter is left here, which has nowhere else to go.
        if code in TOO_LARGE and not alone and limits.shrink(self._batch_bytes):
            self._require_fit(why.what)

    def _find_rejected(self, batch: Batch) -> dict[str, str]:
        """The records that are refused even alone, if it was about single ones: the next attempt sets those aside."""
        limits, for_size = self._topics.limits, self._suspects.for_size
        # Behind those that came back refused, others failed only because these did. In a transaction, which is aborted,
        # they can be looked at as well: then all that are too large are found at once.
        others = self._refused[1] if self._refused and self._suspects and self._options.exactly_once else None
        suspects = [
            record
            for record in batch.records
            if (record in self._suspects or (for_size and record.topic == others))
            and record.topic != self._options.dead_letter_topic
            and (not for_size or record_bytes(record) > limits.record_bytes(record.topic, self._batch_bytes))
        ]
        suspects.sort(key=self._suspects.__contains__, reverse=True)
        deadline = time.monotonic() + FIND_SECONDS

        def producer() -> Producer:
            # A new one: after a refusal this one has gaps in its sequence, and fails for that.
            made = Producer(producer_config(self._options))
            if self._options.exactly_once:
                made.init_transactions(INIT_TIMEOUT)
            return made

        def going() -> bool:
            return not self._closing and time.monotonic() < deadline

        try:
            return find_rejected(producer, suspects, transactional=self._options.exactly_once, going=going)
        except KafkaException as error:
            raise translate(error_of(error), "finding the record that a topic refuses") from None

    def _produce(self, records: list[Record]) -> None:
        """Queues all of them, in order. A full queue is waited out; the very same record goes next."""
        produce = self._producer.produce
        deadline = 0.0
        now_ms = time.time_ns() // 1_000_000
        oldest_ms = now_ms - self._age_ms
        for topic, value, key, headers, timestamp in records:
            while True:
                try:
                    # All by place, the two callbacks included: names cost a tenth of the call.
                    at = timestamp if oldest_ms < timestamp <= now_ms else now_ms  # `stamp`, without the call
                    produce(topic, value, key, ANY_PARTITION, None, None, at, headers)
                    break
                except KafkaException as error:
                    self._producer.poll(0)  # a transaction that is to be aborted refuses records: what came first?
                    self._suspects.add(error_of(error), topic, key, value)
                    self._refused = self._refused or (error_of(error), topic)
                    raise
                except BufferError:
                    deadline = deadline or time.monotonic() + COMMIT_TIMEOUT
                    self._producer.poll(0.1)
                    self._check_going(deadline, "waiting for room in the send queue")

    def _produce_position(self, position: Position) -> None:
        """Without a transaction. Never after `close`, which takes the same lock: by then a newer one may be stored."""
        with self._turn:
            self._check_going(time.monotonic() + COMMIT_TIMEOUT, "publishing a batch")
            self._produce([offsets.record(self._options, position)])

    def _finish(self, step: Callable[[float], int | None]) -> None:
        """Runs a commit or a flush to its end; a timeout of one step is not an answer yet."""
        deadline = time.monotonic() + COMMIT_TIMEOUT
        while True:
            try:
                left = step(COMMIT_STEP)
            except KafkaException as error:
                if not error_of(error).retriable():
                    raise
                left = 1
                # A commit waits for records that failed until somebody hears of their failure.
                self._producer.poll(0)
            if not left:
                # Only now: a commit that is still under way cannot be aborted.
                if self._refused is not None:
                    if not self._options.exactly_once:
                        self._check_going(deadline, "publishing a batch")
                    raise KafkaException(self._refused[0])
                return
            self._check_going(deadline, "committing a batch")

    def _check_going(self, deadline: float, doing: str) -> None:
        if self._closing:
            raise OutcomeUnknown(f"stopped while {doing}", remedy="The next start asks the offsets topic.")
        if time.monotonic() > deadline:
            raise KafkaUnavailable(
                f"no answer within {COMMIT_TIMEOUT:.0f} s while {doing}",
                why="Kafka is away, or too slow.",
                remedy="Tailrace builds a new producer and asks the offsets topic what happened.",
            )

    def _on_failure(self, error: KafkaError, message: Message) -> None:
        if error is None or error.code() in _PURGED:
            # In a transaction they failed because that did, not it by them. Without one nothing else reports them: a
            # flush counts what is gone from the queue as sent.
            if error is not None and not self._options.exactly_once:
                self._refused = self._refused or (error, str(message.topic()))
            return
        # The first failure is the cause.
        self._suspects.add(error, message.topic(), message.key(), message.value())
        if self._refused is None:
            self._refused = (error, str(message.topic()))

    def _abandon(self, why: TailraceError) -> None:
        """Readers stop at an open transaction until it is decided: ends it now if that is still ours to do."""
        if self._options.exactly_once and not isinstance(why, Fenced | KafkaUnavailable):
            try:
                self._producer.abort_transaction(STEP_TIMEOUT)
            except KafkaException:
                pass  # then the next start ends it, or its timeout

    def _why(self, error: KafkaError, topics: list[str]) -> TailraceError:
        """A failed record explains a failed commit better than the commit's own error does."""
        topic = None
        if self._refused is not None and error.code() not in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            error, topic = self._refused
        try:
            gone = self._topics.vanished(topics)
        except TailraceError:
            gone = []
        if gone:
            return TopicMissing(
                f"the topic {', '.join(gone)} was deleted while in use",
                why="Kafka no longer has it.",
                remedy="Nothing was skipped. Create it again, or start again to have it created from its spec.",
            )
        why = translate(error, "publishing a batch", topic or " or ".join(topics[:5]) or None)
        if isinstance(why, TopicMissing):
            return KafkaUnavailable(
                f"publishing a batch: {error.str()}",
                why="Brokers that come up, or take partitions over, may not know a topic for a while.",
                remedy="Tailrace tries again by itself, and creates a topic that is missing, or says so.",
            )
        return self._out_of_time(why) if isinstance(why, Fenced) else why

    def _out_of_time(self, fenced: Fenced) -> TailraceError:
        """Kafka also fences a producer whose transaction took too long, as in an outage: perhaps nobody took over."""
        timeout_ms = float(self._options.settings.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        if time.monotonic() - self._began < timeout_ms / 1000:
            return fenced
        return OutcomeUnknown(
            f"{fenced.what}, {time.monotonic() - self._began:.0f} s after the transaction began",
            why="Kafka was away, or this process slept, for longer than the transaction's timeout.",
            remedy="Tailrace builds a new producer and asks the offsets topic, by itself.",
        )
