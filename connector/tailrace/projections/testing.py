"""Tests a projection without a broker: events go straight to its handlers and its store.

    async with ProjectionTester(orders) as tester:
        await tester.send("OrderPlaced", {"id": "o-1"}, key="o-1")
        assert tester.dead_letters == []
        async with tester.effects() as effects:
            assert await effects.fetch_one("SELECT state FROM order_summary") == {"state": "placed"}

The partition worker processes them as in production: markers, versions, transactions, retries (without waiting). For an
agent of `app.events(…)`, give the agent instead of a projection: `ProjectionTester(agent)`.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

import orjson
from faust.types import AgentT

from tailrace.projections.core.apply import BatchResult
from tailrace.projections.core.event import REPLAY, Event, read_event
from tailrace.projections.core.failures import Failure
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.agent_stream import AgentStream
from tailrace.projections.faust.event_channel import EventChannel
from tailrace.projections.projection import Projection

FIRST_TIME_MS = 1_700_000_000_000


class FailedEvent(NamedTuple):
    """An event that a worker would have dead-lettered, and why."""

    event: Event
    failure: Failure


class ProjectionTester:
    """Stands for one partition of the projection's first topic. `outcomes` counts the outcomes of events."""

    def __init__(self, projection: Projection | AgentT[Any]) -> None:
        self._agent = None if isinstance(projection, Projection) else projection
        self._projection = projection if isinstance(projection, Projection) else _channel(projection).projection
        self._agent_tasks: list[asyncio.Task[None]] = []
        self._partition = Partition(self._projection.topics[0], 0)
        self._offsets = itertools.count()
        self._worker: PartitionWorker | None = None
        self.dead_letters: list[FailedEvent] = []
        self.outcomes: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        store = self._projection.store
        await store.open(self._projection.name)
        start = (await store.positions()).get(self._partition, 0)
        self._offsets = itertools.count(start)
        furthest = (await store.furthest()).get(self._partition, 0)
        spec = self._projection.spec
        self._worker = PartitionWorker(self._partition, start, furthest, store, spec, self, sleep=_no_sleep)
        if self._agent is not None:
            self._agent_tasks = [asyncio.create_task(_run(self._agent)) for _ in range(self._agent.concurrency)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._agent_tasks:
            task.cancel()
        await asyncio.gather(*self._agent_tasks, return_exceptions=True)
        await self._projection.store.close()

    async def send(
        self,
        kind: str,
        data: Any,  # noqa: ANN401 - any JSON value
        *,
        key: str | None = None,
        event_id: str | None = None,
        version: int | None = None,
        replay: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Processes one event and commits it. `data` becomes its JSON payload; None is a tombstone."""
        values = {"id": event_id or str(uuid.uuid4()), "type": kind, **(headers or {})}
        if version is not None:
            values["entity_version"] = str(version)
        if replay is not None:
            values[REPLAY] = replay
        offset = next(self._offsets)
        event = read_event(
            self._partition,
            offset,
            None if key is None else key.encode(),
            None if data is None else orjson.dumps(data),
            [(name, value.encode()) for name, value in values.items()],
            FIRST_TIME_MS + offset,
        )
        await self.apply_batch(event)
        return event

    async def apply_batch(self, *events: Event) -> None:
        """Processes these events in one batch. Their offsets must increase. Raises the error that ends an agent."""
        if self._worker is None:
            raise RuntimeError("a ProjectionTester is entered with `async with`")
        if self._agent is None:
            await self._worker.process(events)
            return
        work = asyncio.create_task(self._worker.process(events))
        try:
            await asyncio.wait((work, *self._agent_tasks), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await next(task for task in self._agent_tasks if task.done())
            await work
        finally:
            work.cancel()

    @asynccontextmanager
    async def effects(self) -> AsyncIterator[Any]:
        """Gives the effects that handlers get, to read what they have written."""
        async with self._projection.store.transaction(self._partition) as transaction:
            yield transaction.effects

    async def expire(self) -> None:
        """Dead-letters events that have waited too long for an earlier version."""
        if self._worker is not None:
            await self._worker.expire()

    # Called by the partition worker.

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        self.dead_letters.append(FailedEvent(event, failure))

    def committed(self, worker: PartitionWorker, result: BatchResult) -> None:
        self.outcomes.update({str(outcome): count for outcome, count in result.outcomes.items()})
        self.outcomes["duplicate"] += result.duplicates

    def blocked(self, worker: PartitionWorker, error: BaseException | None) -> None:
        """Ignored: errors show in `dead_letters`."""

    def reached(self, worker: PartitionWorker) -> int:
        return worker.next

    def pause(self, worker: PartitionWorker) -> None:
        """Never called: nothing is queued."""

    def resume(self, worker: PartitionWorker) -> None:
        """Never called: nothing is queued."""


def _channel(agent: AgentT[Any]) -> EventChannel:
    if not isinstance(agent.channel, EventChannel):
        raise TypeError(f"{agent.name} does not read a channel of `app.events(…)`")
    return agent.channel


async def _run(agent: AgentT[Any]) -> None:
    result = agent.fun(AgentStream(_channel(agent), app=agent.app, beacon=agent.beacon))
    if isinstance(result, AsyncIterable):
        async for _ in result:
            pass
    else:
        await result


async def _no_sleep(seconds: float) -> None:
    """Retries do not wait in a test."""
