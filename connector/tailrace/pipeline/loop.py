"""The pipeline loop: read, process, publish, confirm.

One thread runs this loop; the publisher's thread commits. A batch holds what arrived during the previous commit: light
load gives small batches and short latency, heavy load gives large batches and high throughput, and there is no linger
to tune. A position is confirmed to the source only after Kafka has stored it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tailrace import failpoints
from tailrace.errors import LayoutMismatch, RecordDelayed, SourceError, Unavailable
from tailrace.event import Chunk
from tailrace.pipeline.batch import Batch
from tailrace.pipeline.processor import EventProcessor, KeyParking
from tailrace.pipeline.recorder import PROCESSING, PUBLISHING, READING, RELEASING, NullRecorder, Recorder
from tailrace.positions.base import Position
from tailrace.wakeup import Wakeup

READ_ROWS = 1000
"""Rows per read: enough to spread the cost of a call, few enough to notice an idle publisher soon."""
WORTHWHILE = 4000
"""While more rows are available, smaller batches are not submitted: a commit costs the same for any size."""
IDLE_STORE_SECONDS = 5.0
"""Minimum interval between stored positions without events, which let the slot of an idle outbox advance (I8)."""
URGENT_STORE_SECONDS = 0.5
"""The same when the server waits for the position, as it does while shutting down."""
WAIT_SECONDS = 1.0
"""The longest wait; between waits the loop sends keepalives and checks for a stop request."""
DRAIN_SECONDS = 4.0
"""How long a stopping pipeline waits for its last commit; after SIGTERM it must exit within 5 s."""


class RowSource(Protocol):
    """A source of committed outbox rows, in commit order."""

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Starts at `stored`; raises if it cannot be resumed safely. A first start may `store` positions."""

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        """Returns what has arrived, within the limits; waits at most `wait` seconds for the first row."""

    def settle(self) -> None:
        """Raises if rows may be missing; called before a position without rows is stored."""

    def confirm(self, position: Position) -> None:
        """Called once `position` is stored in Kafka: the source may remove the log before it."""

    def keep_alive(self) -> None:
        """Called about every second while `read` is not called."""

    def passed(self, position: Position) -> str:
        """Returns a snapshot whose rows all lie before `position`, or "". Called from another thread."""

    def close(self) -> None: ...


class BatchPublisher(Protocol):
    """Publishes one batch at a time; its events and its position become visible together or not at all."""

    @property
    def stored(self) -> Position | None:
        """The position of the last committed transaction."""

    @property
    def idle(self) -> bool:
        """Whether `submit` may be called."""

    def open(self) -> Position | None:
        """Fences older instances, then returns the stored position."""

    def submit(self, batch: Batch) -> None: ...
    def store(self, position: Position) -> None: ...
    def wait(self, seconds: float) -> bool: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


class PipelineLoop:
    """One attempt: opens publisher and source in this order, runs until it is stopped or fails, closes both."""

    def __init__(
        self,
        source: RowSource,
        publisher: BatchPublisher,
        processor: EventProcessor,
        *,
        wakeup: Wakeup,
        stopping: Callable[[], bool],
        parking: KeyParking | None = None,
        ready: Callable[[EventProcessor], EventProcessor] = lambda processor: processor,
        hurry: Callable[[], bool] = lambda: False,
        recorder: Recorder | None = None,
    ) -> None:
        """`wakeup` is set when the publisher becomes idle and when the result of `stopping` changes.

        `ready` returns the final processor; it is called after older instances are fenced and the source is open.
        `hurry` says that a position without events should be stored soon.
        """
        self._source = source
        self._publisher = publisher
        self._processor = processor
        self._parking = parking
        self._wakeup = wakeup
        self._stopping = stopping
        self._ready = ready
        self._hurry = hurry
        self._recorder = recorder or NullRecorder()
        self._confirmed: Position | None = None
        self._last_store = 0.0
        self._release_at = 0.0

    def run(self, *, started: Callable[[Position], None] = lambda _: None) -> None:
        """Returns after a clean stop; otherwise raises the error that ended it."""
        try:
            # This order is a guarantee: fence and read the stored position first, then open the source.
            stored = self._publisher.open()
            if self._parking is not None:
                self._parking.open()
            position = self._source.open(stored, self._publisher.store)
            self._processor = self._ready(self._processor)
            self._submitted = position
            self._last_store = time.monotonic()
            started(position)
            batch = Batch(position)
            while not self._stopping():
                batch = self._turn(batch)
            self._drain(batch)
        except Unavailable:
            # An error of the publisher takes precedence: a retry after a fence would fence the newer instance.
            self._publisher.close()
            self._publisher.check()
            raise
        finally:
            self._publisher.close()
            self._source.close()
            if self._parking is not None:
                self._parking.close()

    def _turn(self, batch: Batch) -> Batch:
        """Runs one round: reads, processes, submits if the publisher is idle, confirms what is stored."""
        urgent = False
        releasing = self._parking is not None and self._parking.due()
        if self._parking is not None and releasing and time.monotonic() >= self._release_at:
            batch = self._release(self._parking, batch)
            if self._stopping():
                return batch  # an interrupted release may leave `keys` behind what is committed: nothing more is read
        room = self._processor.batch_records - len(batch.records)
        if room > 0 and batch.size < self._processor.batch_bytes:
            # With records in the batch and an idle publisher, do not wait for more.
            wait = 0.0 if releasing or (batch.records and self._publisher.idle) else WAIT_SECONDS
            self._recorder.reader_alive(READING)
            try:
                chunk = self._source.read(min(room, READ_ROWS), self._processor.batch_bytes, wait)
            except SourceError:
                # The rows before the error are valid: publish them.
                self._drain(batch)
                raise
            if not self._process(chunk, batch):
                return batch
            batch.size += chunk.size
            self._recorder.filled(len(batch.records))
            if not chunk.more:
                self._release_at = 0.0
            if chunk.rows or not batch.records:
                # A position behind rows is safe to store; a later one only after `settle`.
                batch.position = chunk.position
            if chunk.more and chunk.rows and len(batch.records) < WORTHWHILE:
                return batch
            urgent = chunk.urgent
        else:
            # The batch is full and the publisher busy: pause, but keep the source connection alive.
            self._recorder.reader_alive(PUBLISHING)
            self._publisher.wait(WAIT_SECONDS)
            self._source.keep_alive()
        # Cleared before the check: a publisher that becomes idle after it sets it again.
        self._wakeup.clear()
        self._publisher.check()
        self._confirm()
        if not self._publisher.idle:
            return batch
        if batch.records:
            return self._submit(batch)
        if self._may_store_idle(batch.position, urgent=urgent or self._hurry()):
            self._source.settle()
            return self._submit(batch)
        return batch

    def _process(self, chunk: Chunk, batch: Batch) -> bool:
        """Adds what is published for the rows to the batch; returns False if the pipeline must stop before that."""
        processor, read_at = self._processor, time.time()
        self._recorder.reader_alive(PROCESSING)
        if processor.prepare is not None and not processor.prepare(chunk.rows, self._going):
            return False  # these rows are read again at the next start
        try:
            processor.process(chunk.rows, batch, self._parking)
        except (LayoutMismatch, RecordDelayed):
            # Nothing of this chunk is in the batch: all rows of a chunk have the same columns, and delays are checked
            # first. Earlier rows are published now: a restart with settings for new columns must not read rows with the
            # old columns again, and a delayed record need not delay what comes before it.
            self._drain(batch)
            raise
        if chunk.rows:
            batch.note_rows(chunk.rows, read_at)
        return True

    def _going(self) -> bool:
        """Keeps the source connection alive; returns False if the pipeline must stop."""
        self._recorder.reader_alive(PROCESSING)
        self._source.keep_alive()
        return not self._stopping()

    def _submit(self, batch: Batch) -> Batch:
        self._publisher.submit(batch)
        self._submitted = batch.position
        self._last_store = time.monotonic()
        return Batch(batch.position)

    def _release(self, parking: KeyParking, batch: Batch) -> Batch:
        """Publishes a part of the events behind released keys, between two batches: before newer events of their keys.

        While more rows are available, reading then gets as much time as the release took.
        """
        began = time.monotonic()
        if not self._wait_for_publisher():
            return batch
        if batch.records:
            batch = self._submit(batch)
            if not self._wait_for_publisher():
                return batch
        self._recorder.reader_alive(RELEASING)
        for records in parking.release(self._processor, self._processor.batch_records):
            # The position of the last batch again: nothing was read since.
            part = Batch(self._submitted)
            for record in records:
                part.add(record)
            part.other_records = len(records)
            self._publisher.submit(part)
            if not self._wait_for_publisher() or self._stopping():
                break
            self._source.keep_alive()
            self._recorder.reader_alive(RELEASING)
        ended = time.monotonic()
        self._release_at = ended + (ended - began)
        return batch

    def _wait_for_publisher(self) -> bool:
        """Waits until the publisher is idle; returns False if the pipeline must stop first."""
        self._recorder.reader_alive(PUBLISHING)
        while not self._publisher.wait(WAIT_SECONDS):
            self._recorder.reader_alive(PUBLISHING)
            if self._stopping():
                return False
            self._source.keep_alive()
        return True

    def _may_store_idle(self, position: Position, *, urgent: bool) -> bool:
        stored = self._publisher.stored
        if stored is not None and position.progress <= stored.progress:
            return False
        bound = URGENT_STORE_SECONDS if urgent else IDLE_STORE_SECONDS
        return time.monotonic() - self._last_store >= bound

    def _confirm(self) -> None:
        stored = self._publisher.stored
        if stored is not None and stored is not self._confirmed:
            self._source.confirm(stored)
            self._confirmed = stored
            failpoints.reached(failpoints.AFTER_CONFIRM)

    def _drain(self, batch: Batch) -> None:
        """Publishes and confirms the last batch; if that takes too long, the next start publishes it."""
        failpoints.reached(failpoints.DRAINING)
        deadline = time.monotonic() + DRAIN_SECONDS
        if not self._publisher.wait(deadline - time.monotonic()):
            return
        if batch.records:
            self._publisher.submit(batch)
            self._publisher.wait(max(0.0, deadline - time.monotonic()))
        self._confirm()
