"""One transaction of the RocksDB store: markers, versions, waiting events and the next offset."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from tailrace.projections.core.store import EntityState, EventOutcome, Marker, Partition, WaitingEvent
from tailrace.projections.rocksdb.buffer import WriteBuffer
from tailrace.projections.rocksdb.database import KIT
from tailrace.projections.rocksdb.effects import RocksEffects
from tailrace.projections.rocksdb.records import (
    NEVER_PRUNED,
    MarkerRecord,
    OffsetRecord,
    ProjectionKeys,
    decode_entity,
    decode_marker,
    decode_names,
    decode_number,
    decode_offset,
    decode_waiting,
    encode,
    marker_record,
    number,
)


class RocksTransaction:
    """A transaction for events of one partition."""

    def __init__(
        self,
        buffer: WriteBuffer,
        keys: ProjectionKeys,
        partition: Partition,
        effects: RocksEffects,
        acquire: Callable[[], Awaitable[asyncio.Lock]],
    ) -> None:
        """`acquire` locks the partition."""
        self._buffer = buffer
        self._keys = keys
        self._partition = partition
        self._effects = effects
        self._acquire = acquire
        self._lock: asyncio.Lock | None = None

    @property
    def effects(self) -> RocksEffects:
        return self._effects

    async def position(self) -> int | None:
        if self._lock is None:
            self._lock = await self._acquire()
        return self._offset().next

    def _offset(self) -> OffsetRecord:
        found = self._buffer.get(KIT, self._keys.offset(self._partition))
        return OffsetRecord(None, 0) if found is None else decode_offset(found)

    async def advance(self, offset: int) -> None:
        stored = OffsetRecord(offset, max(offset, self._offset().furthest))
        self._put(self._keys.offset(self._partition), stored)

    async def mark(self, markers: Sequence[Marker]) -> set[str]:
        new: set[str] = set()
        for marker in markers:
            known = self._marker(marker.event_id)
            if known is None:
                self._save_marker(marker.event_id, marker_record(marker))
            elif known.outcome is EventOutcome.DEAD:
                self._save_marker(marker.event_id, known._replace(outcome=EventOutcome.APPLIED))
            else:
                continue
            new.add(marker.event_id)
        return new

    async def set_outcomes(self, outcomes: Mapping[str, EventOutcome]) -> None:
        for event_id, outcome in outcomes.items():
            known = self._marker(event_id)
            if known is not None:
                self._save_marker(event_id, known._replace(outcome=outcome))

    def _marker(self, event_id: str) -> MarkerRecord | None:
        found = self._buffer.get(KIT, self._keys.marker(event_id))
        return None if found is None else decode_marker(found)

    def _save_marker(self, event_id: str, marker: MarkerRecord) -> None:
        self._put(self._keys.marker(event_id), marker)
        time_key = self._keys.marker_time(event_id, marker.time_ms)
        if marker.outcome in NEVER_PRUNED:
            self._buffer.delete(KIT, time_key)
        else:
            self._buffer.put(KIT, time_key, b"")

    async def entities(self, names: Collection[str]) -> dict[str, EntityState]:
        found = {name: self._buffer.get(KIT, self._keys.entity(name)) for name in names}
        return {name: decode_entity(state) for name, state in found.items() if state is not None}

    async def save_entities(self, states: Mapping[str, EntityState]) -> None:
        for name, state in states.items():
            self._put(self._keys.entity(name), state)

    async def wait(self, events: Sequence[WaitingEvent]) -> None:
        for event in events:
            if self._waiting(event.event_id) is None:
                self._put(self._keys.waiting(event.event_id), event)
                self._buffer.put(KIT, self._keys.waits_since(event), b"")
                self._save_names(event.entity, [*self._names(event.entity), event.event_id])

    async def waiting(self, names: Collection[str]) -> list[WaitingEvent]:
        ids = [event_id for name in names for event_id in self._names(name)]
        found = [event for event in map(self._waiting, ids) if event is not None]
        return sorted(found, key=lambda event: (event.entity, event.version))

    async def expired(self, before_ms: int, limit: int) -> list[WaitingEvent]:
        prefix = self._keys.waiting_since(self._partition)
        since = itertools.takewhile(
            lambda item: item[0] < prefix + number(before_ms), self._buffer.items(KIT, prefix)
        )  # fmt: skip
        ids = [key[len(prefix) + 8 :].decode() for key, _ in itertools.islice(since, limit)]
        return [event for event in map(self._waiting, ids) if event is not None]

    async def release(self, event_ids: Collection[str]) -> None:
        for event_id in event_ids:
            event = self._waiting(event_id)
            if event is not None:
                self._buffer.delete(KIT, self._keys.waiting(event_id))
                self._buffer.delete(KIT, self._keys.waits_since(event))
                self._save_names(event.entity, [each for each in self._names(event.entity) if each != event_id])

    def _waiting(self, event_id: str) -> WaitingEvent | None:
        found = self._buffer.get(KIT, self._keys.waiting(event_id))
        return None if found is None else decode_waiting(found)

    def _names(self, entity: str) -> list[str]:
        found = self._buffer.get(KIT, self._keys.waiting_by_entity(entity))
        return [] if found is None else decode_names(found)

    def _save_names(self, entity: str, ids: list[str]) -> None:
        if ids:
            self._put(self._keys.waiting_by_entity(entity), ids)
        else:
            self._buffer.delete(KIT, self._keys.waiting_by_entity(entity))

    async def horizon(self) -> int:
        return horizon_of(self._buffer, self._keys)

    async def flush(self) -> None:
        """Does nothing: effects are executed at once, in memory."""

    def _put(self, key: bytes, value: object) -> None:
        self._buffer.put(KIT, key, encode(value))

    @property
    def is_stale(self) -> bool:
        return self._buffer.is_stale

    def commit(self) -> None:
        self._effects.finish()
        self._buffer.commit()

    def end(self) -> None:
        """Releases the partition and refuses further effects. What is not committed is dropped."""
        self._effects.end()
        self._buffer.end()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def horizon_of(buffer: WriteBuffer, keys: ProjectionKeys) -> int:
    found = buffer.get(KIT, keys.horizon)
    return 0 if found is None else decode_number(found)
