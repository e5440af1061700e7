"""A projection that lives in MongoDB: its collections, and beside them what the kit keeps, in one transaction.

Collections of the kit, shared by all projections of a database and told apart by `consumer_group`: `tailrace_offsets`,
`tailrace_markers`, `tailrace_entities`, `tailrace_waiting`, `tailrace_horizon`, `tailrace_owners`. Their `_id` is
composed of what must be unique, so one event has one marker in each group and no further index is needed for that.

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

from tailrace.projections import mongo_server
from tailrace.projections.mongo_offsets import OFFSETS, read_furthest, read_offsets, reset_offsets
from tailrace.projections.mongo_owners import OWNERS, Evict, take_over
from tailrace.projections.mongo_server import TIMEOUT, Client, Collections, Database, own
from tailrace.projections.mongo_transaction import (
    ENTITIES,
    HORIZON,
    MARKERS,
    WAITING,
    MongoTransaction,
    begin,
    commit,
    horizon_of,
)
from tailrace.projections.store import Outcome, Partition

GROUP = "_id.consumer_group"
OWN: Collections = {
    OFFSETS: [],
    MARKERS: [IndexModel([(GROUP, 1), ("event_time", 1)])],
    ENTITIES: [],
    WAITING: [
        IndexModel([(GROUP, 1), ("entity_id", 1), ("version", 1)]),
        IndexModel([(GROUP, 1), ("topic", 1), ("partition", 1), ("since", 1)]),
    ],
    HORIZON: [],
    OWNERS: [],
}
KEPT = [Outcome.DEAD.value, Outcome.WAITING.value]


class MongoStore:
    """`collections` are the projection's own, each with its indexes; they are made when the store is opened."""

    def __init__(
        self, uri: str, database: str, *, collections: Collections | None = None, timeout: float = TIMEOUT
    ) -> None:
        self._uri = uri
        self._database_name = database
        self._collections = {**OWN, **(collections or {})}
        self._timeout = timeout
        self._name = ""
        self._client: Client | None = None
        self._sessions: set[AsyncClientSession] = set()
        self._idle: dict[Partition, tuple[AsyncClientSession, Evict]] = {}

    async def open(self, name: str) -> None:
        self._name = name
        self._client = await mongo_server.opened(
            self._uri, name, self._database_name, self._collections, timeout=self._timeout
        )

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
            transaction = MongoTransaction(self._database, self._name, partition, session, evict)
            yield transaction
            await transaction.flush()
            await commit(session)
            self._idle[partition] = session, evict
        except BaseException:
            await _roll_back(session)
            await session.end_session()
            raise
        finally:
            if transaction is not None:
                transaction.end()
            self._sessions.discard(session)

    async def _new_session(self, partition: Partition) -> tuple[AsyncClientSession, Evict]:
        session = self._connected.start_session()
        try:
            evict = await take_over(self._connected, self._database, self._name, partition, session)
        except BaseException:
            await session.end_session()
            raise
        return session, evict

    async def positions(self) -> dict[Partition, int]:
        return await read_offsets(self._database, self._name)

    async def furthest(self) -> dict[Partition, int]:
        return await read_furthest(self._database, self._name)

    async def reset(self, offsets: Mapping[Partition, int | None]) -> None:
        await reset_offsets(self._connected, self._database, self._name, offsets)

    async def horizon(self) -> int:
        return horizon_of(await own(self._database, HORIZON).find_one({"_id": self._name}))

    async def prune(self, before_ms: int, limit: int) -> int:
        before = DatetimeMS(before_ms)
        # Stored for good before the first marker goes.
        await own(self._database, HORIZON).update_one({"_id": self._name}, {"$max": {"before": before}}, upsert=True)
        markers = own(self._database, MARKERS)
        old = {GROUP: self._name, "event_time": {"$lt": before}, "outcome": {"$nin": KEPT}}
        found = await markers.find(old, {"_id": 1}, sort=[("event_time", 1)], limit=limit).to_list()
        # Asked for again in full: an outcome may have changed since.
        deleted = await markers.delete_many({**old, "_id": {"$in": [each["_id"] for each in found]}})
        return deleted.deleted_count

    def is_away(self, error: BaseException) -> bool:
        return mongo_server.is_away(error)

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise RuntimeError("the store is not open")
        return self._client

    @property
    def _database(self) -> Database:
        return mongo_server.database_of(self._connected, self._database_name)


async def _roll_back(session: AsyncClientSession) -> None:
    try:
        if session.in_transaction:
            await session.abort_transaction()
    except PyMongoError:
        pass  # the server is away: it ends the transaction by itself
