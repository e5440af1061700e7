"""The MongoDB store: a projection's collections and the kit's own collections, changed in one transaction.

All projections of a database share the kit's collections, separated by `consumer_group`: `tailrace_offsets`,
`tailrace_markers`, `tailrace_entities`, `tailrace_waiting`, `tailrace_horizon`, `tailrace_owners`; also
`tailrace_rebuilds`. An `_id` consists of what must be unique, so an event has one marker in each group without
a further index.

Each partition has its own session. A worker that dies within a transaction leaves it open on the server; the next owner
of the partition ends it after some seconds (`partition_lock.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bson.datetime_ms import DatetimeMS
from pymongo import IndexModel
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from tailrace.errors import ConfigError
from tailrace.projections.core.store import CatchUp, EventOutcome, Partition
from tailrace.projections.mongo.client import TIMEOUT, Client, Collections, Database, prepare, translated
from tailrace.projections.mongo.collections import (
    CLOSED,
    ENTITIES,
    GROUP,
    HORIZON,
    MARKERS,
    OFFSETS,
    OWNERS,
    REBUILDS,
    WAITING,
    ConnectedStore,
    Generation,
    Swapping,
    shadow_name,
    stored_offsets,
    swapping,
)
from tailrace.projections.mongo.partition_lock import Evict, begin, take_ownership
from tailrace.projections.mongo.rebuilds import begin_rebuild, ensure_horizon, ensure_state, join
from tailrace.projections.mongo.swap import finish, swap_generations
from tailrace.projections.mongo.transaction import MongoTransaction, commit, horizon_of

NOT_SWAPPED: Collections = {OWNERS: [], REBUILDS: []}
SWAPPED: Collections = {
    MARKERS: [IndexModel([(GROUP, 1), ("event_time", 1)])],
    ENTITIES: [],
    WAITING: [
        IndexModel([(GROUP, 1), ("entity_id", 1), ("version", 1)]),
        IndexModel([(GROUP, 1), ("topic", 1), ("partition", 1), ("since", 1)]),
    ],
    HORIZON: [],
    # Renamed last: until then workers find the partitions closed.
    OFFSETS: [],
}
POOL = 100
"""The maximum of connections; each partition at work uses one."""
NEVER_PRUNED = [EventOutcome.DEAD.value, EventOutcome.WAITING.value]


class MongoStore(ConnectedStore):
    """Keeps a projection in MongoDB. `collections` are its own, each with its indexes; `open` creates them."""

    def __init__(
        self, uri: str, database: str, *, collections: Collections | None = None, timeout: float = TIMEOUT
    ) -> None:
        super().__init__(uri, database, timeout, POOL)
        self._declared = dict(collections or {})
        self._sessions: set[AsyncClientSession] = set()
        self._idle: dict[Partition, tuple[AsyncClientSession, Evict]] = {}
        self._generation: Generation | None = None
        self._shadow: MongoStore | None = None
        self._is_shadow = False

    async def _prepare(self, client: Client, database: Database) -> None:
        # First: the old collections may not accept the indexes that are declared now.
        await finish(database)
        declared = {} if self._is_shadow else self._declared
        await prepare(database, {**SWAPPED, **NOT_SWAPPED, **declared})
        generation = Generation(database, self._declared)
        with translated("beginning"):
            await ensure_state(database)
            if self._is_shadow:
                generation = await begin_rebuild(client, database, self._name, {**self._declared, **SWAPPED})
            else:
                await ensure_horizon(generation, self._name)
        self._generation = generation

    async def close(self) -> None:
        client, self._client = self._client, None
        self._idle.clear()
        if client is None:
            return
        for session in tuple(self._sessions):
            # The driver would leave the transaction open: it would lock its partition for a minute.
            await _roll_back(session)
        await client.close()

    @asynccontextmanager
    async def transaction(self, partition: Partition) -> AsyncIterator[MongoTransaction]:
        idle = partition in self._idle
        session, evict = self._idle.pop(partition) if idle else await self._new_session(partition)
        self._sessions.add(session)
        transaction: MongoTransaction | None = None
        try:
            await begin(session)
            transaction = self._transaction(partition, session, evict)
            yield transaction
            await transaction.finish()
            await commit(session)
            self._idle[partition] = session, evict
        except BaseException as error:
            if transaction is not None:
                await transaction.abandon()
            await _roll_back(session)
            await session.end_session()
            if isinstance(error, Swapping):
                # The process that decided it may be dead; if not, two can complete it together.
                await finish(self._opened.database)
            raise
        finally:
            self._sessions.discard(session)

    def _transaction(self, partition: Partition, session: AsyncClientSession, evict: Evict) -> MongoTransaction:
        client, generation = self._connected, self._opened

        async def enter() -> None:
            await join(client, generation, self._name, partition)

        return MongoTransaction(generation, self._name, partition, session, evict=evict, join=enter)

    async def _new_session(self, partition: Partition) -> tuple[AsyncClientSession, Evict]:
        session = self._connected.start_session()
        try:
            number = self._opened.number
            owner = self._name if number is None else shadow_name(self._name, number)
            evict = await take_ownership(self._connected, self._opened.database, owner, partition, session)
        except BaseException:
            await session.end_session()
            raise
        return session, evict

    async def positions(self) -> dict[Partition, int]:
        return await stored_offsets(self._opened.kit(OFFSETS), self._name)

    async def furthest(self) -> dict[Partition, int]:
        return await stored_offsets(self._opened.kit(OFFSETS), self._name, "furthest")

    async def horizon(self) -> int:
        return horizon_of(await self._opened.kit(HORIZON).find_one({"_id": self._name}))

    async def prune(self, before_ms: int, limit: int) -> int:
        before = DatetimeMS(before_ms)
        # Durable before the first marker is deleted.
        ours = {"_id": self._name, CLOSED: {"$exists": False}}
        if not (await self._opened.kit(HORIZON).update_one(ours, {"$max": {"before": before}})).matched_count:
            raise swapping()
        markers = self._opened.kit(MARKERS)
        old = {GROUP: self._name, "event_time": {"$lt": before}, "outcome": {"$nin": NEVER_PRUNED}}
        found = await markers.find(old, {"_id": 1}, sort=[("event_time", 1)], limit=limit).to_list()
        # With the whole filter again: an outcome may have changed since.
        deleted = await markers.delete_many({**old, "_id": {"$in": [each["_id"] for each in found]}})
        return deleted.deleted_count

    def another(self) -> MongoStore:
        """Returns a store of the same database, for another projection."""
        return MongoStore(self._uri, self._database_name, collections=self._declared, timeout=self._timeout)

    def shadow(self) -> MongoStore:
        """Returns the store of the shadow copy, in its own collections."""
        if not self._declared:
            raise ConfigError(
                "a projection can be rebuilt only if its collections are declared",
                why="A rebuild copies and renames the collections that handlers write to, and must know them.",
                remedy='Give its MongoStore all of them: collections={"cards": []}, with their indexes in the lists.',
            )
        self._shadow = MongoStore(self._uri, self._database_name, collections=self._declared, timeout=self._timeout)
        self._shadow._is_shadow = True
        return self._shadow

    async def swap(self, name: str, catch_up: CatchUp) -> bool:
        """Swaps the shadow copy in, if it has caught up; see `swap.py`."""
        if self._shadow is None:
            raise RuntimeError("there is no shadow copy")
        return await swap_generations(self._shadow._connected, self._shadow._opened, name, catch_up)

    @property
    def _opened(self) -> Generation:
        if self._generation is None:
            raise RuntimeError("the store is not open")
        return self._generation


async def _roll_back(session: AsyncClientSession) -> None:
    try:
        if session.in_transaction:
            await session.abort_transaction()
    except PyMongoError:
        pass  # the server is unavailable: it ends the transaction itself
