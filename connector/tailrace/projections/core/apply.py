"""A block of events of one partition, applied in one transaction: marker, effect and next offset, all or nothing.

The order of steps carries the guarantee. First the position, which locks the partition against a second worker and says
what is done already. Then the markers: only events whose marker is new go on. Then versions and handlers, event by
event, in the order of the partition. Last the next offset. The caller commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.errors import Reason, Rejected
from tailrace.projections.core.event import Event, EventFunction, name, reread
from tailrace.projections.core.handlers import Handlers, RegisteredHandler
from tailrace.projections.core.settings import Settings, key_of, version_header
from tailrace.projections.core.store import EntityState, EventOutcome, Marker, StoreTransaction, WaitingEvent
from tailrace.projections.core.versions import VersionCheck, check_version


class ApplyFailed(Exception):
    """An event of a block could not be applied. `index` is its place in the block, None if nobody can tell.

    `event` is the culprit; it is not that of the block if it had waited for the one at `index`.
    """

    def __init__(self, error: Exception, index: int | None = None, event: Event | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.index = index
        self.event = event


class HandlerTimeout(Exception):
    """A handler did not return within its time."""


class StoredOffsetMoved(Exception):
    """The stored position is not where this worker left it: somebody has reset it."""

    def __init__(self, stored: int | None, expected: int) -> None:
        super().__init__(f"the stored position is {stored}, expected {expected}")
        self.stored = stored
        self.expected = expected


class Tracing(Protocol):
    """What surrounds the work, so that it shows in traces."""

    def block(self, events: Sequence[Event]) -> AbstractContextManager[object]:
        """Around the transaction of a block."""

    def handling(self, event: Event) -> AbstractContextManager[object]:
        """Around a handler's call: what it calls belongs to the trace of the event."""


class NoTracing:
    _nothing = nullcontext()

    def block(self, events: Sequence[Event]) -> AbstractContextManager[object]:
        return self._nothing

    def handling(self, event: Event) -> AbstractContextManager[object]:
        return self._nothing


@dataclass(frozen=True, slots=True)
class ProjectionSpec:
    """What a projection does with an event: everything but its store and its partition."""

    projection: str
    handlers: Handlers
    settings: Settings
    entity: EventFunction = key_of
    version: EventFunction = version_header
    tracing: Tracing = field(default_factory=NoTracing)
    alive: Callable[[], None] = lambda: None
    """Called before each handler: a block of slow ones takes long, and still gets on."""


@dataclass(slots=True)
class BatchResult:
    """What one block came to."""

    outcomes: dict[EventOutcome, int] = field(default_factory=dict)
    duplicates: int = 0

    def count(self, outcome: EventOutcome) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


async def apply(
    transaction: StoreTransaction[Any],
    events: Sequence[Event],
    spec: ProjectionSpec,
    *,
    expected: int,
    furthest: int,
    now_ms: int,
    dead_lettered: Collection[str] = (),
) -> BatchResult:
    """Applies `events` and stores the offset behind the last of them.

    `expected` is the position as this worker knows it; what is below `furthest` has been read before. Events whose ids
    are `dead_lettered` have gone to the dead letters.
    """
    stored = await transaction.position()
    if stored is not None and stored < expected:
        raise StoredOffsetMoved(stored, expected)
    run = BatchRun(transaction, spec, furthest, now_ms, dead_lettered)
    await run.through([event for event in events if stored is None or event.offset >= stored])
    await transaction.flush()
    behind = events[-1].offset + 1
    if stored is None or behind > stored:
        await transaction.advance(behind)
    return run.applied


class BatchRun:
    """One transaction's worth of events, and what is known of their entities."""

    def __init__(
        self,
        transaction: StoreTransaction[Any],
        spec: ProjectionSpec,
        furthest: int,
        now_ms: int,
        dead_lettered: Collection[str],
    ) -> None:
        self.applied = BatchResult()
        self._transaction = transaction
        self._spec = spec
        self._versions = spec.settings.versions
        self._furthest = furthest
        self._now_ms = now_ms
        self._doomed = dead_lettered
        self._horizon: int | None = None
        self.states: dict[str, EntityState] = {}
        self._changed: dict[str, EntityState] = {}
        self._waiting: dict[str, dict[int, WaitingEvent]] = {}
        self._begun: list[WaitingEvent] = []
        self.released: list[str] = []
        self._outcomes: dict[str, EventOutcome] = {}

    async def through(self, events: Sequence[Event]) -> None:
        """All of them, in order."""
        if self._spec.settings.on_replay != "apply":
            events = [event for event in events if event.replay_id is None]
        if not events:
            return
        fresh = await self._mark(events)
        if self._versions is not None:
            await self.recall({event.entity for event in events if event.entity is not None})
        for index, event in enumerate(events):
            if event.id not in fresh:
                self.applied.duplicates += 1
                continue
            fresh.discard(event.id)
            culprit = event
            try:
                if self._is_told_again(event):
                    await self._require_remembered(event)
                went_on = await self._one(event)
                while went_on and (waited := self.successor(culprit)) is not None:
                    culprit = reread(waited)
                    culprit.is_rebuild = event.is_rebuild
                    went_on = await self.waited(culprit)
            except Exception as error:
                raise ApplyFailed(error, index, culprit) from error
        await self.write_down()

    async def waited(self, event: Event) -> bool:
        """One that has waited, and waits no more; whether it took effect."""
        self.released.append(event.id)
        return await self._one(self._tell(event))

    def _is_told_again(self, event: Event) -> bool:
        """Replayed, read again after a reset, or put back for somebody else: it may have been applied long ago."""
        others = event.redriven_for not in (None, self._spec.projection)
        return event.offset < self._furthest or event.replay_id is not None or others

    def _tell(self, event: Event) -> Event:
        if event.id in self._doomed:
            return event  # perhaps because of this
        entity = self._spec.entity(event)
        event.entity = None if entity is None else name(str(entity))
        event.version = self._spec.version(event)
        return event

    async def _mark(self, events: Sequence[Event]) -> set[str]:
        for index, event in enumerate(events):
            try:
                self._tell(event)
            except Exception as error:
                raise ApplyFailed(error, index, event) from error
        return await self._transaction.mark(
            [Marker(each.id, each.entity, each.version, each.time_ms) for each in events]
        )

    async def recall(self, names: set[str]) -> set[str]:
        """Looks up their versions, and what waits for them; the ids of these."""
        if not names:
            return set()
        self.states = await self._transaction.entities(names)
        waits = self._versions is not None and self._versions.gaps == "wait"
        found = await self._transaction.waiting(names) if waits else []
        for waiting in found:
            self._waiting.setdefault(waiting.entity, {})[waiting.version] = waiting
        return {waiting.event_id for waiting in found}

    async def _require_remembered(self, event: Event) -> None:
        """Told again, but so old that its marker may have been pruned: nobody knows whether it was applied."""
        if self._horizon is None:
            self._horizon = await self._transaction.horizon()
        if event.time_ms < self._horizon and event.id not in self._doomed:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                "the event is told again, and is older than the markers that are kept",
                remedy="Rebuild the projection (`tailrace project … --rebuild`), or keep markers longer.",
            )

    async def _one(self, event: Event) -> bool:
        """Whether it took effect, so that what waited for it may go on."""
        if event.id in self._doomed:
            self._settle(event, EventOutcome.DEAD)
            return False
        known = self.states.get(event.entity) if event.entity is not None else None
        if self._versions is not None and event.entity is not None:
            when = check_version(event.version, known, self._versions)
            if when is VersionCheck.STALE:
                self._settle(event, EventOutcome.STALE)
                return False
            if when is VersionCheck.LATER:
                self._settle(event, EventOutcome.WAITING)
                waiting = event.waiting(self._now_ms)
                self._begun.append(waiting)
                self._waiting.setdefault(waiting.entity, {}).setdefault(waiting.version, waiting)
                return False
        handling = self._spec.handlers.find(event)
        if handling is None:
            self._settle(event, EventOutcome.SKIPPED)
        else:
            self._spec.handlers.read(event, handling)
            await self._call(handling, event)
            self._settle(event, EventOutcome.APPLIED)
        if event.version is not None and event.entity is not None and self._versions is not None:
            deleted = event.is_tombstone or (handling is not None and handling.deletes)
            self.states[event.entity] = self._changed[event.entity] = EntityState(event.version, deleted)
        return True

    async def _call(self, handling: RegisteredHandler, event: Event) -> None:
        self._spec.alive()
        limit = asyncio.timeout(self._spec.settings.time_limit)
        try:
            with self._spec.tracing.handling(event):
                async with limit:
                    await handling.handler(event, self._transaction.effects)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Of something that the handler waited for. Let out, it would end the worker without a word.
            raise RuntimeError("the handler waited for a task that was cancelled") from None
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeout(f"the handler took longer than {self._spec.settings.time_limit:g} s") from None
            raise

    def successor(self, event: Event) -> WaitingEvent | None:
        """The one that waited for `event`, if any."""
        if event.entity is None or event.version is None:
            return None
        return self._waiting.get(event.entity, {}).pop(event.version + 1, None)

    def _settle(self, event: Event, outcome: EventOutcome) -> None:
        self._outcomes[event.id] = outcome
        self.applied.count(outcome)

    async def write_down(self) -> None:
        """Stores what has changed beside the effects."""
        begun = [waiting for waiting in self._begun if waiting.event_id not in self.released]
        if begun:
            await self._transaction.wait(begun)
        if self.released:
            await self._transaction.release(self.released)
        if self._changed:
            await self._transaction.save_entities(self._changed)
        corrected = self._corrected()
        if corrected:
            await self._transaction.settle(corrected)

    def _corrected(self) -> Mapping[str, EventOutcome]:
        """`mark` wrote APPLIED for the block's own; what had waited was marked as such."""
        released = set(self.released)
        return {
            name: each for name, each in self._outcomes.items() if each is not EventOutcome.APPLIED or name in released
        }
