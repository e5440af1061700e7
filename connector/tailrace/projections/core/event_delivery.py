"""Events of one partition that an agent has, from the moment it gets them until their transaction has ended.

    handed over -> entered (`once`) -> settled (applied, skipped or failed) -> finished (committed or rolled back)

The partition worker has opened the transaction and waits for `settled`; the agent's `once()` waits for `finished`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tailrace.errors import EventNotApplied, EventNotSettled, EventSettledTwice
from tailrace.projections.core import holders
from tailrace.projections.core.event import Event
from tailrace.projections.core.store import EventOutcome
from tailrace.projections.core.tracing import Tracing


class EventDelivery:
    """See the module's docstring. Created in the task of the partition worker, which holds the transaction."""

    def __init__(self, events: Sequence[Event], effects: Any, tracing: Tracing) -> None:  # noqa: ANN401 - the store's
        self.events = events
        self.tracing = tracing
        self.holders = holders.current()
        self.outcome: EventOutcome | None = None
        self.failure: Exception | None = None
        """Why the agent could not apply the events. Without one they are tried again as if nothing had happened."""
        self.failed_index: int | None = None
        """Which event the agent was at when it failed, if known."""
        self.current_index: int | None = None
        """Which event the agent is at, if it iterates over a batch."""
        self.task: asyncio.Task[Any] | None = None
        """The task of the agent that has the events."""
        self._effects = effects
        self._is_entered = False
        self._is_applied = False
        self._is_interrupted = False
        self._settled = asyncio.Event()
        self._finished = asyncio.Event()
        self._error: BaseException | None = None

    def __str__(self) -> str:
        first, last = self.events[0], self.events[-1]
        if first is last:
            return f"the event {first.id} at {first.location}"
        return f"the batch of {len(self.events)} events at {first.location} to {last.offset}"

    # Called by the agent.

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    @property
    def is_applied(self) -> bool:
        """Whether the events are committed: applied or skipped."""
        return self._is_applied

    def enter(self) -> Any:  # noqa: ANN401 - the store's effects
        """Begins `once()`; returns the effects."""
        if self._finished.is_set() and not self._is_applied:
            raise self._not_applied()
        if self._is_entered or self.is_settled:
            raise self._settled_twice()
        self._is_entered = True
        return self._effects

    def settle(self, outcome: EventOutcome) -> None:
        """Ends `once()`, or skips the events."""
        if self._finished.is_set() and not self._is_applied:
            raise self._not_applied()
        if self.is_settled or (outcome is EventOutcome.SKIPPED and self._is_entered):
            raise self._settled_twice()
        self.outcome = outcome
        self._settled.set()

    def fail(self, error: Exception | None) -> None:
        """Ends the attempt, unless it is settled. None means that the agent was stopped: the attempt does not count."""
        if not self.is_settled:
            self.failure, self.failed_index = error, self.current_index
            self._settled.set()

    def fail_unsettled(self) -> EventNotSettled:
        """Ends the attempt of an agent that goes on without settling its events; returns the error for it."""
        error = EventNotSettled(
            f"{self} was not settled before the agent went on",
            why="`once()` is still open in another task."
            if self._is_entered
            else "The agent called neither `once()` nor `skip()`: events behind it would be applied before it.",
            remedy="Await the task that uses `once()`."
            if self._is_entered
            else "Use `async with event.once() as"
            " effects:`, or call `event.skip()`, for each event (of a batch: `batch.once()`, `batch.skip()`).",
        )
        self.fail(error)
        return error

    async def committed(self) -> None:
        """Returns when the events are committed; raises EventNotApplied if they are rolled back."""
        await self._finished.wait()
        if not self._is_applied:
            raise self._not_applied() from self._error

    async def finished(self) -> None:
        """Returns when the transaction has ended."""
        await self._finished.wait()

    # Called by the partition worker.

    async def settled(self) -> None:
        await self._settled.wait()

    def finish(self, error: BaseException | None) -> None:
        """Ends the delivery: committed if there is no error."""
        self._error = error
        self._is_applied = error is None
        self._settled.set()
        self._finished.set()

    def interrupt(self) -> None:
        """Cancels the agent, which has taken too long."""
        if self.task is not None and not self.is_settled:
            self._is_interrupted = self.task.cancel()

    def end_interruption(self) -> bool:
        """Returns whether the agent was cancelled by `interrupt`, and lets its task continue."""
        interrupted, self._is_interrupted = self._is_interrupted, False
        if interrupted and self.task is not None:
            self.task.uncancel()
        return interrupted

    def _not_applied(self) -> EventNotApplied:
        why = "The worker lost its partition, or is stopping."
        if self.failure is not None:
            why = f"The attempt has failed: {type(self.failure).__name__}."
        elif isinstance(self._error, Exception):
            why = f"The transaction could not be committed: {type(self._error).__name__}."
        return EventNotApplied(
            f"{self} was not applied", why=why, remedy="None needed: it is applied again from the stored offset."
        )

    def _settled_twice(self) -> EventSettledTwice:
        return EventSettledTwice(
            f"{self} was settled before",
            why="`once()` or `skip()` was called again, or after the end of `once()`.",
            remedy="Call one of them, once for each event (of a batch: once for the batch).",
        )
