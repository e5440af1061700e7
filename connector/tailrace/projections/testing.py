"""Tests of a projection without a broker: events go straight to its handlers and its store.

    async with ProjectionTester(orders) as tester:
        await tester.send("OrderPlaced", {"id": "o-1"}, key="o-1")
        assert tester.dead_letters == []
        async with tester.effects() as effects:
            assert await effects.fetch_one("SELECT state FROM order_summary") == {"state": "placed"}

From the worker on they take the way they take in a worker: markers, versions, transactions, retries (without waiting).
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

import orjson

from tailrace.projections.core.apply import BatchResult
from tailrace.projections.core.dead_letters import Failure
from tailrace.projections.core.event import REPLAY, Event, read
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.store import Partition
from tailrace.projections.projection import Projection

FIRST_TIME_MS = 1_700_000_000_000


class FailedEvent(NamedTuple):
    """An event that would have gone to the dead letters, and why."""

    event: Event
    failure: Failure


class ProjectionTester:
    """One partition of the projection's first topic. `outcomes` counts what became of events."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._partition = Partition(projection.topics[0], 0)
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
        self._worker = PartitionWorker(
            self._partition, start, furthest, store, self._projection.spec, self, sleep=_at_once
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._projection.store.close()

    async def send(
        self,
        kind: str,
        data: Any,  # noqa: ANN401 - whatever JSON can say
        *,
        key: str | None = None,
        event_id: str | None = None,
        version: int | None = None,
        replay: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """One event, through to its commit. `data` becomes its JSON payload; None is a tombstone."""
        said = {"id": event_id or str(uuid.uuid4()), "type": kind, **(headers or {})}
        if version is not None:
            said["entity_version"] = str(version)
        if replay is not None:
            said[REPLAY] = replay
        offset = next(self._offsets)
        event = read(
            self._partition,
            offset,
            None if key is None else key.encode(),
            None if data is None else orjson.dumps(data),
            [(name, value.encode()) for name, value in said.items()],
            FIRST_TIME_MS + offset,
        )
        await self.apply_batch(event)
        return event

    async def apply_batch(self, *events: Event) -> None:
        """Events as they are, in one block. Their offsets must grow."""
        if self._worker is None:
            raise RuntimeError("a tester is entered with `async with`")
        await self._worker.settle(events)

    @asynccontextmanager
    async def effects(self) -> AsyncIterator[Any]:
        """What handlers are given, to look at what they have written."""
        async with self._projection.store.transaction(self._partition) as transaction:
            yield transaction.effects

    async def expire(self) -> None:
        """Sets aside what has waited too long for an earlier version."""
        if self._worker is not None:
            await self._worker.expire()

    # What the worker asks of the worker around it.

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        self.dead_letters.append(FailedEvent(event, failure))

    def committed(self, worker: PartitionWorker, applied: BatchResult) -> None:
        self.outcomes.update({str(outcome): count for outcome, count in applied.outcomes.items()})
        self.outcomes["duplicate"] += applied.duplicates

    def waiting_for(self, worker: PartitionWorker, error: BaseException | None) -> None:
        """Nobody watches."""

    def missed(self, worker: PartitionWorker) -> None:
        """None is missing here."""

    def reached(self, worker: PartitionWorker) -> int:
        """There is nothing between events here."""
        return worker.next

    def pause(self, worker: PartitionWorker) -> None:
        """Events come one by one."""

    def resume(self, worker: PartitionWorker) -> None:
        """Events come one by one."""


async def _at_once(seconds: float) -> None:
    """Retries do not wait in a tester."""
