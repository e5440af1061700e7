"""What retention keeps in MongoDB, in collections beside the documents; as `postgres_state` does in tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId
from pymongo import DeleteOne, ReadPreference, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import CollectionInvalid
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tailrace import failpoints
from tailrace.retention.confirmations import Confirmation
from tailrace.retention.state import PurgedDay
from tailrace.sources.mongo.client import Client, translated_errors
from tailrace.sources.mongo.purged_documents import PURGED

CONFIRMATIONS, OFFSETS, KEPT = "tailrace_confirmations", "tailrace_retention_offsets", "tailrace_retention_kept"
DOING = "recording what retention does"
PAGE = 1000
Document = dict[str, Any]


class MongoState:
    """Implements `RetentionState`."""

    def __init__(self, client: Client, database: str, collections: Sequence[str], id_field: str, pipeline: str) -> None:
        """`collections` have the documents, and `id_field` is their field with the id of the event."""
        self._client = client
        self._database = client.get_database(
            database, read_preference=ReadPreference.PRIMARY, write_concern=WriteConcern("majority")
        )
        self._collections = collections
        self._id_field = id_field
        self._pipeline = pipeline

    def ensure(self) -> None:
        with translated_errors(DOING):
            there = self._database.list_collection_names()
            for name in (CONFIRMATIONS, OFFSETS, KEPT, PURGED):
                if name not in there:
                    try:
                        self._database.create_collection(name)
                    except CollectionInvalid:
                        pass  # another run has just created it
            self._database[CONFIRMATIONS].create_index([("_id.pipeline", 1), ("confirmed_ms", 1), ("_id", 1)])

    def transaction(self, body: Callable[[ClientSession], Any]) -> Any:  # noqa: ANN401 - what the body returns
        """Runs `body` in a transaction; repeats it after a write conflict with another run."""
        with translated_errors(DOING), self._client.start_session() as session:
            return session.with_transaction(
                body,
                read_concern=ReadConcern("snapshot"),
                write_concern=WriteConcern("majority"),
                read_preference=ReadPreference.PRIMARY,
            )

    def offsets(self, topic: str) -> dict[int, int]:
        with translated_errors(DOING):
            found = self._database[OFFSETS].find({"_id.pipeline": self._pipeline, "_id.topic": topic})
            return {int(each["_id"]["partition"]): int(each["next"]) for each in found}

    def schedule(
        self, topic: str, confirmations: Sequence[Confirmation], offsets: Mapping[int, int], *, restart: bool
    ) -> int:
        latest: dict[str, int] = {}
        for each in confirmations:
            latest[each.event_id] = max(latest.get(each.event_id, 0), each.confirmed_ms)

        def store(session: ClientSession) -> None:
            if latest:
                self._database[CONFIRMATIONS].bulk_write(
                    [
                        UpdateOne(
                            {"_id": self._key(event_id)},
                            {"$max": {"confirmed_ms": latest[event_id]}, "$set": {"retry_ms": 0}},
                            upsert=True,
                        )
                        for event_id in sorted(latest)
                    ],
                    session=session,
                )
            self._save_offsets(topic, offsets, session, restart=restart)
            failpoints.reached(failpoints.RETENTION_SCHEDULED)

        self.transaction(store)
        return len(confirmations)

    def _save_offsets(self, topic: str, offsets: Mapping[int, int], session: ClientSession, *, restart: bool) -> None:
        for number in sorted(offsets):
            key = {"pipeline": self._pipeline, "topic": topic, "partition": number}
            change = {"$set" if restart else "$max": {"next": offsets[number]}}
            self._database[OFFSETS].update_one({"_id": key}, change, upsert=True, session=session)

    def canonical(self, ids: Sequence[str]) -> list[str | None]:
        return list(ids)

    def confirmed(self, ids: Sequence[str]) -> dict[str, int]:
        with translated_errors(DOING):
            found = self._database[CONFIRMATIONS].find({"_id": {"$in": [self._key(each) for each in ids]}})
            return {str(each["_id"]["event"]): int(each["confirmed_ms"]) for each in found}

    def due(self, confirmed_ms: int, now_ms: int, limit: int = 0) -> list[str]:
        """Returns ids confirmed at or before `confirmed_ms`, oldest first; `limit` 0 means all."""
        wanted = {
            "_id.pipeline": self._pipeline,
            "confirmed_ms": {"$lte": confirmed_ms},
            "retry_ms": {"$lte": now_ms},
        }
        with translated_errors(DOING):
            found = self._database[CONFIRMATIONS].find(wanted, {"_id": 1}).sort([("confirmed_ms", 1), ("_id", 1)])
            return [str(each["_id"]["event"]) for each in found.limit(limit)]

    def forget_unknown(self, before_ms: int) -> int:
        wanted = {"_id.pipeline": self._pipeline, "confirmed_ms": {"$lt": before_ms}}
        with translated_errors(DOING):
            ids = [str(each["_id"]["event"]) for each in self._database[CONFIRMATIONS].find(wanted, {"_id": 1})]
            gone = 0
            for at in range(0, len(ids), PAGE):
                page = ids[at : at + PAGE]
                there = self.existing(page)
                changes = [DeleteOne({**wanted, "_id": self._key(each)}) for each in page if each not in there]
                gone += self._database[CONFIRMATIONS].bulk_write(changes).deleted_count if changes else 0
        return gone

    def existing(self, ids: Sequence[str], session: ClientSession | None = None) -> set[str]:
        """Returns those of `ids` that have a document."""
        found: set[str] = set()
        for name in self._collections:
            for each in self._database[name].find(self.with_ids(ids), {self._id_field: 1}, session=session):
                found.add(_text(each.get(self._id_field)))
        return found

    def with_ids(self, ids: Iterable[str]) -> Document:
        """Returns the filter of documents of these events."""
        return {self._id_field: {"$in": [value for each in ids for value in _values(each)]}}

    def kept_events(self) -> list[str]:
        with translated_errors(DOING):
            found = self._database[KEPT].find({"_id.pipeline": self._pipeline})
            return [str(each["_id"]["event"]) for each in found]

    def remember(self, topic: str, opened: Iterable[str], closed: Iterable[str], offsets: Mapping[int, int]) -> None:
        changes: list[Any] = [DeleteOne({"_id": self._key(each)}) for each in sorted(closed)]
        changes += [
            UpdateOne({"_id": self._key(each)}, {"$setOnInsert": {"open": True}}, upsert=True)
            for each in sorted(opened)
        ]

        def store(session: ClientSession) -> None:
            if changes:
                self._database[KEPT].bulk_write(changes, session=session)
            self._save_offsets(topic, offsets, session, restart=False)

        self.transaction(store)

    def record(self, session: ClientSession, ids: Iterable[str], days: Iterable[PurgedDay]) -> None:
        """Notes deleted documents, in the transaction that deletes them."""
        keys = [self._key(each) for each in ids]
        self._database[CONFIRMATIONS].delete_many({"_id": {"$in": keys}}, session=session)
        now_ms = time.time_ns() // 1_000_000
        for day, rows in days:
            self._database[PURGED].update_one(
                {"_id": {"pipeline": self._pipeline, "day": day}},
                {"$inc": {"rows": rows}, "$set": {"purged_ms": now_ms}},
                upsert=True,
                session=session,
            )
        failpoints.reached(failpoints.RETENTION_DELETED)

    def postpone(self, ids: Iterable[str], retry_ms: int, forget_ms: int, session: ClientSession) -> int:
        """Postpones confirmations without a document; deletes those from before `forget_ms`, and returns how many."""
        keys = {"_id": {"$in": [self._key(each) for each in ids]}}
        confirmations = self._database[CONFIRMATIONS]
        gone = confirmations.delete_many({**keys, "confirmed_ms": {"$lt": forget_ms}}, session=session).deleted_count
        confirmations.update_many(keys, {"$set": {"retry_ms": retry_ms}}, session=session)
        return gone

    def _key(self, event_id: str) -> Document:
        return {"pipeline": self._pipeline, "event": event_id}


def _values(event_id: str) -> list[Any]:
    """Returns the values that the field of an event with this id may have."""
    values: list[Any] = [event_id]
    if ObjectId.is_valid(event_id):
        values.append(ObjectId(event_id))
    if event_id.isdecimal() and len(event_id) < 19 and str(int(event_id)) == event_id:
        values.append(int(event_id))
    try:
        values.append(Binary.from_uuid(UUID(event_id)))
    except ValueError:
        pass
    return values


def _text(value: object) -> str:
    if isinstance(value, Binary) and value.subtype == 4:
        return str(value.as_uuid())
    return str(value)
