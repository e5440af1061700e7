"""What handlers write with in MongoDB: everything goes into the block's transaction.

`upsert` and `delete` are put off and sent together, one `bulk_write` for each collection and in the order they were
asked for; whatever reads or writes at once, by `collection`, has them carried out first. So a handler reads its own
writes, and a block of hundreds of events costs a handful of journeys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pymongo import DeleteMany, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.results import DeleteResult, InsertOneResult, UpdateResult

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.projections.mongo.client import REFUSED, Document, access_refused, is_transient, refusal
from tailrace.projections.mongo.generations import Generation

Fields = Mapping[str, Any]


class SessionGuard:
    """All that one transaction says to the server, one after the other.

    The server ends a transaction at the first error in it. Whoever goes on after that is told "no such transaction",
    which looks like something that heals: so the first refusal is remembered, and the next question ends here.

    A question that is asked when the transaction has ended would be carried out without one, for good: so each is
    checked when its turn has come, and `end` waits for its turn, too.
    """

    def __init__(self, session: AsyncClientSession) -> None:
        self._session = session
        self._turn = asyncio.Lock()
        self._refused = False
        self._lost: Exception | None = None
        self._ended = False

    async def ask(self, method: Callable[..., Awaitable[Any]], *given: object, **options: object) -> Any:  # noqa: ANN401
        """Calls a method of a collection within the transaction."""
        async with self._turn:
            self.require_sound()
            return await self._ask(method, *given, **options)

    async def ask_for_handler(self, method: Callable[..., Awaitable[Any]], *given: object, **options: object) -> Any:  # noqa: ANN401
        """The same; whoever goes on without an answer is told so by the next question: it may be done, or not."""
        async with self._turn:
            self.require_sound()
            try:
                return await self._ask(method, *given, **options)
            except asyncio.CancelledError:
                self.refuse()
                raise
            except Exception as error:
                if is_transient(error):
                    self._lost = error
                raise

    async def _ask(self, method: Callable[..., Awaitable[Any]], *given: object, **options: object) -> Any:  # noqa: ANN401
        try:
            return await method(*given, session=self._session, **options)
        except Exception as error:
            if is_transient(error):
                raise
            self.refuse()
            if isinstance(error, OperationFailure) and error.code in REFUSED:
                # Nothing to do with the event at hand: it would be the same for all.
                raise access_refused(error, "what a projection asks for") from None
            raise

    def refuse(self) -> None:
        """What was asked for will not be done, and whoever goes on as if it were must be told."""
        self._refused = True

    async def end(self) -> None:
        """Nobody asks from now on; returns when nothing is under way any more."""
        async with self._turn:
            self._ended = True

    def require_sound(self) -> None:
        if self._ended:
            raise effects_ended()
        self.require_whole()

    def require_whole(self) -> None:
        """Raises if anything that was asked for is not done, or if nobody knows whether it is."""
        if self._lost is not None:
            raise self._lost
        if self._refused:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                "a handler went on after what it asked for had been refused, which ends the transaction",
                remedy="Have the handler look before it writes (find_one), or use an upsert, or let the error through.",
            )


def effects_ended() -> RuntimeError:
    return RuntimeError("the transaction of these effects has ended: a handler must not keep them")


class MongoEffects:
    """Writes to collections of the projection's database, by name."""

    def __init__(self, generation: Generation, conversation: SessionGuard) -> None:
        self._generation = generation
        self._conversation = conversation
        self._writes: dict[str, list[UpdateOne | DeleteMany]] = {}
        self._ended = False

    def upsert(self, collection: str, key: Fields, values: Fields) -> None:
        """Sets `values` in the document that has `key`, which is made if there is none. Give `key` a unique index."""
        self._put_off(collection, key, UpdateOne(dict(key), {"$set": dict(values)}, upsert=True))

    def delete(self, collection: str, key: Fields) -> None:
        """Deletes what has `key`, if anything does."""
        self._put_off(collection, key, DeleteMany(dict(key)))

    def collection(self, name: str) -> MongoCollection:
        """For all else: each call is carried out at once, within the transaction."""
        return MongoCollection(name, self._generation, self, self._conversation)

    def writable(self, name: str) -> AsyncCollection[Document]:
        try:
            return self._generation.to_write(name)
        except ConfigError:
            self._conversation.refuse()
            raise

    async def flush(self) -> None:
        """Carries out what was put off; Rejected for what the server will never take."""
        self._conversation.require_sound()
        while self._writes:
            name, writes = self._writes.popitem()
            try:
                # In order, always: a delete may make room in a unique index for the upsert behind it.
                await self._conversation.ask_for_handler(
                    self._generation.to_write(name).bulk_write, writes, ordered=True
                )
            except BulkWriteError as error:
                raise refusal(name, (error.details or {})["writeErrors"][0]) from None

    def end(self) -> None:
        """Nothing more is put off: the transaction is about to end."""
        self._ended = True

    def _put_off(self, collection: str, key: Fields, write: UpdateOne | DeleteMany) -> None:
        if not key:
            raise ValueError(f"a write to {collection} needs a key: an empty one means any document, or all")
        for name, value in key.items():
            if value is None:
                raise ValueError(f"{collection}.{name} is None: whatever lacks the field would have that as its key")
        if self._ended:
            raise effects_ended()
        self._conversation.require_sound()
        self.writable(collection)
        self._writes.setdefault(collection, []).append(write)


class MongoCollection:
    """A collection within a block's transaction. Options are those of pymongo's methods of the same name."""

    def __init__(self, name: str, generation: Generation, effects: MongoEffects, conversation: SessionGuard) -> None:
        self._name = name
        self._generation = generation
        self._effects = effects
        self._conversation = conversation

    @property
    def _readable(self) -> AsyncCollection[Document]:
        return self._generation.to_read(self._name)

    @property
    def _writable(self) -> AsyncCollection[Document]:
        return self._effects.writable(self._name)

    async def find_one(self, filter: Fields, **options: Any) -> Document | None:  # noqa: ANN401
        found: Document | None = await self._ask(self._readable.find_one, filter, **options)
        return found

    async def find(self, filter: Fields, **options: Any) -> list[Document]:  # noqa: ANN401
        collection = self._readable

        async def listed(session: AsyncClientSession) -> list[Document]:
            return await collection.find(filter, session=session, **options).to_list()

        found: list[Document] = await self._ask(listed)
        return found

    async def aggregate(self, pipeline: Sequence[Fields], **options: Any) -> list[Document]:  # noqa: ANN401
        collection, stages = self._readable, self._generation.pipeline(pipeline)

        async def listed(session: AsyncClientSession) -> list[Document]:
            return await (await collection.aggregate(stages, session=session, **options)).to_list()

        found: list[Document] = await self._ask(listed)
        return found

    async def insert_one(self, document: Document, **options: Any) -> InsertOneResult:  # noqa: ANN401
        done: InsertOneResult = await self._ask(self._writable.insert_one, document, **options)
        return done

    async def update_one(self, filter: Fields, update: Fields, **options: Any) -> UpdateResult:  # noqa: ANN401
        done: UpdateResult = await self._ask(self._writable.update_one, filter, update, **options)
        return done

    async def update_many(self, filter: Fields, update: Fields, **options: Any) -> UpdateResult:  # noqa: ANN401
        done: UpdateResult = await self._ask(self._writable.update_many, filter, update, **options)
        return done

    async def find_one_and_update(self, filter: Fields, update: Fields, **options: Any) -> Document | None:  # noqa: ANN401
        found: Document | None = await self._ask(self._writable.find_one_and_update, filter, update, **options)
        return found

    async def delete_many(self, filter: Fields, **options: Any) -> DeleteResult:  # noqa: ANN401
        done: DeleteResult = await self._ask(self._writable.delete_many, filter, **options)
        return done

    async def _ask(self, method: Callable[..., Awaitable[Any]], *given: object, **options: object) -> Any:  # noqa: ANN401
        await self._effects.flush()
        return await self._conversation.ask_for_handler(method, *given, **options)
