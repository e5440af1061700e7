"""Changes that break one rule of projections, as code to run before them: the tests must notice each of them."""

from __future__ import annotations

CARELESS = """
from tailrace.projections.reader.reader import EventReader
careful = EventReader._deliver

def careless(self, generation, records, passed):
    careful(self, self._generation, {each: found for each, found in records.items() if each in self._progress}, {})

EventReader._deliver = careless
"""
"""A reader that does not tell records of an ended assignment from those of the current one."""
OFFSET_FIRST = """
from tailrace.projections.core import partition_worker
from tailrace.projections.core.partition_worker import PartitionWorker
run, apply = PartitionWorker._apply, partition_worker.apply
async def offset_first(self, batch, *more):
    async with self._store.transaction(self.partition) as transaction:
        await transaction.position()
        await transaction.advance(batch[-1].offset + 1)
    return await run(self, batch, *more)
async def blind(transaction, events, spec, **more):
    async def position():
        return None
    transaction.position = position
    return await apply(transaction, events, spec, **more)
PartitionWorker._apply, partition_worker.apply = offset_first, blind
"""
"""The next offset is stored before the events are applied."""
MARKERS_APART = """
from tailrace.projections.core import partition_worker
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.store import Marker
run, apply = PartitionWorker._apply, partition_worker.apply
async def markers_first(self, batch, *more):
    async with self._store.transaction(self.partition) as transaction:
        self._fresh = await transaction.mark([Marker(event.id, event.time_ms) for event in batch])
    return await run(self, batch, *more)
async def trusting(transaction, events, spec, **more):
    async def mark(markers):
        return {marker.event_id for marker in markers}
    transaction.mark = mark
    return await apply(transaction, events, spec, **more)
PartitionWorker._apply, partition_worker.apply = markers_first, trusting
"""
"""The markers are committed in a transaction of their own, before the effects."""
