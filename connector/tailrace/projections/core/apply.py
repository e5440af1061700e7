"""Applies a batch of events of one partition in one transaction: markers, effects and next offset, all or nothing.

The order of the steps carries the guarantee:

1. Read the stored position. This locks the partition against a second worker and shows what is applied already.
2. Write the markers. Only events whose marker is new go on.
3. Check versions and call handlers, event by event, in the order of the partition; or hand the events over to an agent.
4. Store the next offset. The caller commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.errors import Reason, Rejected
from tailrace.projections.core.event import REDRIVEN_FOR, REPLAY, Event, index_key, restore_event
from tailrace.projections.core.first_step import first_step
from tailrace.projections.core.handlers import RegisteredHandler
from tailrace.projections.core.handover import HandoverFailed, Turn
from tailrace.projections.core.settings import ProjectionSpec
from tailrace.projections.core.store import EntityState, EventOutcome, Marker, StoreTransaction, WaitingEvent
from tailrace.projections.core.tracing import NOTHING
from tailrace.projections.core.versions import VersionCheck, check_version


class ApplyFailed(Exception):
    """An event of a batch could not be applied.

    `index` is the position in the batch at which it failed, None if unknown. `event` is the event that failed: not the
    one at `index` if it had waited for that one.
    """

    def __init__(self, error: Exception, index: int | None = None, event: Event | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.index = index
        self.event = event


class HandlerTimeout(Exception):
    """A handler did not return within `time_limit`, or an agent did not settle its events."""


class StoredOffsetMoved(Exception):
    """The stored position is lower than this worker left it: someone has reset it."""

    def __init__(self, stored: int | None, expected: int) -> None:
        super().__init__(f"the stored position is {stored}, expected {expected}")
        self.stored = stored
        self.expected = expected


@dataclass(slots=True)
class BatchResult:
    """Counts of a batch's outcomes. `deleted` of the applied events delete their entity.

    The worker adds what the metrics need: number and times of the batch's events, and how long the batch took.
    """

    outcomes: dict[EventOutcome, int] = field(default_factory=dict)
    duplicates: int = 0
    deleted: int = 0
    size: int = 0
    first_ms: int = 0
    last_ms: int = 0
    seconds: float = 0.0
    is_rebuild: bool = False

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
    turn: Turn | None = None,
) -> BatchResult:
    """Applies `events` and stores the offset after the last of them.

    `expected` is the position as this worker knows it. Offsets below `furthest` have been read before. `dead_lettered`
    holds the ids of events that are on the dead-letter topic already. With a `turn`, an agent applies the events.
    """
    stored = await transaction.position()
    if stored is not None and stored < expected:
        raise StoredOffsetMoved(stored, expected)
    run = BatchRun(transaction, spec, furthest, now_ms, dead_lettered, turn)
    await run.apply_all([event for event in events if stored is None or event.offset >= stored])
    await transaction.flush()
    next_offset = events[-1].offset + 1
    if stored is None or next_offset > stored:
        await transaction.advance(next_offset)
    return run.result


class BatchRun:
    """The events of one transaction, with the versions and waiting events of their entities."""

    def __init__(
        self,
        transaction: StoreTransaction[Any],
        spec: ProjectionSpec,
        furthest: int,
        now_ms: int,
        dead_lettered: Collection[str],
        turn: Turn | None = None,
    ) -> None:
        self.result = BatchResult()
        self._transaction = transaction
        self._spec = spec
        self._versions = spec.settings.versions
        self._furthest = furthest
        self._now_ms = now_ms
        self._dead_lettered = dead_lettered
        self._turn = turn
        self._horizon: int | None = None
        self.states: dict[str, EntityState] = {}
        self._changed: dict[str, EntityState] = {}
        self._waiting: dict[str, dict[int, WaitingEvent]] = {}
        self._new_waiting: list[WaitingEvent] = []
        self.released: list[str] = []
        self._outcomes: dict[str, EventOutcome] = {}

    async def apply_all(self, events: Sequence[Event]) -> None:
        """Applies the events in order, each followed by the events that waited for it."""
        if self._spec.settings.on_replay != "apply":
            events = [event for event in events if event.replay_id is None]
        if not events:
            return
        fresh = await self._mark(events)
        if self._turn is not None:
            await self._hand_over(events, fresh, self._turn)
            await self.save()
            return
        if self._versions is not None:
            await self.load_entities({event.entity for event in events if event.entity is not None})
        for index, event in enumerate(events):
            if event.id not in fresh:
                self.result.duplicates += 1
                continue
            fresh.discard(event.id)
            current = event
            try:
                if self._may_be_repeat(event):
                    await self._require_marker_kept(event)
                took_effect = await self._apply_one(event)
                while took_effect and (successor := self.successor(current)) is not None:
                    current = restore_event(successor)
                    current.is_rebuild = event.is_rebuild
                    took_effect = await self.apply_released(current)
            except Exception as error:
                raise ApplyFailed(error, index, current) from error
        await self.save()

    async def _hand_over(self, events: Sequence[Event], fresh: set[str], turn: Turn) -> None:
        """Lets an agent apply the events that are new, all at once."""
        handed: list[int] = []
        for index, event in enumerate(events):
            if event.id not in fresh:
                self.result.duplicates += 1
                continue
            fresh.discard(event.id)
            if event.id in self._dead_lettered:
                self._record(event, EventOutcome.DEAD)
                continue
            try:
                if self._may_be_repeat(event):
                    await self._require_marker_kept(event)
                registered = self._spec.handlers.find(event)
                if registered is not None:
                    self._spec.handlers.decode_data(event, registered)
            except Exception as error:
                raise ApplyFailed(error, index, event) from error
            handed.append(index)
        if not handed:
            return
        self._spec.on_handler_call()
        chosen = [events[index] for index in handed]
        limit = self._spec.settings.time_limit
        try:
            outcome = await turn.hand_over(chosen, self._transaction.effects, self._spec.tracing, limit)
        except TimeoutError:
            raise _failed_at(HandlerTimeout(f"the agent took longer than {limit:g} s"), events, handed, None) from None
        except HandoverFailed as failed:
            raise _failed_at(failed.error, events, handed, failed.index) from failed.error
        for event in chosen:
            self._record(event, outcome)
            self.result.deleted += event.is_tombstone and outcome is EventOutcome.APPLIED

    async def apply_released(self, event: Event) -> bool:
        """Applies an event that waited; returns whether it took effect."""
        self.released.append(event.id)
        return await self._apply_one(self._identify(event))

    def _may_be_repeat(self, event: Event) -> bool:
        """Whether it may have been applied long ago: replayed, read again, or redriven for another projection."""
        if event.offset < self._furthest or REPLAY in event.header_values:
            return True
        return REDRIVEN_FOR in event.header_values and event.redriven_for not in (None, self._spec.projection)

    def _identify(self, event: Event) -> Event:
        """Fills in entity and version."""
        if event.id in self._dead_lettered:
            return event  # these functions may be what failed
        if event.unreadable is not None:
            raise Rejected(
                Reason.POISON_MESSAGE,
                f"the record cannot be read: {event.unreadable}",
                remedy="Fix the service that wrote it; then have it write the event again.",
            )
        entity = self._spec.entity(event)
        event.entity = None if entity is None else index_key(str(entity))
        event.version = self._spec.version(event)
        return event

    async def _mark(self, events: Sequence[Event]) -> set[str]:
        for index, event in enumerate(events):
            try:
                self._identify(event)
            except Exception as error:
                raise ApplyFailed(error, index, event) from error
        return await self._transaction.mark(
            [Marker(each.id, each.entity, each.version, each.time_ms) for each in events]
        )

    async def load_entities(self, names: set[str]) -> set[str]:
        """Loads versions and waiting events of entities; returns the ids of the waiting events."""
        if not names:
            return set()
        self.states = await self._transaction.entities(names)
        waits = self._versions is not None and self._versions.gaps == "wait"
        found = await self._transaction.waiting(names) if waits else []
        for waiting in found:
            self._waiting.setdefault(waiting.entity, {})[waiting.version] = waiting
        return {waiting.event_id for waiting in found}

    async def _require_marker_kept(self, event: Event) -> None:
        """Rejects a repeated event whose marker may have been pruned: it is unknown whether it was applied."""
        if self._horizon is None:
            self._horizon = await self._transaction.horizon()
        if event.time_ms < self._horizon and event.id not in self._dead_lettered:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                "the event was published or read again, and is older than the markers that are kept",
                remedy="Rebuild the projection (`tailrace project … --rebuild`), or keep markers longer.",
            )

    async def _apply_one(self, event: Event) -> bool:
        """Applies an event; returns whether it took effect, so that its waiting successor may follow."""
        if event.id in self._dead_lettered:
            self._record(event, EventOutcome.DEAD)
            return False
        known = self.states.get(event.entity) if event.entity is not None else None
        if self._versions is not None and event.entity is not None:
            check = check_version(event.version, known, self._versions)
            if check is VersionCheck.STALE:
                self._record(event, EventOutcome.STALE)
                return False
            if check is VersionCheck.TOO_EARLY:
                self._record(event, EventOutcome.WAITING)
                waiting = event.waiting(self._now_ms)
                self._new_waiting.append(waiting)
                self._waiting.setdefault(waiting.entity, {}).setdefault(waiting.version, waiting)
                return False
        registered = self._spec.handlers.find(event)
        if registered is None:
            self._record(event, EventOutcome.SKIPPED)
        else:
            self._spec.handlers.decode_data(event, registered)
            await self._call_handler(registered, event)
            self._record(event, EventOutcome.APPLIED)
        deleted = event.is_tombstone or (registered is not None and registered.deletes)
        if deleted and registered is not None:
            self.result.deleted += 1
        if event.version is not None and event.entity is not None and self._versions is not None:
            self.states[event.entity] = self._changed[event.entity] = EntityState(event.version, deleted)
        return True

    async def _call_handler(self, registered: RegisteredHandler, event: Event) -> None:
        self._spec.on_handler_call()
        trace = self._spec.tracing.handler(event)
        effects = self._transaction.effects
        try:
            if trace is not NOTHING:
                with trace:
                    await self._finish_call(registered.handler(event, effects))
            elif (rest := first_step(registered.handler(event, effects))) is not None:
                await self._finish_call(rest)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something the handler awaited was cancelled. Raised as it is, it would end the worker silently.
            raise RuntimeError("the handler waited for a task that was cancelled") from None

    async def _finish_call(self, call: Awaitable[None]) -> None:
        limit = asyncio.timeout(self._spec.settings.time_limit)
        try:
            async with limit:
                await call
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeout(f"the handler took longer than {self._spec.settings.time_limit:g} s") from None
            raise

    def successor(self, event: Event) -> WaitingEvent | None:
        """Removes and returns the event that waits for `event`, if any."""
        if event.entity is None or event.version is None:
            return None
        return self._waiting.get(event.entity, {}).pop(event.version + 1, None)

    def _record(self, event: Event, outcome: EventOutcome) -> None:
        if outcome is not EventOutcome.APPLIED or self.released:
            self._outcomes[event.id] = outcome
        self.result.count(outcome)

    async def save(self) -> None:
        """Stores waiting and released events, versions and outcomes."""
        begun = [waiting for waiting in self._new_waiting if waiting.event_id not in self.released]
        if begun:
            await self._transaction.wait(begun)
        if self.released:
            await self._transaction.release(self.released)
        if self._changed:
            await self._transaction.save_entities(self._changed)
        outcomes = self._changed_outcomes()
        if outcomes:
            await self._transaction.set_outcomes(outcomes)

    def _changed_outcomes(self) -> Mapping[str, EventOutcome]:
        """Returns the outcomes that differ from what the markers say: APPLIED, or WAITING for released events."""
        released = set(self.released)
        applied = EventOutcome.APPLIED
        return {name: each for name, each in self._outcomes.items() if each is not applied or name in released}


def _failed_at(error: Exception, events: Sequence[Event], handed: Sequence[int], index: int | None) -> ApplyFailed:
    """Returns the failure of an agent, which was at the event `index` of those that were handed over."""
    if index is None and len(handed) == 1:
        index = 0
    if index is None:
        return ApplyFailed(error)
    return ApplyFailed(error, handed[index], events[handed[index]])
