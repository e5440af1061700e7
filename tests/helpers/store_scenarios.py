"""Helpers of the store contract: creating stores, writing and reading them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from tailrace.projections.core.store import EventOutcome, Marker, Partition, ProjectionStore, WaitingEvent

SECONDS = 120
"""The time limit of one test; the machine may be slow."""
A_WHILE = 0.3
"""How long a task is watched to see that it waits."""

P0 = Partition("orders", 0)
P1 = Partition("orders", 1)


class Stores(Protocol):
    """Stores on one database, each as a separate worker would have it."""

    def new(self) -> ProjectionStore[Any]:
        """Returns a store that is not open yet."""

    def write(self, effects: Any, key: str, value: str) -> None:
        """Defers a handler's write: a row (or document) with `value` for `key`."""

    async def written(self) -> dict[str, str]:
        """Returns the committed values by key, of any projection."""

    async def cut(self) -> None:
        """Breaks all connections; new ones can be opened at once."""


class Boom(Exception):
    """A handler's error."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test in an event loop, with a time limit."""

    @functools.wraps(test)
    def run(*given: Any, **fixtures: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(SECONDS):
                await test(*given, **fixtures)

        asyncio.run(bounded())

    return run


@asynccontextmanager
async def opened(stores: Stores, name: str = "orders") -> AsyncIterator[ProjectionStore[Any]]:
    store = stores.new()
    await store.open(name)
    try:
        yield store
    finally:
        await store.close()


def marker(event_id: str, time_ms: int = 1000, entity: str | None = "o-1", version: int | None = 1) -> Marker:
    return Marker(event_id, entity, version, time_ms)


def waiting(
    event_id: str,
    version: int = 2,
    *,
    entity: str = "o-1",
    partition: Partition = P0,
    offset: int = 7,
    since_ms: int = 50,
) -> WaitingEvent:
    headers = [("id", event_id.encode()), ("blob", b"\x00\xff"), ("id", b"")]
    return WaitingEvent(event_id, entity, version, partition, offset, b"k\x00", b'{"a": 1}', headers, 1000, since_ms)


def same(one: WaitingEvent, other: WaitingEvent) -> bool:
    """Compares waiting events; a store may return headers as another kind of sequence."""
    plain = [each._replace(headers=[tuple(header) for header in each.headers]) for each in (one, other)]
    return plain[0] == plain[1]


async def mark(store: ProjectionStore[Any], *markers: Marker, partition: Partition = P0) -> set[str]:
    async with store.transaction(partition) as transaction:
        await transaction.position()
        return await transaction.mark(markers)


async def set_outcomes(store: ProjectionStore[Any], outcomes: dict[str, EventOutcome]) -> None:
    async with store.transaction(P0) as transaction:
        await transaction.position()
        await transaction.set_outcomes(outcomes)


async def all_waiting(store: ProjectionStore[Any], *names: str) -> list[str]:
    async with store.transaction(P0) as transaction:
        await transaction.position()
        return [each.event_id for each in await transaction.waiting(names)]


async def still_waits(task: asyncio.Task[Any]) -> bool:
    await asyncio.wait({task}, timeout=A_WHILE)
    return not task.done()


async def again(store: ProjectionStore[Any], attempt: Callable[[], Awaitable[Any]]) -> Any:
    """Retries after transient errors, as a worker does."""
    for _ in range(20):
        try:
            return await attempt()
        except Exception as error:
            if not store.is_transient(error):
                raise
    raise AssertionError("20 attempts failed")


class StoreTests:
    """The base of the contract's tests. Tests of a store override the fixture."""

    @pytest.fixture
    def stores(self) -> Stores:
        raise NotImplementedError
