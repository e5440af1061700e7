"""Helpers for the tests of the MongoDB store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from pymongo import IndexModel

from tailrace.projections.core.store import Marker, Partition
from tailrace.projections.mongo.store import MongoStore
from tailrace.projections.mongo.transaction import MongoTransaction
from tailrace.testkit.stack import MongoReplicaSet, MongoServer

FIRST = Partition("orders", 0)
SECOND = Partition("orders", 1)
PATIENCE = 60.0
UNIQUE = {"users": [IndexModel([("email", 1)], unique=True)]}


@asynccontextmanager
async def opened(server: MongoServer | MongoReplicaSet, database: str, **options: Any) -> AsyncIterator[MongoStore]:
    store = MongoStore(server.uri, database, **options)
    await store.open(database)
    try:
        yield store
    finally:
        await store.close()


async def apply(transaction: MongoTransaction, ids: list[str], end: int) -> set[str]:
    """Applies events as the kit does: markers, a non-idempotent effect for each new event, the next offset."""
    await transaction.position()
    new = await transaction.mark([Marker(each, "o-1", 1, 1_000) for each in ids])
    for each in sorted(new):
        await transaction.effects.collection("history").update_one({"_id": each}, {"$inc": {"times": 1}}, upsert=True)
    await transaction.advance(end)
    return new


def history(server: MongoServer | MongoReplicaSet, database: str) -> dict[str, int]:
    with server.client() as client:
        return {each["_id"]: each["times"] for each in client[database].history.find()}


def fail(server: MongoServer, database: str, times: int, **how: Any) -> None:
    data = {"failCommands": ["commitTransaction"], "appName": f"tailrace {database}", **how}
    with server.client() as client:
        client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)


async def raised(doing: Awaitable[object]) -> Exception:
    (error,) = await asyncio.gather(doing, return_exceptions=True)
    assert isinstance(error, Exception), f"nothing was raised: {error}"
    return error


async def in_transaction(store: MongoStore, ids: list[str], end: int, partition: Partition = FIRST) -> set[str]:
    async with store.transaction(partition) as transaction:
        return await apply(transaction, ids, end)
