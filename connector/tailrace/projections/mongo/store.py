"""A projection that lives in MongoDB: its collections, and beside them what the kit keeps, in one transaction.

Collections of the kit, shared by all projections of a database and told apart by `consumer_group`: `tailrace_offsets`,
`tailrace_markers`, `tailrace_entities`, `tailrace_waiting`, `tailrace_horizon`, `tailrace_owners`; beside them
`tailrace_rebuilds`. Their `_id` is composed of what must be unique, so one event has one marker in each group and no
further index is needed for that.

Each partition has a session to itself. A worker that dies within a transaction leaves it open on the server; the next
owner of the partition ends it after some seconds (`mongo_owners.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from bson.datetime_ms import DatetimeMS
from pymongo import IndexModel
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from tailrace.errors import ConfigError
from tailrace.projections.core.store import CatchUp, EventOutcome, Partition
from tailrace.projections.mongo import client as mongo_server
from tailrace.projections.mongo.client import TIMEOUT, Client, Collections, Database, translated
from tailrace.projections.mongo.generations import Generation, shadow_name
from tailrace.projections.mongo.offsets import (
    CLOSED,
    GROUP,
    OFFSETS,
    Swapping,
    reset_offsets,
    stored_offsets,
    swapping,
)
from tailrace.projections.mongo.owners import OWNERS, Evict, take_over
from tailrace.projections.mongo.partition_lock import begin
from tailrace.projections.mongo.rebuilds import REBUILDS, begin_rebuild, ensure_account, ensure_horizon, join
from tailrace.projections.mongo.swap import finish, swap_generations
from tailrace.projections.mongo.transaction import (
    ENTITIES,
    HORIZON,
    MARKERS,
    WAITING,
    MongoTransaction,
    commit,
    horizon_of,
)

KEPT_ASIDE: Collections = {OWNERS: [], REBUILDS: []}
SWAPPED: Collections = {
    MARKERS: [IndexModel([(GROUP, 1), ("event_time", 1)])],
    ENTITIES: [],
    WAITING: [
        IndexModel([(GROUP, 1), ("entity_id", 1), ("version", 1)]),
        IndexModel([(GROUP, 1), ("topic", 1), ("partition", 1), ("since", 1)]),
    ],
    HORIZON: [],
    # The last: until it is in its place, workers find the partitions closed.
    OFFSETS: [],
}
KEPT = [EventOutcome.DEAD.value, EventOutcome.WAITING.value]


class MongoStore:
    """`collections` are the projection's own, each with its indexes; they are made when the store is opened."""

    def __init__(
        self, uri: str, database: str, *, collections: Collections | None = None, timeout: float = TIMEOUT
    ) -> None:
        self._uri = uri
        self._database_name = database
        self._declared = dict(collections or {})
        self._timeout = timeout
        self._name = ""
        self._client: Client | None = None
        self._sessions: set[AsyncClientSession] = set()
        self._idle: dict[Partition, tuple[AsyncClientSession, Evict]] = {}
        self._generation: Generation | None = None
        self._next: MongoStore | None = None
        self._is_next = False

    async def open(self, name: str) -> None:
        self._name = name
        client = await mongo_server.connected(self._uri, name, timeout=self._timeout)
        database = mongo_server.database_of(client, self._database_name)
        try:
            # First: it may be the old collections that do not take the indexes declared now.
            await finish(database)
            self._generation = await self._prepared(client, database)
        except BaseException:
            await client.close()
            raise
        self._client = client

    async def _prepared(self, client: Client, database: Database) -> Generation:
        declared = {} if self._is_next else self._declared
        await mongo_server.prepare(database, {**SWAPPED, **KEPT_ASIDE, **declared})
        generation = Generation(database, self._declared)
        with translated("beginning"):
            await ensure_account(database)
            if self._is_next:
                return await begin_rebuild(client, database, self._name, {**self._declared, **SWAPPED})
            await ensure_horizon(generation, self._name)
        return generation

    async def close(self) -> None:
        client, self._client = self._client, None
        self._idle.clear()
        if client is None:
            return
        for session in tuple(self._sessions):
            # The driver leaves to the server what is open: it would hold its partition for a minute.
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
                # Whoever decided it may be dead; if not, two are as good as one.
                await finish(self._place.database)
            raise
        finally:
            self._sessions.discard(session)

    def _transaction(self, partition: Partition, session: AsyncClientSession, evict: Evict) -> MongoTransaction:
        client, generation = self._connected, self._place

        async def enter() -> None:
            await join(client, generation, self._name, partition)

        return MongoTransaction(generation, self._name, partition, session, evict=evict, join=enter)

    async def _new_session(self, partition: Partition) -> tuple[AsyncClientSession, Evict]:
        session = self._connected.start_session()
        try:
            number = self._place.number
            owner = self._name if number is None else shadow_name(self._name, number)
            evict = await take_over(self._connected, self._place.database, owner, partition, session)
        except BaseException:
            await session.end_session()
            raise
        return session, evict

    async def positions(self) -> dict[Partition, int]:
        return await stored_offsets(self._place.own(OFFSETS), self._name)

    async def furthest(self) -> dict[Partition, int]:
        return await stored_offsets(self._place.own(OFFSETS), self._name, "furthest")

    async def reset(self, offsets: Mapping[Partition, int | None]) -> None:
        await reset_offsets(self._connected, self._place.database, self._name, offsets)

    async def horizon(self) -> int:
        return horizon_of(await self._place.own(HORIZON).find_one({"_id": self._name}))

    async def prune(self, before_ms: int, limit: int) -> int:
        before = DatetimeMS(before_ms)
        # Stored for good before the first marker goes.
        ours = {"_id": self._name, CLOSED: {"$exists": False}}
        if not (await self._place.own(HORIZON).update_one(ours, {"$max": {"before": before}})).matched_count:
            raise swapping()
        markers = self._place.own(MARKERS)
        old = {GROUP: self._name, "event_time": {"$lt": before}, "outcome": {"$nin": KEPT}}
        found = await markers.find(old, {"_id": 1}, sort=[("event_time", 1)], limit=limit).to_list()
        # Asked for again in full: an outcome may have changed since.
        deleted = await markers.delete_many({**old, "_id": {"$in": [each["_id"] for each in found]}})
        return deleted.deleted_count

    def is_transient(self, error: BaseException) -> bool:
        return mongo_server.is_transient(error)

    def shadow(self) -> MongoStore:
        """The store of the same projection made anew, in collections of its own."""
        if not self._declared:
            raise ConfigError(
                "a projection can be made anew beside itself only if its collections are declared",
                why="Those that handlers write to are made anew and renamed; nothing else tells which they are.",
                remedy='Give its MongoStore all of them: collections={"cards": []}, with their indexes in the lists.',
            )
        self._next = MongoStore(self._uri, self._database_name, collections=self._declared, timeout=self._timeout)
        self._next._is_next = True
        return self._next

    async def swap(self, name: str, catch_up: CatchUp) -> bool:
        """Puts what was made beside in its place, if it is as far; see `mongo_swap.py`."""
        if self._next is None:
            raise RuntimeError("nothing was made beside it")
        return await swap_generations(self._next._connected, self._next._place, name, catch_up)

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise RuntimeError("the store is not open")
        return self._client

    @property
    def _place(self) -> Generation:
        if self._generation is None:
            raise RuntimeError("the store is not open")
        return self._generation


async def _roll_back(session: AsyncClientSession) -> None:
    try:
        if session.in_transaction:
            await session.abort_transaction()
    except PyMongoError:
        pass  # the server is away: it ends the transaction by itself
