"""The one loop: read -> extract -> check -> route -> publish -> confirm.

One thread runs this loop; the publisher's thread commits. A batch is whatever arrived while the previous commit was
on its way, so light load gives small batches and short latency, heavy load large batches and high throughput; there
is no linger to tune. Data flows one way. One thing comes back: the position that Kafka has stored, which is then, and
only then, confirmed to the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tailrace import failpoints
from tailrace.errors import LayoutMismatch, SourceError, Unavailable
from tailrace.event import Chunk
from tailrace.pipeline.batch import Batch
from tailrace.pipeline.processor import EventProcessor, KeyParking
from tailrace.positions.base import Position
from tailrace.wakeup import Wakeup

READ_ROWS = 1000
"""Rows taken from the source at a time: enough to spread the cost of a call, few enough to notice an idle publisher."""
WORTHWHILE = 4000
"""While more is at hand, a smaller batch than this is not handed over: a commit costs the same for any size."""
IDLE_STORE_SECONDS = 5.0
"""How often a position without events is stored, at most: it lets an idle outbox move its slot (I8)."""
URGENT_STORE_SECONDS = 0.5
"""The same when the server waits for it, as it does while shutting down."""
WAIT_SECONDS = 1.0
"""The longest silent wait: signs of life to the server and requests to stop are looked after in between."""
DRAIN_SECONDS = 4.0
"""How long a stopping pipeline waits for its last commit; SIGTERM promises an end within 5 s."""


class RowSource(Protocol):
    """A log of committed outbox rows, in commit order, each exactly once per pass over the log."""

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Starts at `stored`, refuses what cannot be continued safely; a first start may `store` positions."""

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        """What has arrived, within the limits; waits at most `wait` seconds for the first of it."""

    def settle(self) -> None:
        """Must pass before a position without rows is stored: nothing was silently left out."""

    def confirm(self, position: Position) -> None:
        """`position` is stored in Kafka: the log behind it may go. Never called with anything else."""

    def keep_alive(self) -> None:
        """Called about every second while `read` is not."""

    def passed(self, position: Position) -> str:
        """For the ledger, from another thread: a snapshot all of whose rows lie before `position`; "" if unknown."""

    def close(self) -> None: ...


class BatchPublisher(Protocol):
    """Takes one batch at a time; its events and its position become visible together, or not at all."""

    @property
    def stored(self) -> Position | None:
        """The last position whose transaction is committed."""

    @property
    def idle(self) -> bool:
        """Whether `submit` may be called."""

    def open(self) -> Position | None:
        """Takes over from any older instance, then returns the stored position."""

    def submit(self, batch: Batch) -> None: ...
    def store(self, position: Position) -> None: ...
    def wait(self, seconds: float) -> bool: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


class PipelineLoop:
    """One attempt: opens publisher and source in that order, runs until stopped or failed, closes both."""

    def __init__(
        self,
        source: RowSource,
        publisher: BatchPublisher,
        processor: EventProcessor,
        *,
        wake: Wakeup,
        stopping: Callable[[], bool],
        parking: KeyParking | None = None,
        ready: Callable[[EventProcessor], EventProcessor] = lambda processor: processor,
    ) -> None:
        """`wake` is set by the publisher when it is free again, and by whoever changes what `stopping` answers.

        `ready` makes the line final: what it depends on may be known only after older instances are fenced, and the
        source has judged it.
        """
        self._source = source
        self._publisher = publisher
        self._processor = processor
        self._parking = parking
        self._wake = wake
        self._stopping = stopping
        self._ready = ready
        self._confirmed: Position | None = None
        self._last_store = 0.0
        self._release_at = 0.0

    def run(self, *, started: Callable[[Position], None] = lambda _: None) -> None:
        """Returns after a clean stop; raises the error that ended it otherwise."""
        try:
            # The order is a guarantee: fence and read the stored position first, then look at the source.
            stored = self._publisher.open()
            if self._parking is not None:
                self._parking.open()
            position = self._source.open(stored, self._publisher.store)
            self._processor = self._ready(self._processor)
            self._handed = position
            self._last_store = time.monotonic()
            started(position)
            batch = Batch(position)
            while not self._stopping():
                batch = self._turn(batch)
            self._drain(batch)
        except Unavailable:
            # What ended the publisher meanwhile comes first: to try again after a fence would be to fence back.
            self._publisher.close()
            self._publisher.check()
            raise
        finally:
            self._publisher.close()
            self._source.close()
            if self._parking is not None:
                self._parking.close()

    def _turn(self, batch: Batch) -> Batch:
        """One round: read, prepare, hand over if the publisher is free, confirm what is stored."""
        urgent = False
        releasing = self._parking is not None and self._parking.due()
        if self._parking is not None and releasing and time.monotonic() >= self._release_at:
            batch = self._release(self._parking, batch)
            if self._stopping():
                return batch  # cut short, `keys` may lag behind what is committed: nothing more is read
        room = self._processor.batch_records - len(batch.records)
        if room > 0 and batch.size < self._processor.batch_bytes:
            # What is at hand is not kept waiting for more while the publisher has nothing to do.
            wait = 0.0 if releasing or (batch.records and self._publisher.idle) else WAIT_SECONDS
            try:
                chunk = self._source.read(min(room, READ_ROWS), self._processor.batch_bytes, wait)
            except SourceError:
                # Whatever ended the log, what came before that is good.
                self._drain(batch)
                raise
            batch.size += chunk.size
            if not chunk.more:
                self._release_at = 0.0
            try:
                self._processor.process(chunk.rows, batch, self._parking)
            except LayoutMismatch:
                # A chunk has rows of one set of columns only. Those before it are published first: otherwise settings
                # that fit the new columns would meet the old ones again, and none would fit both.
                self._drain(batch)
                raise
            if chunk.rows or not batch.records:
                # Behind rows the log itself vouches that nothing was left out; further on only `settle` can tell.
                batch.position = chunk.position
            if chunk.more and chunk.rows and len(batch.records) < WORTHWHILE:
                return batch
            urgent = chunk.urgent
        else:
            # Full, and the publisher is busy: pause. The server must go on hearing from us meanwhile.
            self._publisher.wait(WAIT_SECONDS)
            self._source.keep_alive()
        # Cleared before looking: a publisher that becomes free after the look sets it again.
        self._wake.clear()
        self._publisher.check()
        self._confirm()
        if not self._publisher.idle:
            return batch
        if batch.records:
            return self._hand_over(batch)
        if self._may_store_idle(batch.position, urgent=urgent):
            self._source.settle()
            return self._hand_over(batch)
        return batch

    def _hand_over(self, batch: Batch) -> Batch:
        self._publisher.submit(batch)
        self._handed = batch.position
        self._last_store = time.monotonic()
        return Batch(batch.position)

    def _release(self, parking: KeyParking, batch: Batch) -> Batch:
        """Between two batches, so that what waited goes out before any newer event of its key.

        A part of what there is to release; while there is more to read, reading then gets as much time.
        """
        began = time.monotonic()
        if not self._await_publisher():
            return batch
        if batch.records:
            batch = self._hand_over(batch)
            if not self._await_publisher():
                return batch
        for records in parking.release(self._processor, self._processor.batch_records):
            # The position of the last batch once more: nothing was read meanwhile.
            part = Batch(self._handed)
            for record in records:
                part.add(record)
            part.beside = len(records)
            self._publisher.submit(part)
            if not self._await_publisher() or self._stopping():
                break
            self._source.keep_alive()
        ended = time.monotonic()
        self._release_at = ended + (ended - began)
        return batch

    def _await_publisher(self) -> bool:
        """Waits until it is idle; False if the pipeline is to stop meanwhile."""
        while not self._publisher.wait(WAIT_SECONDS):
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
        """The last batch goes out and is confirmed; if that takes too long, the next start publishes it."""
        failpoints.reached(failpoints.DRAINING)
        deadline = time.monotonic() + DRAIN_SECONDS
        if not self._publisher.wait(deadline - time.monotonic()):
            return
        if batch.records:
            self._publisher.submit(batch)
            self._publisher.wait(max(0.0, deadline - time.monotonic()))
        self._confirm()
