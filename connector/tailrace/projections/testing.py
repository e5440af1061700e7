"""Tests of a projection without a broker: events go straight to its handlers and its store.

    async with Rehearsal(orders) as rehearsal:
        await rehearsal.tell("OrderPlaced", {"id": "o-1"}, key="o-1")
        assert rehearsal.letters == []
        async with rehearsal.look() as effects:
            assert await effects.fetch_one("SELECT state FROM order_summary") == {"state": "placed"}

From the lane on they take the way they take in a worker: markers, versions, transactions, retries (without waiting).
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

import orjson

from tailrace.projections.core.apply import Applied
from tailrace.projections.core.dead_letters import Failure
from tailrace.projections.core.event import REPLAY, Event, read
from tailrace.projections.core.partition_worker import Lane
from tailrace.projections.core.store import Partition
from tailrace.projections.projection import Projection

FIRST_TIME_MS = 1_700_000_000_000


class SetAside(NamedTuple):
    """An event that would have gone to the dead letters, and why."""

    event: Event
    failure: Failure


class Rehearsal:
    """One partition of the projection's first topic. `outcomes` counts what became of events."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._partition = Partition(projection.topics[0], 0)
        self._offsets = itertools.count()
        self._lane: Lane | None = None
        self.letters: list[SetAside] = []
        self.outcomes: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        store = self._projection.store
        await store.open(self._projection.name)
        start = (await store.positions()).get(self._partition, 0)
        self._offsets = itertools.count(start)
        furthest = (await store.furthest()).get(self._partition, 0)
        self._lane = Lane(self._partition, start, furthest, store, self._projection.rules, self, sleep=_at_once)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._projection.store.close()

    async def tell(
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
        await self.feed(event)
        return event

    async def feed(self, *events: Event) -> None:
        """Events as they are, in one block. Their offsets must grow."""
        if self._lane is None:
            raise RuntimeError("a rehearsal is entered with `async with`")
        await self._lane.settle(events)

    @asynccontextmanager
    async def look(self) -> AsyncIterator[Any]:
        """What handlers are given, to look at what they have written."""
        async with self._projection.store.transaction(self._partition) as transaction:
            yield transaction.effects

    async def expire(self) -> None:
        """Sets aside what has waited too long for an earlier version."""
        if self._lane is not None:
            await self._lane.expire()

    # What the lane asks of the worker around it.

    async def set_aside(self, event: Event, failure: Failure) -> None:
        self.letters.append(SetAside(event, failure))

    def committed(self, lane: Lane, applied: Applied) -> None:
        self.outcomes.update({str(outcome): count for outcome, count in applied.outcomes.items()})
        self.outcomes["duplicate"] += applied.duplicates

    def waiting_for(self, lane: Lane, error: BaseException | None) -> None:
        """Nobody watches."""

    def missed(self, lane: Lane) -> None:
        """None is missing here."""

    def reached(self, lane: Lane) -> int:
        """There is nothing between events here."""
        return lane.next

    def pause(self, lane: Lane) -> None:
        """Events come one by one."""

    def resume(self, lane: Lane) -> None:
        """Events come one by one."""


async def _at_once(seconds: float) -> None:
    """Retries do not wait in a rehearsal."""
