"""Hands events of partition workers over to the tasks of an agent that wait for events.

A partition worker takes a turn before it opens its transaction: it reserves a waiting task of the agent. So no
transaction waits for an agent, a partition that is retried with delays keeps no task from the others, and an agent with
several tasks works on as many partitions at a time, in each of them event by event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tailrace import failpoints
from tailrace.projections.core.event import Event
from tailrace.projections.core.event_delivery import EventDelivery
from tailrace.projections.core.store import EventOutcome
from tailrace.projections.core.tracing import Tracing

RESERVED_SECONDS = 1.0
"""If a worker needs longer to open its transaction, such as for a lock, another one may use the agent's task."""
PROGRESS_SECONDS = 5.0


class TurnLost(Exception):
    """The agent's task was stopped, or took events of another partition: the worker must take a new turn."""


class TurnTooSmall(Exception):
    """The agent's task waits for fewer events than the batch has."""


class HandoverClosed(Exception):
    """The agent is being stopped."""


class HandoverFailed(Exception):
    """The agent could not apply the events; `index` is the event that it was at, if known."""

    def __init__(self, error: Exception, index: int | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.index = index


class WaitingTask:
    """A task of the agent that waits for at most `limit` events."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.task = asyncio.current_task()
        self.received: asyncio.Future[EventDelivery] = asyncio.get_running_loop().create_future()
        self.turn: Turn | None = None


class Turn:
    """The right of a partition worker to hand over one batch."""

    def __init__(self, handover: Handover, size: int) -> None:
        self._handover = handover
        self.size = size
        self.delivery: EventDelivery | None = None

    async def hand_over(
        self,
        events: Sequence[Event],
        effects: Any,  # noqa: ANN401 - the store's
        tracing: Tracing,
        time_limit: float,
    ) -> EventOutcome:
        """Returns how the agent has settled the events. Raises TimeoutError if it took longer than `time_limit`."""
        waiting = self._handover.claim(self)
        if waiting is None:
            raise TurnLost
        failpoints.reached(failpoints.PROJECTION_HANDED_OVER)
        delivery = self.delivery = EventDelivery(events, effects, tracing)
        delivery.task = waiting.task
        waiting.received.set_result(delivery)
        try:
            async with asyncio.timeout(time_limit):
                await delivery.settled()
        except TimeoutError as error:
            delivery.interrupt()
            delivery.fail(error)
            raise
        if delivery.failure is not None:
            raise HandoverFailed(delivery.failure, delivery.failed_index)
        if delivery.outcome is None:
            raise TurnLost
        return delivery.outcome


class Handover:
    """See the module's docstring. `limit` and `within` say how many events the agent last asked for, and how soon."""

    def __init__(self) -> None:
        self.limit = 1
        self.within = 0.0
        self._waiting: deque[WaitingTask] = deque()
        self._reserved: list[WaitingTask] = []
        self._wanted: deque[asyncio.Future[WaitingTask]] = deque()
        self._turns = 0
        self.is_closed = False

    # Called by the agent.

    async def next(self, limit: int = 1, within: float = 0.0) -> EventDelivery:
        """Waits for events of one partition, at most `limit`. Raises HandoverClosed after `close`."""
        if self.is_closed:
            raise HandoverClosed
        self.limit, self.within = limit, within
        waiting = WaitingTask(limit)
        self._waiting.append(waiting)
        self._match()
        try:
            return await waiting.received
        except asyncio.CancelledError:
            if waiting.received.done() and not waiting.received.cancelled():
                waiting.received.result().fail(None)
            raise
        finally:
            waiting.received.cancel()
            self._forget(waiting)

    def close(self) -> None:
        """Hands no events over any more; the agent's tasks end when they ask for the next ones."""
        self.is_closed = True
        for waiting in (*self._reserved, *self._waiting):
            if not waiting.received.done():
                waiting.received.set_exception(HandoverClosed())

    # Called by partition workers.

    @asynccontextmanager
    async def turn(self, size: int, made_progress: Callable[[], None]) -> AsyncIterator[Turn]:
        """Waits for a task of the agent that takes `size` events; surrounds the transaction.

        The agent's `once()` returns when the body has ended.
        """
        waiting = await self._reserve(made_progress)
        if waiting.limit < size:
            self._give_back(waiting)
            raise TurnTooSmall
        turn = waiting.turn = Turn(self, size)
        self._reserved.append(waiting)
        timer = asyncio.get_running_loop().call_later(RESERVED_SECONDS, self._end_turn, turn)
        error: BaseException | None = None
        try:
            yield turn
        except BaseException as raised:
            error = raised
            raise
        finally:
            timer.cancel()
            self._end_turn(turn)
            if turn.delivery is not None:
                turn.delivery.finish(error)

    def claim(self, turn: Turn) -> WaitingTask | None:
        """Returns the task that takes the events of a turn: the reserved one, or any other that has got none yet.

        A worker whose transaction is open goes first: it takes the task that another one has only reserved.
        """
        known = sorted((*self._reserved, *self._waiting), key=lambda each: each.turn is not turn)
        for waiting in known:
            if waiting.limit >= turn.size and not waiting.received.done():
                self._forget(waiting)
                return waiting
        return None

    async def _reserve(self, made_progress: Callable[[], None]) -> WaitingTask:
        """Waits for its turn. That other partitions have theirs meanwhile is progress of this one, too."""
        wanted: asyncio.Future[WaitingTask] = asyncio.get_running_loop().create_future()
        self._wanted.append(wanted)
        self._match()
        try:
            while not wanted.done():
                turns = self._turns
                await asyncio.wait((wanted,), timeout=PROGRESS_SECONDS)
                if self._turns != turns:
                    made_progress()
            return wanted.result()
        except asyncio.CancelledError:
            if wanted.done():
                self._give_back(wanted.result())
            wanted.cancel()
            raise

    def _end_turn(self, turn: Turn) -> None:
        """Gives the task that is still reserved for this turn back."""
        for waiting in self._reserved:
            if waiting.turn is turn:
                self._reserved.remove(waiting)
                waiting.turn = None
                self._give_back(waiting)
                return

    def _forget(self, waiting: WaitingTask) -> None:
        if waiting in self._reserved:
            self._reserved.remove(waiting)
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def _give_back(self, waiting: WaitingTask) -> None:
        if not waiting.received.done():
            self._waiting.appendleft(waiting)
            self._match()

    def _match(self) -> None:
        """Gives waiting tasks to waiting workers, in the order in which they came."""
        while self._waiting and self._wanted:
            wanted = self._wanted.popleft()
            if not wanted.done():
                self._turns += 1
                wanted.set_result(self._waiting.popleft())
