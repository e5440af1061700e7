"""The turn of a worker at a partition: a lock on the document of its offset, until the end of the transaction.

In MongoDB a conflict with another transaction is an error at once where others would wait, so the lock is waited for by
beginning again. A rebuild that is about to swap holds partitions up by a mark in their documents, which outlives it if
it is killed: whoever has waited for longer than a swap takes removes the mark.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bson.objectid import ObjectId
from pymongo import ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from tailrace.projections.mongo.client import DURABLE, LOCK_TIMEOUT, MAJORITY_SECONDS, WRITE_CONFLICT, Document
from tailrace.projections.mongo.offsets import CLOSED, HELD, SEALED, swapping
from tailrace.projections.mongo.owners import Evict

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1
LOCK_SECONDS = 120.0
"""Longer than a server lets a transaction live whose worker has died: 60 s by default, and it looks every 30 s."""
EVICT_SECONDS = 5.0
"""A transaction that is alive is done by then, or can as well be done again by its successor. See `mongo_owners.py`."""
HELD_SECONDS = 20.0
"""Several times what a rebuild may hold a projection up for."""

Ask = Callable[..., Awaitable[Any]]
Call = Callable[[], Awaitable[None]]


async def begin(session: AsyncClientSession) -> None:
    await session.start_transaction(
        read_concern=ReadConcern("snapshot"),
        write_concern=DURABLE,
        read_preference=ReadPreference.PRIMARY,
        max_commit_time_ms=MAJORITY_SECONDS * 1000,
    )


class PartitionLock:
    """Of one transaction. `evict` ends that of the partition's owner before; `join` makes the partition's document."""

    def __init__(
        self,
        offsets: AsyncCollection[Document],
        name: Document,
        session: AsyncClientSession,
        ask: Ask,
        *,
        evict: Evict,
        join: Call,
        is_in_place: bool,
    ) -> None:
        self._offsets = offsets
        self._is_in_place = is_in_place
        self._name = {"_id": name}
        self._session = session
        self._ask = ask
        self._evict = evict
        self._join = join

    async def take(self) -> Document:
        """The partition's document as it was, once it is locked; the transaction may be a new one by then."""
        while True:
            found = await self._locked()
            if found is not None and (CLOSED in found or (SEALED in found and not self._is_in_place)):
                raise swapping()
            if found is not None and HELD not in found:
                return found
            # Not within the transaction: nobody must wait for us meanwhile, nor we see what is past.
            await self._session.abort_transaction()
            if found is None:
                await self._join()
            else:
                await self._until_let_go(found[HELD])
            await begin(self._session)

    async def _locked(self) -> Document | None:
        began = time.monotonic()
        pause = FIRST_PAUSE
        patience = 1.0
        while True:
            try:
                # A real change: what writes the same again locks nothing.
                found: Document | None = await self._ask(
                    self._offsets.find_one_and_update, self._name, {"$inc": {"turns": 1}}
                )
            except OperationFailure as error:
                waited = time.monotonic() - began
                if error.code not in {WRITE_CONFLICT, LOCK_TIMEOUT} or waited >= LOCK_SECONDS:
                    raise
                if waited >= patience * EVICT_SECONDS:
                    found = await self._offsets.find_one(self._name, {"turns": 1})  # outside of the transaction
                    await self._evict(patience, found["turns"] if found else 0)
                    patience *= 2
            else:
                return found
            # A new transaction, which will see what the other one did.
            await self._session.abort_transaction()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
            await begin(self._session)

    async def _until_let_go(self, hold: ObjectId) -> None:
        waits = {**self._name, HELD: hold, CLOSED: {"$exists": False}}
        deadline = time.monotonic() + HELD_SECONDS
        while await self._offsets.find_one(waits, {"_id": 1}) is not None:
            if time.monotonic() >= deadline:
                # It was killed. If it was not, it finds its mark gone, and does not swap.
                await self._offsets.update_one(waits, {"$unset": {HELD: ""}})
            await asyncio.sleep(LONGEST_PAUSE)
