"""Locks a partition for one transaction, and ends the transaction of a dead previous owner.

The lock is a change of the partition's document in `tailrace_offsets`. In MongoDB a conflict with another transaction
is an error at once, where other databases wait; so a worker waits by starting its transaction again. A rebuild that is
about to swap blocks partitions by a mark in their documents, which stays if the rebuild is killed: a worker that has
waited for longer than a swap takes removes the mark.

A worker that dies within a transaction leaves it open on the server, for more than a minute, and with it the lock. Its
successor knows its session from `tailrace_owners`, and kills it if the lock is not released in time. A worker that
seems dead may only be slow, and would then do the same to its successor. So each kill is recorded, and the next worker
waits twice as long, until a transaction of the partition is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bson.binary import Binary
from bson.objectid import ObjectId
from pymongo import ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from tailrace.projections.core.store import Partition
from tailrace.projections.mongo.client import (
    DURABLE,
    LOCK_TIMEOUT,
    MAJORITY_SECONDS,
    WRITE_CONFLICT,
    Client,
    Database,
    Document,
    kit_collection,
    translated,
)
from tailrace.projections.mongo.collections import CLOSED, HELD, OWNERS, SEALED, offset_id, swapping

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1
LOCK_SECONDS = 120.0
"""Longer than a server keeps the transaction of a dead worker: 60 s by default, checked every 30 s."""
EVICT_SECONDS = 5.0
"""A live transaction is complete by then, or its successor can as well repeat it."""
HELD_SECONDS = 20.0
"""Several times as long as a rebuild may block a projection."""

Run = Callable[..., Awaitable[Any]]
Join = Callable[[], Awaitable[None]]
Evict = Callable[[float, int], Awaitable[None]]
"""Takes how long the caller has waited, in multiples of EVICT_SECONDS, and the number of committed locks (`turns`)."""


async def begin(session: AsyncClientSession) -> None:
    await session.start_transaction(
        read_concern=ReadConcern("snapshot"),
        write_concern=DURABLE,
        read_preference=ReadPreference.PRIMARY,
        max_commit_time_ms=MAJORITY_SECONDS * 1000,
    )


async def take_ownership(
    client: Client, database: Database, group: str, partition: Partition, session: AsyncClientSession
) -> Evict:
    """Records that `session` owns the partition; returns a function that ends the previous owner's transaction."""
    ours = session.session_id["id"]
    owners, key = kit_collection(database, OWNERS), {"_id": offset_id(group, partition)}
    with translated("taking a partition over"):
        found = await owners.find_one_and_update(key, {"$set": {"session": ours}}, upsert=True)
    previous: Binary | None = None if found is None else found.get("session")

    async def evict(patience: float, turns: int) -> None:
        if previous is None or previous == ours:
            return
        try:
            known = await owners.find_one(key) or {}
            in_vain = known.get("evictions", 0) if known.get("turns") == turns else 0
            if patience < 2**in_vain:
                return
            await owners.update_one(key, {"$set": {"evictions": in_vain + 1, "turns": turns}})
            await client.admin.command({"killSessions": [{"id": previous}]})
        except PyMongoError:
            pass  # not allowed or unavailable: then the server ends the transaction at its time limit

    return evict


class PartitionLock:
    """The lock of one transaction. `evict` ends the previous owner's; `join` inserts the partition's document."""

    def __init__(
        self,
        offsets: AsyncCollection[Document],
        name: Document,
        session: AsyncClientSession,
        run: Run,
        *,
        evict: Evict,
        join: Join,
        is_live: bool,
    ) -> None:
        self._offsets = offsets
        self._is_live = is_live
        self._key = {"_id": name}
        self._session = session
        self._run = run
        self._evict = evict
        self._join = join

    async def acquire(self) -> Document:
        """Returns the partition's document once it is locked; the session may have a new transaction by then."""
        while True:
            found = await self._lock()
            if found is not None and (CLOSED in found or (SEALED in found and not self._is_live)):
                raise swapping()
            if found is not None and HELD not in found:
                return found
            # Outside of the transaction: it must not block others, nor see old data afterwards.
            await self._session.abort_transaction()
            if found is None:
                await self._join()
            else:
                await self._until_released(found[HELD])
            await begin(self._session)

    async def _lock(self) -> Document | None:
        began = time.monotonic()
        pause = FIRST_PAUSE
        patience = 1.0
        while True:
            try:
                # A real change: an update that changes nothing locks nothing.
                found: Document | None = await self._run(
                    self._offsets.find_one_and_update, self._key, {"$inc": {"turns": 1}}
                )
            except OperationFailure as error:
                waited = time.monotonic() - began
                if error.code not in {WRITE_CONFLICT, LOCK_TIMEOUT} or waited >= LOCK_SECONDS:
                    raise
                if waited >= patience * EVICT_SECONDS:
                    found = await self._offsets.find_one(self._key, {"turns": 1})  # outside of the transaction
                    await self._evict(patience, found["turns"] if found else 0)
                    patience *= 2
            else:
                return found
            # A new transaction, which sees what the other one did.
            await self._session.abort_transaction()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
            await begin(self._session)

    async def _until_released(self, hold: ObjectId) -> None:
        held = {**self._key, HELD: hold, CLOSED: {"$exists": False}}
        deadline = time.monotonic() + HELD_SECONDS
        while await self._offsets.find_one(held, {"_id": 1}) is not None:
            if time.monotonic() >= deadline:
                # The rebuild was killed. If not, it finds its mark gone, and does not swap.
                await self._offsets.update_one(held, {"$unset": {HELD: ""}})
            await asyncio.sleep(LONGEST_PAUSE)
