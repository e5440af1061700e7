"""One partition on its way into the store: blocks in order, retries, splits around a bad event, dead letters.

Each partition has a worker of its own, so that an event which is being tried again holds up its own partition and no
other. A block that fails is cut around the event that failed: what stands before it is applied, it is tried by itself,
what stands behind it comes last. Nothing leaves the worker before the store has committed it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tailrace import backoff, failpoints
from tailrace.errors import ConfigError, Halted, ProjectionError, StoreUnavailable, TailraceError
from tailrace.projections.core.apply import ApplyFailed, BatchResult, ProjectionSpec, StoredOffsetMoved, apply
from tailrace.projections.core.dead_letters import Failure
from tailrace.projections.core.event import Event, reread
from tailrace.projections.core.expiry import expire, give_up
from tailrace.projections.core.failure_policy import cut, judgement, told, waited_too_long
from tailrace.projections.core.store import EventOutcome, Partition, ProjectionStore

QUEUED_BLOCKS = 4
QUEUED_BYTES = 32 * 1024 * 1024
"""A worker that has more blocks, or more bytes, at hand asks for no more; it asks again below half of it."""
EXPIRY_SECONDS = 5.0
EXPIRED_AT_ONCE = 100


class WorkerCallbacks(Protocol):
    """What a worker needs of the worker around it."""

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        """Returns when the dead letter is stored for good."""

    def committed(self, worker: PartitionWorker, applied: BatchResult) -> None: ...

    def waiting_for(self, worker: PartitionWorker, error: BaseException | None) -> None:
        """What holds the worker up; None when it goes on."""

    def missed(self, worker: PartitionWorker) -> None:
        """A record came without the one before it: both must come again."""

    def reached(self, worker: PartitionWorker) -> int:
        """The offset below which nothing is left to apply, if all that was handed over is applied."""

    def pause(self, worker: PartitionWorker) -> None: ...

    def resume(self, worker: PartitionWorker) -> None: ...


class PartitionWorker:
    """`next` is the offset behind the last event that the store has committed, `expected` behind the last one put."""

    def __init__(
        self,
        partition: Partition,
        start: int,
        furthest: int,
        store: ProjectionStore[Any],
        spec: ProjectionSpec,
        around: WorkerCallbacks,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.partition = partition
        self.next = start
        self.expected = start
        self._furthest = furthest
        self.busy_since: float | None = None
        """Since when it has something and neither commits nor calls a handler; None if it has nothing."""
        self._store = store
        self._spec = replace(spec, alive=self._is_alive)
        self._settings = spec.settings
        self._callbacks = around
        self._sleep = sleep
        self._clock = clock
        self._queue: deque[Event] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._paused = False
        self._is_retold = False

    def put(self, event: Event, follows: int) -> None:
        """Queues an event; never blocks, but may ask for a pause.

        `follows` is the offset behind the event before it in the log. Only what follows the last one that was queued is
        queued: one that came before is passed over, one behind a gap is refused.
        """
        if event.offset < self.expected:
            return
        if follows > self.expected:
            self._callbacks.missed(self)
            return
        self.expected = event.offset + 1
        self._queue.append(event)
        self._queued_bytes += len(event.value or b"")
        if self.busy_since is None:
            self.busy_since = time.monotonic()
        if not self._arrived.is_set():
            self._arrived.set()
        if not self._paused and self._has_more_than(1):
            self._paused = True
            self._callbacks.pause(self)

    def _has_more_than(self, share: float) -> bool:
        """Whether it has more than this share of what it may have at hand."""
        most = share * QUEUED_BLOCKS * self._settings.events
        return len(self._queue) > most or self._queued_bytes > share * QUEUED_BYTES

    def _is_alive(self) -> None:
        if self.busy_since is not None:
            self.busy_since = time.monotonic()

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def run(self) -> None:
        """For ever, or until something is wrong that only a person, or a new start, can mend."""
        await self._begin()
        expire_at = time.monotonic() + EXPIRY_SECONDS
        while True:
            block = await self._take()
            if block:
                self.busy_since = time.monotonic()
                await self.settle(block)
                self.busy_since = time.monotonic() if self._queue else None
            else:
                await self.pass_over(self._callbacks.reached(self))
            if time.monotonic() >= expire_at:
                await self.expire()
                expire_at = time.monotonic() + EXPIRY_SECONDS

    async def _begin(self) -> None:
        """Stores where reading begins: who starts with the latest must not skip what comes before the first block."""
        times, since = 0, time.monotonic()
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
                times += 1
                self._callbacks.waiting_for(self, error)
                await self._wait_for_store(error, times, since)
            else:
                return

    async def _take(self) -> list[Event]:
        """What is there, once it is enough or has waited long enough; nothing if nothing comes for a while."""
        if not self._queue:
            self._arrived.clear()
            try:
                async with asyncio.timeout(EXPIRY_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        if len(self._queue) < self._settings.events and self._settings.within:
            await asyncio.sleep(self._settings.within)
        block = [self._queue.popleft() for _ in range(min(len(self._queue), self._settings.events))]
        self._queued_bytes -= sum(len(event.value or b"") for event in block)
        if self._paused and not self._has_more_than(0.5):
            self._paused = False
            self._callbacks.resume(self)
        return block

    async def settle(self, events: Sequence[Event]) -> None:
        """Returns when all of them are applied, or set aside, and committed."""
        parts = deque([events])
        while parts:
            part = parts.popleft()
            failed = await self._through(part)
            if failed is not None:
                parts.extendleft(reversed(cut(part, failed.index)))

    async def _through(self, part: Sequence[Event]) -> ApplyFailed | None:
        """Commits a part; one of several events that fails is given back, a single one is tried until it is decided."""
        dead_lettered: dict[str, Failure] = {}
        attempts = 0
        away = 0
        away_since = 0.0
        while True:
            try:
                applied = await (self._commit(part, dead_lettered) if part else self._expire(dead_lettered))
            except StoredOffsetMoved:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is the event's failure
                failed = error if isinstance(error, ApplyFailed) else ApplyFailed(error)
                if isinstance(failed.error, ProjectionError):
                    raise failed.error from None  # of the projection as a whole, and not of an event
                self._callbacks.waiting_for(self, failed.error)
                if self._store.is_transient(failed.error):
                    away += 1
                    away_since = away_since or time.monotonic()
                    await self._wait_for_store(failed.error, away, away_since)
                    if away > 1 and len(part) > 1:
                        return ApplyFailed(
                            failed.error
                        )  # perhaps it takes longer than a transaction may: halves do not
                    continue
                away, away_since = 0, 0.0
                if len(part) > 1:
                    return failed
                attempts += 1
                culprit = failed.event or next(iter(part), None)
                if culprit is None:
                    raise failed.error from None
                verdict = judgement(failed.error, attempts, self._settings.max_attempts)
                if verdict is None:
                    await self._sleep(backoff.delay(attempts))
                    continue
                if culprit.id in dead_lettered or isinstance(failed.error, ConfigError):
                    # Set aside, and the store cannot even pass over it; or no event is to blame, but what was declared.
                    raise failed.error from None
                await self._give_up(culprit, verdict, failed.error, dead_lettered)
                attempts = 0
            else:
                self._is_alive()
                self._callbacks.waiting_for(self, None)
                self._callbacks.committed(self, applied)
                return None

    async def _commit(self, part: Sequence[Event], dead_lettered: dict[str, Failure]) -> BatchResult:
        with self._spec.tracing.block(part):
            applied = await self._transact(part, dead_lettered)
        failpoints.reached(failpoints.PROJECTION_COMMITTED)
        self.next = max(self.next, part[-1].offset + 1)
        return applied

    async def _transact(self, part: Sequence[Event], dead_lettered: dict[str, Failure]) -> BatchResult:
        self._is_retold = part[-1].is_rebuild
        async with self._store.transaction(self.partition) as transaction:
            applied = await apply(
                transaction,
                part,
                self._spec,
                expected=self.next,
                furthest=self._furthest,
                now_ms=int(self._clock() * 1000),
                dead_lettered=dead_lettered,
            )
            failpoints.reached(failpoints.PROJECTION_APPLIED)
        return applied

    async def _wait_for_store(self, error: BaseException, times: int, since: float) -> None:
        """The database is away, or wants it done again: that is no fault of the event's, and costs it no attempt."""
        if time.monotonic() - since > self._settings.give_up:
            if isinstance(error, TailraceError):
                raise error
            raise StoreUnavailable(
                f"{self._spec.projection}: its database has been away for {time.monotonic() - since:.0f} s",
                why=told(error),
                remedy="See that it runs and can be reached, then start again: nothing is lost.",
            ) from error
        await self._sleep(0.05 if times == 1 else backoff.delay(times - 1))

    async def _give_up(
        self, event: Event, failure: Failure, error: Exception, dead_lettered: dict[str, Failure]
    ) -> None:
        if self._settings.on_failure == "halt":
            raise Halted(
                f"{self._spec.projection}: {event.type or 'event'} {event.id} at {event.place} cannot be applied: "
                f"{failure.reason.value}",
                why=told(error),
                remedy='Mend the handler or the data and start again, or choose on_failure="dead_letter".',
            ) from error
        await self._callbacks.dead_letter(event, failure)
        failpoints.reached(failpoints.PROJECTION_LETTER)
        dead_lettered[event.id] = failure

    async def pass_over(self, reached: int) -> None:
        """Stores how far it has looked: behind the last event stand the ends of transactions, which have offsets too.

        Retention may delete events that are applied, and what is stored must not look as if some were lost.
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
        """Decides about what has waited too long: what is due by now is applied, the rest is set aside."""
        versions = self._settings.versions
        if versions is not None and versions.gaps == "wait":
            await self._through(())

    async def _expire(self, dead_lettered: dict[str, Failure]) -> BatchResult:
        seconds = self._settings.versions.timeout if self._settings.versions is not None else 0.0
        now = self._clock()
        async with self._store.transaction(self.partition) as transaction:
            applied, overdue = await expire(
                transaction,
                self._spec,
                before_ms=int((now - seconds) * 1000),
                limit=EXPIRED_AT_ONCE,
                now_ms=int(now * 1000),
                is_rebuild=self._is_retold,
                dead_lettered=dead_lettered,
            )
            for each in overdue:
                await self._callbacks.dead_letter(reread(each), waited_too_long(seconds, each.version))
                applied.count(EventOutcome.DEAD)
            await give_up(transaction, overdue)
        return applied
