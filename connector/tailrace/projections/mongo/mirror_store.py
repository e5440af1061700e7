"""The store of a mirror: one document for each event, and the next offset.

A document's `_id` is its event's id, so an event that arrives again finds its document. This needs neither markers nor
a transaction: documents are inserted unordered, many at once, and the next offset is stored after them. After a crash
in between, the same documents are inserted again without effect.

A document that violates another unique index is an error, since it would be lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from pymongo import IndexModel
from pymongo.errors import BulkWriteError, DuplicateKeyError

from tailrace.errors import ConfigError, StoreUnavailable
from tailrace.projections.core.store import EntityState, EventOutcome, Marker, Partition, WaitingEvent
from tailrace.projections.mongo.client import (
    DUPLICATE_KEY,
    TIMEOUT,
    Client,
    Database,
    Document,
    kit_collection,
    prepare,
    rejected,
)
from tailrace.projections.mongo.collections import OFFSETS, ConnectedStore, offset_id, stored_offsets

MIRROR_POOL = 10


class MirrorEffects:
    """The effects object of a mirror's handler."""

    def __init__(self, database: Database, collection: str) -> None:
        self._collection = database[collection]
        self._documents: list[Document] = []

    def insert(self, document: Document) -> None:
        """Inserts a document at the end of the batch. An existing document with the same `_id` stays."""
        self._documents.append(document)

    async def flush(self) -> None:
        """Inserts the documents durably; raises Rejected for one that the server will never accept."""
        documents, self._documents = self._documents, []
        if not documents:
            return
        try:
            await self._collection.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            self._require_duplicates(error.details or {})

    def _require_duplicates(self, details: Mapping[str, list[Document]]) -> None:
        """Returns if all rejected documents exist already, and are durable."""
        for write_error in details["writeErrors"]:
            if write_error["code"] != DUPLICATE_KEY or list(write_error.get("keyPattern", ())) != ["_id"]:
                raise rejected(self._collection.name, write_error) from None
        if details["writeConcernErrors"]:
            # They may be on one server only, and be lost with it.
            raise StoreUnavailable(
                "the documents of a mirror are not stored by a majority yet",
                why=f"MongoDB did not confirm it: code {details['writeConcernErrors'][0].get('code')}.",
                remedy="Tailrace retries automatically. Check that the members of the replica set run.",
            ) from None


class MirrorTransaction:
    """Documents and the next offset. A mirror needs no markers, versions or waiting events."""

    def __init__(self, database: Database, collection: str, group: str, partition: Partition) -> None:
        self._offsets = kit_collection(database, OFFSETS)
        self._name = offset_id(group, partition)
        self._partition = partition
        self._effects = MirrorEffects(database, collection)
        self._stored: int | None = None
        self._next: int | None = None

    @property
    def effects(self) -> MirrorEffects:
        return self._effects

    async def position(self) -> int | None:
        """Locks nothing: a second worker inserts documents that exist, and then cannot store the offset."""
        found = await self._offsets.find_one({"_id": self._name})
        self._stored = None if found is None else found.get("next_offset")
        return self._stored

    async def advance(self, offset: int) -> None:
        self._next = offset

    async def mark(self, markers: Sequence[Marker]) -> set[str]:
        """Returns all as new: existing documents are found by their `_id`."""
        return {marker.event_id for marker in markers}

    async def set_outcomes(self, outcomes: Mapping[str, EventOutcome]) -> None:
        """Does nothing: there are no markers."""

    async def entities(self, names: Collection[str]) -> dict[str, EntityState]:
        raise _no_versions()

    async def save_entities(self, states: Mapping[str, EntityState]) -> None:
        raise _no_versions()

    async def wait(self, events: Sequence[WaitingEvent]) -> None:
        raise _no_versions()

    async def waiting(self, names: Collection[str]) -> list[WaitingEvent]:
        raise _no_versions()

    async def expired(self, before_ms: int, limit: int) -> list[WaitingEvent]:
        raise _no_versions()

    async def release(self, event_ids: Collection[str]) -> None:
        raise _no_versions()

    async def horizon(self) -> int:
        """Returns 0: documents are never pruned."""
        return 0

    async def flush(self) -> None:
        await self._effects.flush()

    async def finish(self) -> None:
        """Inserts the documents, then stores the offset if it still is what `position` returned.

        Another worker may have advanced it meanwhile, or an operator may have reset it: neither must be undone.
        """
        await self.flush()
        if self._next is None:
            return
        unchanged = {"_id": self._name, "next_offset": self._stored}
        try:
            stored = await self._offsets.update_one(
                unchanged, {"$set": {"next_offset": self._next}}, upsert=self._stored is None
            )
        except DuplicateKeyError:
            raise self._moved() from None
        if not stored.matched_count and stored.upserted_id is None:
            raise self._moved()

    def _moved(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the offset of {self._partition} was changed by someone else",
            why="Another worker owns the partition now, or an operator has reset it.",
            remedy="Tailrace reads it again and continues from there.",
        )


class MirrorStore(ConnectedStore):
    """Keeps a mirror in one collection, with the indexes that its readers need."""

    def __init__(
        self,
        uri: str,
        database: str,
        collection: str,
        *,
        indexes: Sequence[IndexModel] = (),
        pool_size: int = MIRROR_POOL,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(uri, database, timeout, pool_size)
        self._collection = collection
        self._indexes = indexes

    async def _prepare(self, client: Client, database: Database) -> None:
        await prepare(database, {OFFSETS: (), self._collection: self._indexes})

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def transaction(self, partition: Partition) -> AsyncIterator[MirrorTransaction]:
        transaction = MirrorTransaction(self._database, self._collection, self._name, partition)
        yield transaction
        await transaction.finish()

    async def positions(self) -> dict[Partition, int]:
        return await stored_offsets(kit_collection(self._database, OFFSETS), self._name)

    async def furthest(self) -> dict[Partition, int]:
        """Returns nothing: repeated events are found by their `_id`, however old they are."""
        return {}

    async def horizon(self) -> int:
        return 0

    async def prune(self, before_ms: int, limit: int) -> int:
        """Does nothing: there are no markers."""
        return 0


def _no_versions() -> ConfigError:
    return ConfigError(
        "a mirror does not support `versions`",
        why="It keeps every event, so none is stale and none has to wait.",
        remedy="Leave `versions` out for a projection with a MirrorStore.",
    )
