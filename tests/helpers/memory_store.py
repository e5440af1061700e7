"""A store in memory, for tests of the kit. It passes the store contract, and tests can read its contents.

Stores that share a `MemoryDatabase` are workers of one database. A transaction changes copies; a commit repeats the
changes on the database, a rollback drops them. A commit fails if another transaction has marked the same event.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tailrace.errors import StoreUnavailable
from tailrace.projections.core.store import EntityState, EventOutcome, Marker, Partition, WaitingEvent

Key = tuple[tuple[str, Any], ...]
Rows = dict[str, dict[Key, dict[str, Any]]]
"""By table, then by key."""

KEPT = (EventOutcome.DEAD, EventOutcome.WAITING)


@dataclass
class Records:
    """The kit's records of one projection."""

    offsets: dict[Partition, int] = field(default_factory=dict)
    furthest: dict[Partition, int] = field(default_factory=dict)
    markers: dict[str, tuple[Marker, EventOutcome]] = field(default_factory=dict)
    entities: dict[str, EntityState] = field(default_factory=dict)
    waiting: dict[str, WaitingEvent] = field(default_factory=dict)
    horizon: int = 0


class MemoryDatabase:
    """The committed data: `rows` of the handlers, and `records` of the kit by projection."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.records: dict[str, Records] = {}
        self.open: set[MemoryTransaction] = set()
        self.refuse: Callable[[str, Mapping[str, Any], Mapping[str, Any] | None], None] | None = None
        """Called with each write when it is executed; a test may let it raise."""
        self._locks: dict[tuple[str, Partition], asyncio.Lock] = {}

    def lock(self, name: str, partition: Partition) -> asyncio.Lock:
        return self._locks.setdefault((name, partition), asyncio.Lock())

    def cut(self) -> None:
        """Breaks all open transactions."""
        for transaction in self.open:
            transaction.broken.set()


class MemoryEffects:
    """Writes rows. `rows` is what the transaction sees: committed rows, and its own executed writes."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.rows: Rows = copy.deepcopy(database.rows)
        self.executed: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = []
        self.has_ended = False
        self._database = database
        self._deferred: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = []

    def upsert(self, table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self._require_open()
        self._deferred.append((table, dict(key), dict(values)))

    def delete(self, table: str, key: Mapping[str, Any]) -> None:
        self._require_open()
        self._deferred.append((table, dict(key), None))

    def _require_open(self) -> None:
        if self.has_ended:
            raise RuntimeError("the transaction of these effects has ended")

    async def fetch_one(self, table: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the row with this key, as the transaction sees it."""
        await self.flush()
        return self.rows.get(table, {}).get(row_key(key))

    async def flush(self) -> None:
        writes, self._deferred = self._deferred, []
        for table, key, values in writes:
            if self._database.refuse is not None:
                self._database.refuse(table, key, values)
            write(self.rows, table, key, values)
            self.executed.append((table, key, values))


def row_key(key: Mapping[str, Any]) -> Key:
    return tuple(sorted(key.items()))


def write(rows: Rows, table: str, key: Mapping[str, Any], values: Mapping[str, Any] | None) -> None:
    if values is None:
        rows.setdefault(table, {}).pop(row_key(key), None)
    else:
        rows.setdefault(table, {}).setdefault(row_key(key), dict(key)).update(values)


def _entity_records(records: Records, entity: str) -> object:
    """Returns the state and the waiting events of an entity."""
    return records.entities.get(entity), {each.event_id for each in records.waiting.values() if each.entity == entity}


class MemoryTransaction:
    """A transaction for events of one partition; its changes are repeated at the commit."""

    def __init__(self, database: MemoryDatabase, name: str, partition: Partition) -> None:
        self.broken = asyncio.Event()
        self._effects = MemoryEffects(database)
        self._database = database
        self._name = name
        self._partition = partition
        self._view = copy.deepcopy(database.records[name])
        self._before = copy.deepcopy(self._view)
        self._changes: list[Callable[[Records], None]] = []
        self._marked: dict[str, tuple[Marker, EventOutcome] | None] = {}
        self._loaded: dict[str, object] = {}
        self._written: set[str] = set()
        self._locked = False

    @property
    def effects(self) -> MemoryEffects:
        return self._effects

    async def position(self) -> int | None:
        if not self._locked:
            await self._lock()
            # A transaction that has waited sees the changes of the other one.
            self._effects.rows = copy.deepcopy(self._database.rows)
            self._view = copy.deepcopy(self._database.records[self._name])
            self._before = copy.deepcopy(self._view)
        self._require_connected()
        return self._view.offsets.get(self._partition)

    async def advance(self, offset: int) -> None:
        def change(records: Records) -> None:
            records.offsets[self._partition] = offset
            records.furthest[self._partition] = max(offset, records.furthest.get(self._partition, 0))

        self._change(change)

    async def mark(self, markers: Sequence[Marker]) -> set[str]:
        fresh: dict[str, Marker] = {}
        for marker in markers:
            known = self._view.markers.get(marker.event_id)
            if marker.event_id not in fresh and (known is None or known[1] is EventOutcome.DEAD):
                fresh[marker.event_id] = marker
                self._marked.setdefault(marker.event_id, self._before.markers.get(marker.event_id))
        written = {each: (marker, EventOutcome.APPLIED) for each, marker in fresh.items()}
        self._change(lambda records: records.markers.update(written))
        return set(fresh)

    async def set_outcomes(self, outcomes: Mapping[str, EventOutcome]) -> None:
        def change(records: Records) -> None:
            for each in outcomes.keys() & records.markers.keys():
                records.markers[each] = (records.markers[each][0], outcomes[each])

        self._change(change)

    async def entities(self, names: Collection[str]) -> dict[str, EntityState]:
        self._require_connected()
        for name in names:
            self._loaded.setdefault(name, _entity_records(self._before, name))
        return {name: self._view.entities[name] for name in names if name in self._view.entities}

    async def save_entities(self, states: Mapping[str, EntityState]) -> None:
        self._written.update(states)
        self._change(lambda records: records.entities.update(states))

    async def wait(self, events: Sequence[WaitingEvent]) -> None:
        def change(records: Records) -> None:
            for event in events:
                records.waiting.setdefault(event.event_id, event)

        self._written.update(event.entity for event in events)
        self._change(change)

    async def waiting(self, names: Collection[str]) -> list[WaitingEvent]:
        self._require_connected()
        found = [each for each in self._view.waiting.values() if each.entity in names]
        return sorted(found, key=lambda each: (each.entity, each.version))

    async def expired(self, before_ms: int, limit: int) -> list[WaitingEvent]:
        self._require_connected()
        own = [each for each in self._view.waiting.values() if each.partition == self._partition]
        return sorted((each for each in own if each.since_ms < before_ms), key=lambda each: each.since_ms)[:limit]

    async def release(self, event_ids: Collection[str]) -> None:
        def change(records: Records) -> None:
            for each in event_ids:
                records.waiting.pop(each, None)

        self._change(change)

    async def horizon(self) -> int:
        return self._database.records[self._name].horizon

    async def flush(self) -> None:
        self._require_connected()
        await self._effects.flush()

    async def commit(self) -> None:
        await self.flush()
        records = self._database.records[self._name]
        for each, known in self._marked.items():
            if records.markers.get(each) != known:
                raise StoreUnavailable(f"another transaction has marked {each}", remedy="Try again.")
        for name in self._written & self._loaded.keys():
            if _entity_records(records, name) != self._loaded[name]:
                raise StoreUnavailable(f"another transaction has written {name}", remedy="Try again.")
        for change in self._changes:
            change(records)
        for executed in self._effects.executed:
            write(self._database.rows, *executed)

    def end(self) -> None:
        self._effects.has_ended = True
        if self._locked:
            self._database.lock(self._name, self._partition).release()

    def _change(self, change: Callable[[Records], None]) -> None:
        self._require_connected()
        change(self._view)
        self._changes.append(change)

    def _require_connected(self) -> None:
        if self.broken.is_set():
            raise StoreUnavailable("the connection is broken", remedy="Try again.")

    async def _lock(self) -> None:
        """Waits for the lock, or for the end of the connection."""
        waits = asyncio.create_task(self._database.lock(self._name, self._partition).acquire())
        breaks = asyncio.create_task(self.broken.wait())
        try:
            await asyncio.wait({waits, breaks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            breaks.cancel()
            self._locked = waits.done()
            if not self._locked:
                waits.cancel()


class MemoryStore:
    """The store of one worker; without a `database` it has its own."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()
        self._name: str | None = None
        self._open: set[MemoryTransaction] = set()

    @property
    def rows(self) -> Rows:
        """The committed rows of the handlers."""
        return self.database.rows

    @property
    def records(self) -> Records:
        """The committed records of the kit for this projection."""
        if self._name is None:
            raise RuntimeError("the store is not open")
        return self.database.records[self._name]

    def outcomes(self) -> dict[str, EventOutcome]:
        """Returns the outcome of each event by its id."""
        return {each: outcome for each, (_, outcome) in self.records.markers.items()}

    async def open(self, name: str) -> None:
        self._name = name
        self.database.records.setdefault(name, Records())

    async def close(self) -> None:
        for transaction in self._open:
            transaction.broken.set()

    @asynccontextmanager
    async def transaction(self, partition: Partition) -> AsyncIterator[MemoryTransaction]:
        if self._name is None:
            raise RuntimeError("the store is not open")
        transaction = MemoryTransaction(self.database, self._name, partition)
        for register in (self._open, self.database.open):
            register.add(transaction)
        try:
            yield transaction
            await transaction.commit()
        finally:
            for register in (self._open, self.database.open):
                register.discard(transaction)
            transaction.end()

    async def positions(self) -> dict[Partition, int]:
        return dict(self.records.offsets)

    async def furthest(self) -> dict[Partition, int]:
        return dict(self.records.furthest)

    async def reset(self, offsets: Mapping[Partition, int | None], *, only_missing: bool = False) -> None:
        for partition, offset in offsets.items():
            if offset is None:
                self.records.offsets.pop(partition, None)
            elif not only_missing or partition not in self.records.offsets:
                self.records.offsets[partition] = offset

    async def horizon(self) -> int:
        return self.records.horizon

    async def prune(self, before_ms: int, limit: int) -> int:
        records = self.records
        records.horizon = max(records.horizon, before_ms)
        old = [
            each for each, outcome in records.markers.values() if each.time_ms < before_ms and outcome not in KEPT
        ]  # fmt: skip
        for each in sorted(old, key=lambda each: each.time_ms)[:limit]:
            del records.markers[each.event_id]
        return min(limit, len(old))

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, StoreUnavailable)
