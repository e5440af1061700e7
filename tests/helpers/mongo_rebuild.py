"""A MongoDB projection that is rebuilt, and helpers for the tests of the swap."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pymongo import IndexModel

from tailrace import failpoints
from tailrace.projections.core.store import EntityState, Marker, Partition
from tailrace.projections.mongo import swap
from tailrace.projections.mongo.collections import HELD
from tailrace.projections.mongo.store import NOT_SWAPPED, SWAPPED, MongoStore
from tailrace.projections.mongo.transaction import MongoTransaction
from tailrace.testkit.stack import MongoServer

FIRST = Partition("orders", 0)
SECOND = Partition("orders", 1)
PATIENCE = 60.0
COLLECTIONS = {"history": [], "totals": [IndexModel([("name", 1)], unique=True)]}
STEPS = len(COLLECTIONS) + len(SWAPPED)


class Killed(BaseException):
    """Simulates a kill: nothing catches it."""


class RebuildSetup:
    """A projection in its own database `name`, written by hand: each event adds to its history."""

    def __init__(self, server: MongoServer) -> None:
        self.server = server
        self.name = f"test_{uuid.uuid4().hex[:12]}"

    def store(self, **options: Any) -> MongoStore:
        return MongoStore(self.server.uri, self.name, **{"collections": COLLECTIONS, **options})

    @asynccontextmanager
    async def opened(self, store: MongoStore | None = None) -> AsyncIterator[MongoStore]:
        store = store or self.store()
        await store.open(self.name)
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def both(self, events: int = 3) -> AsyncIterator[tuple[MongoStore, MongoStore, MongoStore]]:
        """Yields the live store (with wrong data), the store that is rebuilt, and the store of the shadow copy."""
        old = self.store()
        async with self.opened() as live, self.opened(old.shadow()) as new:
            for partition in (FIRST, SECOND):
                await up_to(live, partition, events)
                await up_to(new, partition, events)
            self.spoil()
            yield live, old, new

    def documents(self, name: str) -> list[dict[str, Any]]:
        with self.server.client() as client:
            return list(client[self.name][name].find())

    def spoil(self) -> None:
        """Marks the live data, to distinguish it from the copy's."""
        with self.server.client() as client:
            for name in COLLECTIONS:
                client[self.name][name].update_many({}, {"$set": {"wrong": True}})

    def is_held(self) -> bool:
        return any(HELD in each for each in self.documents("tailrace_offsets"))

    def history(self) -> dict[str, int]:
        return {each["_id"]: each["times"] for each in self.documents("history")}

    def is_old(self, name: str) -> bool:
        """Old or new, but never a mixture."""
        (wrong,) = {each.get("wrong", False) for each in self.documents(name)}
        return bool(wrong)

    def collections(self) -> set[str]:
        with self.server.client() as client:
            return set(client[self.name].list_collection_names())

    def require_new(self, events: int, second: int | None = None, *, number: int = 0) -> None:
        """Requires the copy in place, with each event once, and no copies except those of rebuild `number`."""
        assert not self.is_old("history")
        assert self.history() == expected(events, events if second is None else second)
        assert [each["sum"] for each in self.documents("totals")] == [sum(self.history().values())]
        copies = {f"{name}__next{number}" for name in (*COLLECTIONS, *SWAPPED)} if number else set()
        assert self.collections() == {*COLLECTIONS, *SWAPPED, *NOT_SWAPPED, *copies}
        with self.server.client() as client:
            assert "name_1" in client[self.name].totals.index_information()


def expected(first: int, second: int) -> dict[str, int]:
    return {**{f"0-{n}": 1 for n in range(first)}, **{f"1-{n}": 1 for n in range(second)}}


async def apply(transaction: MongoTransaction, partition: Partition, end: int, done: int = 0) -> None:
    """Applies events as the kit does: from the stored offset, which is never below `done`; markers first."""
    start = await transaction.position() or 0
    assert start >= done
    ids = [f"{partition.number}-{offset}" for offset in range(start, end)]
    new = await transaction.mark([Marker(each, "o", 1, 1_000) for each in ids])
    for each in sorted(new):
        await transaction.effects.collection("history").update_one({"_id": each}, {"$inc": {"times": 1}}, upsert=True)
        await transaction.effects.collection("totals").update_one(
            {"_id": "all"}, {"$inc": {"sum": 1}, "$set": {"name": "all"}}, upsert=True
        )
    await transaction.save_entities({f"o-{partition.number}": EntityState(end, deleted=False)})
    if end > start:
        await transaction.advance(end)


async def up_to(store: MongoStore, partition: Partition, end: int, done: int = 0) -> None:
    """Applies events with retries, as a worker does."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                async with store.transaction(partition) as transaction:
                    await apply(transaction, partition, end, done)
            except Exception as error:
                if not store.is_transient(error):
                    raise
                await asyncio.sleep(0.01)
            else:
                return


async def caught_up(positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
    """A `catch_up` of a copy that has caught up."""
    return positions


async def too_slow(positions: Mapping[Partition, int]) -> None:
    return None


async def raised(doing: Awaitable[object]) -> BaseException:
    try:
        await doing
    except (Exception, Killed) as error:  # noqa: BLE001 - any error
        return error
    raise AssertionError("nothing was raised")


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Kills the swap at a step: 0 is the decision, the others are renames."""
    left = [step]

    def reached(name: str) -> None:
        if name in (swap.SWAP_DECIDED, swap.SWAP_RENAMED):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

    monkeypatch.setattr(failpoints, "reached", reached)
