"""pymongo: ClientSession and AsyncClientSession."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

from tailrace.outbox.writer.drivers.base import Database, refuse
from tailrace.outbox.writer.requests import Answer, CollectionExists, Count, Find, Handle, InsertDocuments, Request

_last: tuple[Handle, str, Handle] = (None, "", None)
"""The client, name and collection that were used last."""


class _Pymongo:
    """The base of both adapters. `session` is None after the transaction, when a receipt only reads."""

    database: ClassVar[Database] = "mongo"

    def __init__(self, session: Handle, client: Handle = None) -> None:
        self._session = session
        self._client = client if session is None else session.client

    def require_transaction(self) -> None:
        if not self._session.in_transaction:
            refuse(
                "The session has no transaction, so the event would be written without the business documents.",
                "Add the event inside `with session.start_transaction():`, or in a callback of with_transaction.",
            )

    def _call(self, request: Request) -> Answer:
        """Starts the command; the asyncio driver's result must be awaited."""
        if type(request) is InsertDocuments:
            collection = self._collection(request.collection)
            if request.key is None:
                if len(request.documents) == 1:  # does not go through the machinery of bulk writes
                    return collection.insert_one(request.documents[0], session=self._session)
                return collection.insert_many(request.documents, session=self._session)
            return collection.bulk_write(_upserts(request), session=self._session)
        if type(request) is CollectionExists:
            database, _, name = request.collection.partition(".")
            # No transaction may list collections. Without the right to list them, those are listed that may be used.
            return self._client[database].list_collection_names(filter={"name": name}, authorizedCollections=True)
        assert type(request) is Find  # noqa: S101 - the only other request of MongoDB
        collection = self._collection(request.collection)
        return collection.find_one(request.filter, request.fields, session=self._session)

    def _count(self, request: Count) -> tuple[Answer, Answer]:
        """Starts both commands; the asyncio driver's results must be awaited."""
        collection = self._collection(request.collection)
        return (
            collection.count_documents(request.filter, limit=request.limit, session=self._session),
            collection.find_one(request.filter, [request.field], sort=[(request.field, 1)], session=self._session),
        )

    def _collection(self, name: str) -> Answer:
        global _last  # noqa: PLW0603 - a cache of one: making these objects takes longer than adding an event
        client, known, collection = _last
        if client is not self._client or known != name:
            database, _, last = name.partition(".")
            collection = self._client[database][last]
            _last = self._client, name, collection
        return collection


class PymongoDriver(_Pymongo):
    is_async: ClassVar[bool] = False

    def execute(self, request: Request) -> Answer:
        if type(request) is Count:
            count, oldest = self._count(request)
            return count, _seconds(oldest, request)
        return _answer(request, self._call(request))

    def origin(self) -> PymongoReader:
        return PymongoReader(self._client)


class AsyncPymongoDriver(_Pymongo):
    is_async: ClassVar[bool] = True

    async def execute(self, request: Request) -> Answer:
        if type(request) is Count:
            count, oldest = self._count(request)
            return await count, _seconds(await oldest, request)
        return _answer(request, await self._call(request))

    def origin(self) -> AsyncPymongoReader:
        return AsyncPymongoReader(self._client)


class PymongoReader:
    """Reads with the client of the session, outside of any session."""

    is_async = False

    def __init__(self, client: Handle) -> None:
        self._client = client

    @contextmanager
    def open(self) -> Iterator[PymongoDriver]:
        yield PymongoDriver(None, self._client)


class AsyncPymongoReader(PymongoReader):
    is_async = True

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncPymongoDriver]:  # type: ignore[override]
        yield AsyncPymongoDriver(None, self._client)


def _upserts(request: InsertDocuments) -> list[Any]:
    """Returns operations that insert what is missing and change nothing that exists."""
    update_one = sys.modules["pymongo"].UpdateOne
    return [
        update_one({request.key: document[request.key or ""]}, {"$setOnInsert": document}, upsert=True)
        for document in request.documents
    ]


def _seconds(document: Answer, request: Count) -> float | None:
    at = None if document is None else document.get(request.field)
    if not isinstance(at, datetime):
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _answer(request: Request, result: Answer) -> Answer:
    if type(request) is not InsertDocuments:
        return result
    return len(request.documents) if request.key is None else result.upserted_count
