"""The effects object of MongoDB handlers: all their writes go into the batch's transaction.

`upsert` and `delete` are deferred and sent together, one ordered `bulk_write` for each collection; calls through
`collection` execute them first. So a handler reads its own writes, and a batch of hundreds of events needs a few round
trips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pymongo import DeleteMany, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.results import DeleteResult, InsertOneResult, UpdateResult

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.projections.core.store import effects_ended
from tailrace.projections.mongo.client import Document, access_refused, is_transient, rejected
from tailrace.projections.mongo.collections import Generation
from tailrace.sources.mongo.client import ACCESS_CODES

Fields = Mapping[str, Any]
T = TypeVar("T")


class SessionGuard:
    """Sends the commands of one transaction one by one, and refuses commands after a failure or after its end.

    The server ends a transaction at its first error, and answers later commands with "no such transaction", which looks
    like a transient error. So the first failure is remembered, and the next command raises it.

    A command sent after the end of the transaction would be executed without one. So each command is checked when it
    has the lock, and `end` takes the lock, too.
    """

    def __init__(self, session: AsyncClientSession) -> None:
        self._session = session
        self._lock = asyncio.Lock()
        self._failed = False
        self._lost: Exception | None = None
        self._ended = False

    async def run(self, method: Callable[..., Awaitable[T]], *given: object, **options: object) -> T:
        """Calls a method of a collection within the transaction."""
        async with self._lock:
            self.require_open()
            return await self._run(method, *given, **options)

    async def run_for_handler(self, method: Callable[..., Awaitable[T]], *given: object, **options: object) -> T:
        """Does what `run` does; if the handler continues without the result, the next command raises.

        The first one may be executed or not.
        """
        async with self._lock:
            self.require_open()
            try:
                return await self._run(method, *given, **options)
            except asyncio.CancelledError:
                self.fail()
                raise
            except Exception as error:
                if is_transient(error):
                    self._lost = error
                raise

    async def _run(self, method: Callable[..., Awaitable[T]], *given: object, **options: object) -> T:
        try:
            return await method(*given, session=self._session, **options)
        except Exception as error:
            if is_transient(error):
                raise
            self.fail()
            if isinstance(error, OperationFailure) and error.code in ACCESS_CODES:
                # Not the event's fault: it would be the same for every event.
                raise access_refused(error, "a command of the projection") from None
            raise

    def fail(self) -> None:
        """Remembers that a command was not executed, so that the transaction cannot be committed."""
        self._failed = True

    async def end(self) -> None:
        """Refuses commands from now on; returns when none is running."""
        async with self._lock:
            self._ended = True

    def require_open(self) -> None:
        if self._ended:
            raise effects_ended()
        self.require_complete()

    def require_complete(self) -> None:
        """Raises if a command was not executed, or if that is unknown."""
        if self._lost is not None:
            raise self._lost
        if self._failed:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                "a handler ignored an error of MongoDB, which ends the transaction",
                remedy="Let the handler read before it writes (find_one), or use an upsert, or let the error through.",
            )


class MongoEffects:
    """Writes to collections of the projection's database, by name."""

    def __init__(self, generation: Generation, guard: SessionGuard) -> None:
        self._generation = generation
        self._guard = guard
        self._writes: dict[str, list[UpdateOne | DeleteMany]] = {}
        self._ended = False

    def upsert(self, collection: str, key: Fields, values: Fields) -> None:
        """Sets `values` in the document with `key`, or inserts it. Give `key` a unique index."""
        self._defer(collection, key, UpdateOne(dict(key), {"$set": dict(values)}, upsert=True))

    def delete(self, collection: str, key: Fields) -> None:
        """Deletes the documents with `key`."""
        self._defer(collection, key, DeleteMany(dict(key)))

    def collection(self, name: str) -> MongoCollection:
        """Returns a collection whose calls are executed at once, within the transaction."""
        return MongoCollection(name, self._generation, self, self._guard)

    def writable(self, name: str) -> AsyncCollection[Document]:
        try:
            return self._generation.to_write(name)
        except ConfigError:
            self._guard.fail()
            raise

    async def flush(self) -> None:
        """Executes deferred writes; raises Rejected for what the server will never accept."""
        self._guard.require_open()
        while self._writes:
            name, writes = self._writes.popitem()
            try:
                # Ordered: a delete may free a key of a unique index for the upsert after it.
                await self._guard.run_for_handler(self._generation.to_write(name).bulk_write, writes, ordered=True)
            except BulkWriteError as error:
                raise rejected(name, (error.details or {})["writeErrors"][0]) from None

    def end(self) -> None:
        """Refuses deferred writes from now on: the transaction is about to end."""
        self._ended = True

    def _defer(self, collection: str, key: Fields, write: UpdateOne | DeleteMany) -> None:
        if not key:
            raise ValueError(f"a write to {collection} needs a key: an empty one selects any document, or all")
        for name, value in key.items():
            if value is None:
                raise ValueError(f"{collection}.{name} is None: every document without the field would match")
        if self._ended:
            raise effects_ended()
        self._guard.require_open()
        writes = self._writes.get(collection)
        if writes is None:
            self.writable(collection)
            writes = self._writes[collection] = []
        writes.append(write)


class MongoCollection:
    """A collection within a batch's transaction. Options are those of pymongo's methods of the same name."""

    def __init__(self, name: str, generation: Generation, effects: MongoEffects, guard: SessionGuard) -> None:
        self._name = name
        self._generation = generation
        self._effects = effects
        self._guard = guard

    @property
    def _readable(self) -> AsyncCollection[Document]:
        return self._generation.to_read(self._name)

    @property
    def _writable(self) -> AsyncCollection[Document]:
        return self._effects.writable(self._name)

    async def find_one(self, filter: Fields, **options: Any) -> Document | None:  # noqa: ANN401
        return await self._run(self._readable.find_one, filter, **options)

    async def find(self, filter: Fields, **options: Any) -> list[Document]:  # noqa: ANN401
        collection = self._readable

        async def listed(session: AsyncClientSession) -> list[Document]:
            return await collection.find(filter, session=session, **options).to_list()

        return await self._run(listed)

    async def aggregate(self, pipeline: Sequence[Fields], **options: Any) -> list[Document]:  # noqa: ANN401
        collection, stages = self._readable, self._generation.pipeline(pipeline)

        async def listed(session: AsyncClientSession) -> list[Document]:
            return await (await collection.aggregate(stages, session=session, **options)).to_list()

        return await self._run(listed)

    async def insert_one(self, document: Document, **options: Any) -> InsertOneResult:  # noqa: ANN401
        return await self._run(self._writable.insert_one, document, **options)

    async def update_one(self, filter: Fields, update: Fields, **options: Any) -> UpdateResult:  # noqa: ANN401
        return await self._run(self._writable.update_one, filter, update, **options)

    async def update_many(self, filter: Fields, update: Fields, **options: Any) -> UpdateResult:  # noqa: ANN401
        return await self._run(self._writable.update_many, filter, update, **options)

    async def find_one_and_update(self, filter: Fields, update: Fields, **options: Any) -> Document | None:  # noqa: ANN401
        return await self._run(self._writable.find_one_and_update, filter, update, **options)

    async def delete_many(self, filter: Fields, **options: Any) -> DeleteResult:  # noqa: ANN401
        return await self._run(self._writable.delete_many, filter, **options)

    async def _run(self, method: Callable[..., Awaitable[T]], *given: object, **options: object) -> T:
        await self._effects.flush()
        return await self._guard.run_for_handler(method, *given, **options)
