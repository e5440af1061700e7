"""One transaction of the MongoDB store: markers, versions, waiting events and the next offset.

In MongoDB every error ends the transaction, even a duplicate key. So existing documents are looked up before inserts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from bson.datetime_ms import DatetimeMS
from pymongo import UpdateMany, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError

from tailrace.projections.core.store import EntityState, EventOutcome, Marker, Partition, WaitingEvent
from tailrace.projections.mongo.client import UNKNOWN_COMMIT, Document
from tailrace.projections.mongo.collections import ENTITIES, HORIZON, MARKERS, OFFSETS, WAITING, Generation, offset_id
from tailrace.projections.mongo.effects import MongoEffects, SessionGuard
from tailrace.projections.mongo.partition_lock import Evict, Join, PartitionLock

COMMIT_SECONDS = 60.0
COMMIT_PAUSE = 0.1


async def commit(session: AsyncClientSession) -> None:
    """Commits. Retries while the result is unknown, for at most COMMIT_SECONDS."""
    deadline = time.monotonic() + COMMIT_SECONDS
    while True:
        try:
            await session.commit_transaction()
        except PyMongoError as error:
            if not error.has_error_label(UNKNOWN_COMMIT) or time.monotonic() >= deadline:
                raise
            await asyncio.sleep(COMMIT_PAUSE)
        else:
            return


class MongoTransaction:
    """A transaction for events of one partition of the projection `group`."""

    def __init__(
        self,
        generation: Generation,
        group: str,
        partition: Partition,
        session: AsyncClientSession,
        *,
        evict: Evict,
        join: Join,
    ) -> None:
        """`evict` and `join` are those of `PartitionLock`."""
        self._group = group
        self._partition = partition
        self._guard = SessionGuard(session)
        self._effects = MongoEffects(generation, self._guard)
        self._run = self._guard.run
        self._offsets = generation.kit(OFFSETS)
        self._markers = generation.kit(MARKERS)
        self._entities = generation.kit(ENTITIES)
        self._waiting = generation.kit(WAITING)
        self._horizon = generation.kit(HORIZON)
        name = offset_id(group, partition)
        is_live = generation.number is None
        self._lock = PartitionLock(self._offsets, name, session, self._run, evict=evict, join=join, is_live=is_live)

    @property
    def effects(self) -> MongoEffects:
        return self._effects

    async def position(self) -> int | None:
        next_offset: int | None = (await self._lock.acquire()).get("next_offset")
        return next_offset

    async def advance(self, offset: int) -> None:
        name = {"_id": offset_id(self._group, self._partition)}
        change = {"$set": {"next_offset": offset}, "$max": {"furthest": offset}}
        await self._run(self._offsets.update_one, name, change, upsert=True)

    async def mark(self, markers: Sequence[Marker]) -> set[str]:
        wanted: dict[str, Marker] = {}
        for marker in markers:
            wanted.setdefault(marker.event_id, marker)
        known: dict[str, str] = {}
        for each in await self._found(self._markers, {"_id": self._any(wanted)}, {"outcome": 1}):
            known[each["_id"]["event_id"]] = each["outcome"]
        now = datetime.now(UTC)
        # If another transaction marks one of them meanwhile, the insert conflicts and the batch is retried.
        new = [self._marker(marker, now) for name, marker in wanted.items() if name not in known]
        if new:
            await self._run(self._markers.insert_many, new, ordered=False)
        dead = [name for name, outcome in known.items() if outcome == EventOutcome.DEAD]
        if dead:
            again = {"outcome": EventOutcome.APPLIED.value, "processed_at": now}
            await self._run(self._markers.update_many, {"_id": self._any(dead)}, {"$set": again})
        return {each["_id"]["event_id"] for each in new}.union(dead)

    async def set_outcomes(self, outcomes: Mapping[str, EventOutcome]) -> None:
        by_outcome: dict[EventOutcome, list[str]] = {}
        for name, outcome in outcomes.items():
            by_outcome.setdefault(outcome, []).append(name)
        if by_outcome:
            writes = [
                UpdateMany({"_id": self._any(names)}, {"$set": {"outcome": outcome.value}})
                for outcome, names in by_outcome.items()
            ]
            await self._run(self._markers.bulk_write, writes)

    async def entities(self, names: Collection[str]) -> dict[str, EntityState]:
        ids = [self._entity_id(name) for name in names]
        found = await self._found(self._entities, {"_id": {"$in": ids}})
        known = [each for each in found if "version" in each]  # the others only have waiting events
        return {each["_id"]["entity_id"]: EntityState(each["version"], each["deleted"]) for each in known}

    async def save_entities(self, states: Mapping[str, EntityState]) -> None:
        if states:
            writes = [
                UpdateOne({"_id": self._entity_id(name)}, {"$set": state._asdict()}, upsert=True)
                for name, state in states.items()
            ]
            await self._run(self._entities.bulk_write, writes, ordered=False)

    async def wait(self, events: Sequence[WaitingEvent]) -> None:
        if events:
            # Conflicts with a transaction that applies their predecessor meanwhile.
            names = {event.entity for event in events}
            expected = [
                UpdateOne({"_id": self._entity_id(name)}, {"$inc": {"waits": 1}}, upsert=True) for name in names
            ]
            await self._run(self._entities.bulk_write, expected, ordered=False)
            writes = [
                UpdateOne({"_id": self._event_id(event.event_id)}, {"$setOnInsert": _kept(event)}, upsert=True)
                for event in events
            ]
            await self._run(self._waiting.bulk_write, writes)

    async def waiting(self, names: Collection[str]) -> list[WaitingEvent]:
        wanted = {"_id.consumer_group": self._group, "entity_id": {"$in": list(names)}}
        found = await self._found(self._waiting, wanted, sort=[("entity_id", 1), ("version", 1)])
        return [_waiting(each) for each in found]

    async def expired(self, before_ms: int, limit: int) -> list[WaitingEvent]:
        wanted = {
            "_id.consumer_group": self._group,
            "topic": self._partition.topic,
            "partition": self._partition.number,
            "since": {"$lt": DatetimeMS(before_ms)},
        }
        found = await self._found(self._waiting, wanted, sort=[("since", 1)], limit=limit)
        return [_waiting(each) for each in found]

    async def release(self, event_ids: Collection[str]) -> None:
        if event_ids:
            await self._run(self._waiting.delete_many, {"_id": self._any(event_ids)})

    async def horizon(self) -> int:
        found: Document | None = await self._run(self._horizon.find_one, {"_id": self._group})
        return horizon_of(found)

    async def flush(self) -> None:
        await self._effects.flush()

    async def finish(self) -> None:
        """Executes deferred writes and refuses further commands, so that it can be committed."""
        self._effects.end()
        await self.flush()
        await self._guard.end()
        self._guard.require_complete()

    async def abandon(self) -> None:
        """Refuses further commands, so that it can be rolled back."""
        self._effects.end()
        await self._guard.end()

    async def _found(
        self,
        collection: AsyncCollection[Document],
        wanted: Document,
        fields: Document | None = None,
        *,
        sort: Sequence[tuple[str, int]] | None = None,
        limit: int = 0,
    ) -> list[Document]:
        async def listed(session: AsyncClientSession) -> list[Document]:
            return await collection.find(wanted, fields, sort=sort, limit=limit, session=session).to_list()

        found: list[Document] = await self._run(listed)
        return found

    def _marker(self, marker: Marker, now: datetime) -> Document:
        return {
            "_id": self._event_id(marker.event_id),
            "entity_id": marker.entity,
            "entity_version": marker.version,
            "event_time": DatetimeMS(marker.time_ms),
            "processed_at": now,
            "outcome": EventOutcome.APPLIED.value,
        }

    def _any(self, event_ids: Iterable[str]) -> Document:
        return {"$in": [self._event_id(each) for each in event_ids]}

    def _event_id(self, event_id: str) -> Document:
        return {"consumer_group": self._group, "event_id": event_id}

    def _entity_id(self, name: str) -> Document:
        return {"consumer_group": self._group, "entity_id": name}


def horizon_of(found: Document | None) -> int:
    return 0 if found is None else int(found["before"])


def _kept(event: WaitingEvent) -> Document:
    return {
        "entity_id": event.entity,
        "version": event.version,
        "topic": event.partition.topic,
        "partition": event.partition.number,
        "offset": event.offset,
        "key": event.key,
        "value": event.value,
        "headers": [list(header) for header in event.headers],
        "event_time": DatetimeMS(event.time_ms),
        "since": DatetimeMS(event.since_ms),
    }


def _waiting(kept: Document) -> WaitingEvent:
    return WaitingEvent(
        event_id=kept["_id"]["event_id"],
        entity=kept["entity_id"],
        version=kept["version"],
        partition=Partition(kept["topic"], kept["partition"]),
        offset=kept["offset"],
        key=kept["key"],
        value=kept["value"],
        headers=[(name, value) for name, value in kept["headers"]],
        time_ms=int(kept["event_time"]),
        since_ms=int(kept["since"]),
    )
