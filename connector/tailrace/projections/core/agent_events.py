"""What an agent gets from its stream: events, or batches of events, that it settles with `once()` or `skip()`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import TracebackType
from typing import Any, overload

from tailrace.errors import ConfigError
from tailrace.projections.core import holders
from tailrace.projections.core.event import Event
from tailrace.projections.core.event_delivery import EventDelivery
from tailrace.projections.core.store import EventOutcome, Partition
from tailrace.projections.core.tracing import NOTHING


class EventTransaction:
    """The `with` body in which an agent applies its events: marker, effects and next offset are one transaction.

    Returns when the transaction is committed. If it is rolled back, the error of the body is raised, or
    EventNotApplied; the events are tried again either way.
    """

    def __init__(self, delivery: EventDelivery) -> None:
        self._delivery = delivery
        self._trace = NOTHING

    async def __aenter__(self) -> Any:  # noqa: ANN401 - the store's effects
        delivery = self._delivery
        effects = delivery.enter()
        holders.adopt(delivery.holders)
        if len(delivery.events) == 1:
            self._trace = delivery.tracing.handler(delivery.events[0])  # type: ignore[assignment]
        self._trace.__enter__()
        return effects

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._trace.__exit__(kind, error, traceback)
        holders.drop(self._delivery.holders)
        if error is None:
            self._delivery.settle(EventOutcome.APPLIED)
        elif not self._delivery.is_settled or not isinstance(error, Exception):
            self._delivery.fail(attempt_error(error))
            return
        # If the transaction has ended within the body, that is probably why the body has failed.
        await self._delivery.committed()


def attempt_error(error: BaseException) -> Exception | None:
    """Returns the failure that an error of an agent is; None if the agent was stopped, which is no failure."""
    if isinstance(error, Exception):
        return error
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and not (task and task.cancelling()):
        return RuntimeError("the agent waited for a task that was cancelled")
    return None


@dataclass(slots=True)
class AgentEvent(Event):
    """An event that an agent settles: with `once()`, which applies it, or with `skip()`."""

    delivery: EventDelivery | None = field(default=None, repr=False, compare=False)
    """Settles it; None for an event of a batch."""

    def once(self) -> EventTransaction:
        """Opens the transaction of the event: `async with event.once() as effects:`."""
        return EventTransaction(self._own())

    def skip(self) -> None:
        """Settles the event without effects. The agent may ask for the next one."""
        self._own().settle(EventOutcome.SKIPPED)

    def _own(self) -> EventDelivery:
        if self.delivery is None:
            raise ConfigError(
                f"the event {self.id} at {self.location} is part of a batch",
                why="A batch is one transaction.",
                remedy="Use `batch.once()` or `batch.skip()`, or iterate over the stream without `take()`.",
            )
        return self.delivery


_FIELDS = attrgetter(*(each.name for each in fields(Event)))


def agent_event(delivery: EventDelivery) -> AgentEvent:
    """Returns the only event of a delivery."""
    return AgentEvent(*_FIELDS(delivery.events[0]), delivery)  # type: ignore[call-arg]


class EventBatch(Sequence[AgentEvent]):
    """Events of one partition, in order, that are applied in one transaction."""

    def __init__(self, delivery: EventDelivery) -> None:
        self._delivery = delivery
        self._events = [AgentEvent(*_FIELDS(event)) for event in delivery.events]

    def once(self) -> EventTransaction:
        """Opens the transaction of the batch: `async with batch.once() as effects:`."""
        return EventTransaction(self._delivery)

    def skip(self) -> None:
        """Settles all events of the batch without effects."""
        self._delivery.settle(EventOutcome.SKIPPED)

    @property
    def partition(self) -> Partition:
        return self._events[0].partition

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> AgentEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[AgentEvent]: ...

    def __getitem__(self, index: int | slice) -> AgentEvent | list[AgentEvent]:
        return self._events[index]

    def __iter__(self) -> Iterator[AgentEvent]:
        """Remembers the event that the agent is at: if it fails there, the batch is split around that event."""
        delivery = self._delivery
        for index, event in enumerate(self._events):
            delivery.current_index = index
            yield event
        delivery.current_index = None

    def __repr__(self) -> str:
        return f"<{self._delivery}>"
