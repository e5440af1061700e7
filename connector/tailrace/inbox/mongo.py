"""Markers in a collection of MongoDB.

The marker is upserted in the caller's transaction. MongoDB has no savepoints: if the body raises, the whole transaction
is aborted, so that neither marker nor effects are left, even if the caller catches the error and commits. It does not
wait for another transaction with the same marker either: that is a write conflict, after which a transaction is tried
again from its beginning, as `with_transaction` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from tailrace.errors import ConfigError, InboxUnfit, NotInTransaction
from tailrace.inbox.calls import DriverCall, perform
from tailrace.inbox.marker import ProcessedEvent
from tailrace.inbox.refusals import not_in_transaction, transaction_ended
from tailrace.outbox.writer.drivers.base import Driver
from tailrace.outbox.writer.requests import Answer, Handle, Steps

UNIQUE = ("consumer_group", "event_id")
_NOT_PLAIN = ("partialFilterExpression", "collation", "prepareUnique")
_REMEDY = "Open the block inside `with session.start_transaction():`, or in a callback of session.with_transaction."


class MongoInbox:
    """The commands of one collection: `database.collection`, or a collection of the client's default database."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_known = False

    @contextmanager
    def once(self, driver: Driver, session: Handle, marker: ProcessedEvent) -> Iterator[bool]:
        """Yields whether the event is new. An error of the body aborts the transaction."""
        _require_transaction(driver)
        try:
            yield perform(driver, self._mark(session, marker))
        except BaseException:
            if session.in_transaction:
                session.abort_transaction()
            raise
        if not session.in_transaction:
            raise transaction_ended()

    @asynccontextmanager
    async def once_async(self, driver: Driver, session: Handle, marker: ProcessedEvent) -> AsyncIterator[bool]:
        """Yields whether the event is new. An error of the body aborts the transaction."""
        _require_transaction(driver)
        try:
            yield await perform(driver, self._mark(session, marker))
        except BaseException:
            if session.in_transaction:
                await session.abort_transaction()
            raise
        if not session.in_transaction:
            raise transaction_ended()

    def _mark(self, session: Handle, marker: ProcessedEvent) -> Steps[bool]:
        collection = self._collection(session)
        if not self._is_known:
            indexes = yield DriverCall(collection.index_information)
            self._is_known = any(map(_is_unique, indexes.values()))
            if not self._is_known:
                raise InboxUnfit(
                    f"{self._name} has no unique index on consumer_group and event_id",
                    why="Without it, two consumers could apply one event at the same time.",
                    remedy="Create it with Inbox.create(session), or run the command of Inbox.ddl('mongo').",
                )
        identity = {"consumer_group": marker.consumer_group, "event_id": marker.event_id}
        other = {
            "entity_id": marker.entity_id,
            "entity_version": marker.entity_version,
            "processed_at": datetime.now(UTC),
        }
        # An insert of an existing marker would abort the transaction; an upsert changes nothing.
        result = yield DriverCall(
            lambda: collection.update_one(identity, {"$setOnInsert": other}, upsert=True, session=session)
        )
        return result.upserted_id is not None

    def ddl(self) -> str:
        database, _, name = self._name.rpartition(".")
        place = f"db.getSiblingDB({json.dumps(database)})" if database else "db"
        collection = f"{place}.getCollection({json.dumps(name)})"
        return (
            f"{collection}.createIndex({{consumer_group: 1, event_id: 1}}, {{unique: true}});\n"
            f"{collection}.createIndex({{processed_at: 1}});\n"
        )

    def create(self, driver: Driver, session: Handle) -> Steps[None]:
        """Creates the collection with its indexes, outside of the session's transaction."""
        collection = self._collection(session)
        yield DriverCall(lambda: collection.create_index([(field, 1) for field in UNIQUE], unique=True))
        yield DriverCall(lambda: collection.create_index([("processed_at", 1)]))

    def prune(self, driver: Driver, session: Handle, seconds: float, batch: int) -> Steps[int]:
        """Deletes old markers, one command for each batch; returns how many."""
        collection = self._collection(session)
        old = {"processed_at": {"$lt": datetime.now(UTC) - timedelta(seconds=seconds)}}
        total = 0
        while True:
            oldest = collection.find(old, ["_id"], sort=[("processed_at", 1)], limit=batch, session=session)
            found = yield DriverCall(oldest.to_list)
            chosen = {"_id": {"$in": [document["_id"] for document in found]}}
            result = yield DriverCall(partial(collection.delete_many, chosen, session=session))
            total += int(result.deleted_count)
            if len(found) < batch:
                return total

    def _collection(self, session: Handle) -> Answer:
        database, _, name = self._name.partition(".")
        if name:
            return session.client[database][name]
        try:
            return session.client.get_default_database()[database]
        except sys.modules["pymongo"].errors.ConfigurationError:
            raise ConfigError(
                f"{self._name!r} names no database",
                why="In MongoDB, Inbox(…) names database and collection, unless the client's URI names a database.",
                remedy="Write it like Inbox('shop.processed_events').",
            ) from None


def _require_transaction(driver: Driver) -> None:
    try:
        driver.require_transaction()
    except NotInTransaction as error:
        raise not_in_transaction(_REMEDY) from error


def _is_unique(index: Mapping[str, Any]) -> bool:
    """Returns whether the index makes markers unique: exactly by both fields, compared as they are."""
    fields = sorted(field for field, _ in index["key"])
    return fields == sorted(UNIQUE) and bool(index.get("unique")) and not any(name in index for name in _NOT_PLAIN)
