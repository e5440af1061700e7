"""The stream of an agent whose events are applied exactly once, and how such an agent is run.

The stream gives the agent events one by one, or batches with `take()`. The agent settles each before it asks for the
next. An agent that fails with events in hand is started again at once: that is an attempt of these events, and the
retries of its projection follow. Every other crash is Faust's business.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

import faust
from mode.utils.times import Seconds, want_seconds

from tailrace.errors import AgentEnded, ConfigError, EventNotSettled
from tailrace.projections.core.agent_events import AgentEvent, EventBatch, agent_event, attempt_error
from tailrace.projections.core.event_delivery import EventDelivery
from tailrace.projections.core.handover import HandoverClosed
from tailrace.projections.faust.event_channel import EventChannel

AgentFunction = Callable[[Any], Any]
T = TypeVar("T")


class AgentStream(faust.Stream[AgentEvent]):
    """See the module's docstring."""

    def __init__(self, channel: EventChannel, **options: Any) -> None:  # noqa: ANN401 - Faust's own
        super().__init__(channel, **options)  # type: ignore[arg-type]  # mypy forgets the type that `Self` stands for
        self._handover = channel.handover
        self._delivery: EventDelivery | None = None

    def __aiter__(self) -> AsyncGenerator[AgentEvent, None]:
        """Iterates over the events: in order for each partition, without those that are applied already."""
        return self._iterate(1, 0.0, agent_event)

    def take(self, max_: int, within: Seconds | None = 0.0) -> AsyncGenerator[EventBatch, None]:
        """Iterates over batches: up to `max_` events of one partition, or those of `within` seconds."""
        if max_ < 1:
            raise ConfigError(f"take({max_}) of an agent's events", remedy="Give at least 1.")
        return self._iterate(max_, want_seconds(within or 0.0), EventBatch)

    async def _iterate(self, limit: int, within: float, make: Callable[[EventDelivery], T]) -> AsyncGenerator[T, None]:
        self._require_one_loop()
        while True:
            try:
                delivery = self._delivery = await self._handover.next(limit, within)
            except HandoverClosed:
                return
            self.events_total += len(delivery.events)
            yield make(delivery)
            delivery.end_interruption()
            if not delivery.is_settled:
                raise delivery.fail_unsettled()
            await delivery.finished()

    def _require_one_loop(self) -> None:
        """Raises if another loop over this stream has events in hand."""
        delivery = self._delivery
        if delivery is None or delivery.is_settled:
            return
        if delivery.task is None or delivery.task.done():
            # Faust has started the agent again, such as after an error of its sinks.
            delivery.fail(RuntimeError("the agent ended before it settled its events"))
            return
        if delivery.task is asyncio.current_task():
            raise delivery.fail_unsettled()
        raise EventNotSettled(
            f"a second task reads the stream of an agent that has {delivery}",
            why="A stream has the events of one task.",
            remedy="Give the agent several tasks: `@app.agent(app.events(…), concurrency=2)`.",
        )

    async def recovers(self, error: BaseException) -> bool:
        """Ends the attempt of an agent that raised; returns whether the agent must be started again.

        It must not if it was cancelled, or if it has no events that are still to be applied.
        """
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            return False
        delivery.end_interruption()
        delivery.fail(attempt_error(error))
        task = asyncio.current_task()
        if not isinstance(error, Exception) and (
            not isinstance(error, asyncio.CancelledError) or (task is not None and task.cancelling())
        ):
            return False
        await delivery.finished()
        return not delivery.is_applied

    def require_stopped(self, agent: str) -> None:
        """Raises unless the agent has returned because it is stopped."""
        if self._delivery is not None and not self._delivery.is_settled:
            raise self._delivery.fail_unsettled()
        if not self._handover.is_closed:
            raise AgentEnded(
                f"the agent {agent} has returned",
                why="Its events would not be applied any more.",
                remedy="Let it iterate over its stream until it is stopped: `async for event in stream:`.",
            )

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - stands for several methods
        raise ConfigError(
            "this method of a stream cannot be used for events that are applied exactly once",
            why="It would acknowledge, repartition or replace events that are not settled.",
            remedy="Iterate over the stream, or over `stream.take(500, within=0.05)`. To leave events out, call"
            " `event.skip()`; to send them elsewhere, use a separate agent on `app.topic(…)`.",
        )

    def add_processor(self, processor: Callable[..., Any]) -> None:
        """Ignores the one that Faust adds to agents that yield, for requests; refuses all others."""
        if getattr(processor, "__name__", "") != "_maybe_unwrap_reply_request":
            self._refuse()

    items = events = noack = noack_take = take_events = take_with_timestamp = _refuse
    through = echo = group_by = filter = combine = contribute_to_stream = _refuse
    join = left_join = inner_join = outer_join = _refuse


def run_agent(function: AgentFunction) -> AgentFunction:
    """Wraps the function of an agent: it is started again after a failed attempt, and must not return."""
    name = getattr(function, "__qualname__", repr(function))

    @wraps(function)
    async def run(stream: AgentStream) -> None:
        _require_agent_stream(stream)
        while True:
            try:
                await function(stream)
                stream.require_stopped(name)
            except BaseException as error:
                if not await stream.recovers(error):
                    raise
            else:
                return

    @wraps(function)
    async def run_yielding(stream: AgentStream) -> AsyncGenerator[Any, None]:
        _require_agent_stream(stream)
        while True:
            try:
                async for value in function(stream):
                    yield value
                stream.require_stopped(name)
            except BaseException as error:
                if not await stream.recovers(error):
                    raise
            else:
                return

    return run_yielding if inspect.isasyncgenfunction(inspect.unwrap(function)) else run


def _require_agent_stream(stream: object) -> None:
    if not isinstance(stream, AgentStream):
        raise ConfigError(
            "an agent of `app.events(…)` is run on another stream",
            why="It settles its events, and other streams have none to settle.",
            remedy="To test it, use `ProjectionTester(agent)`.",
        )
