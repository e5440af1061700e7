"""Processes the events of one partition: batches in order, retries, splits around a failing event, dead letters.

Each partition has its own worker, so an event that is retried delays its own partition and no other. A batch that fails
is split around the event that failed: the events before it are applied, it is tried alone, the events after it follow.
An event leaves the worker only when the store has committed it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tailrace import failpoints
from tailrace.errors import ConfigError, Halted, ProjectionError, StoreUnavailable, TailraceError
from tailrace.projections.core.apply import ApplyFailed, BatchResult, StoredOffsetMoved, apply
from tailrace.projections.core.event import Event, restore_event
from tailrace.projections.core.event_queue import EventQueue
from tailrace.projections.core.expiry import expire, mark_dead
from tailrace.projections.core.failures import Failure, final_failure, log_text, split_batch, waited_too_long
from tailrace.projections.core.handover import Turn, TurnLost, TurnTooSmall
from tailrace.projections.core.settings import ProjectionSpec
from tailrace.projections.core.store import EventOutcome, Partition, ProjectionStore

EXPIRY_SECONDS = 5.0
EXPIRED_AT_ONCE = 100
AGENT_QUEUE = 1000
"""An agent may take events one by one: a queue of some batches would pause its partition all the time."""


class WorkerCallbacks(Protocol):
    """The functions of a projection that its partition workers call."""

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        """Writes a dead letter; returns when Kafka has stored it."""

    def committed(self, worker: PartitionWorker, result: BatchResult) -> None: ...

    def blocked(self, worker: PartitionWorker, error: BaseException | None) -> None:
        """Reports the error that the worker retries after; None when it makes progress again."""

    def reached(self, worker: PartitionWorker) -> int:
        """Returns the offset up to which the log was read, provided that all delivered records are applied."""

    def pause(self, worker: PartitionWorker) -> None: ...

    def resume(self, worker: PartitionWorker) -> None: ...


class PartitionWorker:
    """`next` is the offset after the last committed event, `expected` the offset after the last queued event."""

    def __init__(
        self,
        partition: Partition,
        start: int,
        furthest: int,
        store: ProjectionStore[Any],
        spec: ProjectionSpec,
        callbacks: WorkerCallbacks,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.partition = partition
        self.next = start
        self.expected = start
        self._furthest = furthest
        self.busy_since: float | None = None
        """Since when it has events without committing or calling a handler; None if it has no events."""
        self._store = store
        self._spec = replace(spec, on_handler_call=self._made_progress)
        self._settings = spec.settings
        self._callbacks = callbacks
        self._sleep = sleep
        self._clock = clock
        self._queue = EventQueue(
            spec.settings.events,
            spec.settings.within,
            lambda: callbacks.pause(self),
            lambda: callbacks.resume(self),
            room=AGENT_QUEUE if spec.handover is not None else 0,
        )
        self._is_rebuild = False

    def put(self, event: Event) -> None:
        """Queues an event; never blocks, but may pause the partition. One that was queued before is ignored."""
        if event.offset < self.expected:
            return
        self.expected = event.offset + 1
        if self.busy_since is None:
            self.busy_since = time.monotonic()
        self._queue.put(event)

    def _made_progress(self) -> None:
        if self.busy_since is not None:
            self.busy_since = time.monotonic()

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def run(self) -> None:
        """Processes events until an error occurs that needs a person or a restart."""
        await self._store_start()
        expire_at = time.monotonic() + EXPIRY_SECONDS
        handover = self._spec.handover
        while True:
            if handover is not None:
                self._queue.limit(handover.limit, handover.within)
            batch = await self._queue.next_batch(EXPIRY_SECONDS)
            if batch:
                self.busy_since = time.monotonic()
                await self.process(batch)
                self.busy_since = time.monotonic() if self._queue else None
            else:
                await self.store_reached(self._callbacks.reached(self))
            if time.monotonic() >= expire_at:
                await self.expire()
                expire_at = time.monotonic() + EXPIRY_SECONDS

    async def _store_start(self) -> None:
        """Stores the start offset: with `start="latest"` a restart before the first batch must not skip events."""
        retries, since = 0, time.monotonic()
        while True:
            try:
                async with self._store.transaction(self.partition) as transaction:
                    stored = await transaction.position()
                    if stored is None:
                        await transaction.advance(self.next)
                    elif stored < self.next:
                        raise StoredOffsetMoved(stored, self.next)
            except Exception as error:
                if not self._store.is_transient(error):
                    raise
                retries += 1
                self._callbacks.blocked(self, error)
                await self._wait_for_store(error, retries, since)
            else:
                return

    async def process(self, events: Sequence[Event]) -> None:
        """Returns when all events are applied or dead-lettered, and committed."""
        batches = deque([events])
        while batches:
            batch = batches.popleft()
            try:
                failed = await self._try_batch(batch)
            except TurnTooSmall as error:
                failed = ApplyFailed(error)
            if failed is not None:
                batches.extendleft(reversed(split_batch(batch, failed.index)))

    async def _try_batch(self, batch: Sequence[Event]) -> ApplyFailed | None:
        """Commits a batch. Returns the failure of a batch to split; retries a single event until it is decided.

        An empty batch means the waiting events that have expired.
        """
        dead_lettered: dict[str, Failure] = {}
        attempts = 0
        retries = 0
        retrying_since = 0.0
        while True:
            try:
                result = await (self._commit(batch, dead_lettered) if batch else self._expire(dead_lettered))
            except (StoredOffsetMoved, TurnTooSmall):
                raise
            except Exception as error:  # noqa: BLE001 - any error of a handler is the event's failure
                failed = error if isinstance(error, ApplyFailed) else ApplyFailed(error)
                if isinstance(failed.error, ProjectionError):
                    raise failed.error from None  # concerns the whole projection, not an event
                self._callbacks.blocked(self, failed.error)
                if self._store.is_transient(failed.error):
                    retries += 1
                    retrying_since = retrying_since or time.monotonic()
                    await self._wait_for_store(failed.error, retries, retrying_since)
                    if retries > 1 and len(batch) > 1:
                        return ApplyFailed(failed.error)  # it may exceed a time limit of the server: try halves
                    continue
                retries, retrying_since = 0, 0.0
                if len(batch) > 1:
                    return failed
                attempts += 1
                culprit = failed.event or next(iter(batch), None)
                if culprit is None:
                    raise failed.error from None
                failure = final_failure(failed.error, attempts, self._settings.max_attempts)
                if failure is None:
                    await self._sleep(self._settings.backoff.delay(attempts))
                    continue
                if culprit.id in dead_lettered or isinstance(failed.error, ConfigError):
                    # Dead-lettered, and the store cannot even skip it; or the declaration is wrong, not the event.
                    raise failed.error from None
                await self._give_up(culprit, failure, failed.error)
                dead_lettered[culprit.id] = failure
                attempts = 0
            else:
                self._made_progress()
                self._callbacks.blocked(self, None)
                self._callbacks.committed(self, result)
                return None

    async def _commit(self, batch: Sequence[Event], dead_lettered: dict[str, Failure]) -> BatchResult:
        if self._spec.handover is None:
            return await self._apply(batch, dead_lettered, None)
        while True:
            try:
                async with self._spec.handover.turn(len(batch), self._made_progress) as turn:
                    return await self._apply(batch, dead_lettered, turn)
            except TurnLost:
                pass

    async def _apply(self, batch: Sequence[Event], dead_lettered: dict[str, Failure], turn: Turn | None) -> BatchResult:
        self._is_rebuild = batch[-1].is_rebuild
        began = time.monotonic()
        with self._spec.tracing.batch(batch):
            async with self._store.transaction(self.partition) as transaction:
                result = await apply(
                    transaction,
                    batch,
                    self._spec,
                    expected=self.next,
                    furthest=self._furthest,
                    now_ms=int(self._clock() * 1000),
                    dead_lettered=dead_lettered,
                    turn=turn,
                )
                failpoints.reached(failpoints.PROJECTION_APPLIED)
        failpoints.reached(failpoints.PROJECTION_COMMITTED)
        self.next = max(self.next, batch[-1].offset + 1)
        result.size, result.seconds, result.is_rebuild = len(batch), time.monotonic() - began, self._is_rebuild
        result.first_ms, result.last_ms = batch[0].time_ms, batch[-1].time_ms
        return result

    async def _wait_for_store(self, error: BaseException, retries: int, since: float) -> None:
        """Waits before a retry after a transient error, which costs the event no attempt; raises after `give_up`."""
        if time.monotonic() - since > self._settings.give_up:
            if isinstance(error, TailraceError):
                raise error
            raise StoreUnavailable(
                f"{self._spec.projection}: its database has been unavailable for {time.monotonic() - since:.0f} s",
                why=log_text(error),
                remedy="Check that it runs and can be reached, then restart. No events were lost.",
            ) from error
        await self._sleep(0.05 if retries == 1 else self._settings.backoff.delay(retries - 1))

    async def _give_up(self, event: Event, failure: Failure, error: Exception) -> None:
        if self._settings.on_failure == "halt":
            raise Halted(
                f"{self._spec.projection}: {event.type or 'event'} {event.id} at {event.location} cannot be applied: "
                f"{failure.reason.value}",
                why=log_text(error),
                remedy='Fix the handler or the data and restart, or choose on_failure="dead_letter".',
            ) from error
        await self._callbacks.dead_letter(event, failure)
        failpoints.reached(failpoints.PROJECTION_LETTER)

    async def store_reached(self, reached: int) -> None:
        """Stores the offset up to which the log was read: transaction markers after the last event have offsets, too.

        Otherwise retention could delete applied events, and the stored offset would look as if events were lost.
        """
        if self._queue or self.busy_since is not None or reached <= self.next:
            return
        try:
            async with self._store.transaction(self.partition) as transaction:
                stored = await transaction.position()
                if stored is None or stored < self.next:
                    return
                if reached > stored:
                    await transaction.advance(reached)
        except Exception as error:
            if not self._store.is_transient(error):
                raise
        else:
            self.next = max(self.next, reached)
            self.expected = max(self.expected, self.next)

    async def expire(self) -> None:
        """Applies or dead-letters events that have waited too long for an earlier version."""
        versions = self._settings.versions
        if versions is not None and versions.gaps == "wait":
            await self._try_batch(())

    async def _expire(self, dead_lettered: dict[str, Failure]) -> BatchResult:
        seconds = self._settings.versions.timeout if self._settings.versions is not None else 0.0
        now = self._clock()
        async with self._store.transaction(self.partition) as transaction:
            result, overdue = await expire(
                transaction,
                self._spec,
                before_ms=int((now - seconds) * 1000),
                limit=EXPIRED_AT_ONCE,
                now_ms=int(now * 1000),
                is_rebuild=self._is_rebuild,
                dead_lettered=dead_lettered,
            )
            for each in overdue:
                await self._callbacks.dead_letter(restore_event(each), waited_too_long(seconds, each.version))
                result.count(EventOutcome.DEAD)
            await mark_dead(transaction, overdue)
        return result
