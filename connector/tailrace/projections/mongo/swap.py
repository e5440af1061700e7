"""Swaps in the result of a rebuild: decided in one transaction, then collections are renamed one by one.

MongoDB renames a collection over another atomically, but only one at a time. So the swap has three steps:

1. **Hold.** Each partition's document in `tailrace_offsets` gets a mark, and workers of the old projection wait for its
   removal (`partition_lock.py`), while the copy catches up with their positions. If the rebuild is killed, the waiting
   workers remove the mark.
2. **Decide.** One transaction, which fails if a worker has made progress meanwhile. It sets the phase to `swapping`,
   closes the old offsets and the old horizon, and seals the new offsets: workers of the rebuild must stop, since their
   collections are about to be renamed. Killed before this commit, nothing has happened. After it, it completes.
3. **Finish.** Each new collection is renamed over the old one, which drops the old one; the offsets come last. Until
   then all workers find their partitions closed, so none writes to a mixture of old and new. Any process completes it:
   the rebuild, a running worker at its next event, the next one that opens the store. Several may do so at the same
   time: a collection is identified by its UUID, which a rename does not change.

Waiting for locks would be simpler, but a MongoDB transaction fails at its first conflict: with busy partitions, one
that needs all of them would never succeed. Hence the marks.

Readers see each collection complete at any time, old or new. Between the first and the last rename, one may be new and
another old; the old ones do not change then, and the new ones have at least the same events. Cursors and change streams
on an old collection end with an error when it is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

import pymongo
from bson.datetime_ms import DatetimeMS
from bson.objectid import ObjectId
from pymongo import ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from tailrace import failpoints
from tailrace.errors import ProjectionError, StoreUnavailable
from tailrace.projections.core.store import CatchUp, Partition
from tailrace.projections.mongo.client import DURABLE, Client, Database, is_transient, kit_collection, translated
from tailrace.projections.mongo.collections import (
    CLOSED,
    GROUP,
    HELD,
    HORIZON,
    OFFSETS,
    OWNERS,
    REBUILDS,
    SEALED,
    Generation,
    offset_id,
    shadow_name,
    stored_offsets,
)
from tailrace.projections.mongo.rebuilds import Phase, RebuildState, identities, read, require_alone
from tailrace.projections.mongo.transaction import horizon_of

HOLDING_SECONDS = 5.0
"""How long running batches may take to end."""
RENAME_SECONDS = 60.0
PAUSE = 0.1
NAMESPACE_NOT_FOUND = 26
INDEX_BUILD = 12587
SWAP_DECIDED = "projection-swap-decided"  # killed here: nothing is renamed yet
SWAP_RENAMED = "projection-swap-renamed"  # killed here: one more collection is renamed
log = logging.getLogger("tailrace.projections")


async def swap_generations(client: Client, new: Generation, group: str, catch_up: CatchUp) -> bool:
    """Returns False, with nothing changed, if the copy does not catch up in time."""
    database = new.database
    offsets = kit_collection(database, OFFSETS)
    hold = ObjectId()
    with translated("swapping"):
        await require_alone(database, group)
        state = await _complete_state(new)
        try:
            with pymongo.timeout(HOLDING_SECONDS):
                await offsets.update_many({GROUP: group}, {"$set": {HELD: hold}})
            reached = await catch_up(await stored_offsets(offsets, group))
            if reached is None:
                return False
            await _decide(client, new, group, hold, reached, state)
        finally:
            await _release(database, hold)
        failpoints.reached(SWAP_DECIDED)
    await finish(database)
    return True


async def _complete_state(new: Generation) -> RebuildState:
    """Returns the state of the rebuild; raises if a copy is missing or another rebuild was started."""
    state = await read(new.database)
    ours = state.phase is Phase.BUILDING and state.number == new.number
    if not ours or await identities(new.database, state.copies) != state.copies:
        raise ProjectionError(
            "the collections of the rebuild are gone or changed",
            why="Someone has dropped some of them, or has started another rebuild.",
            remedy="Run it again: it starts from the beginning. The old projection is unchanged.",
        )
    return state


async def _decide(
    client: Client, new: Generation, group: str, hold: ObjectId, reached: Mapping[Partition, int], state: RebuildState
) -> None:
    offsets, horizon = kit_collection(new.database, OFFSETS), kit_collection(new.database, HORIZON)

    async def decide(session: AsyncClientSession) -> None:
        decided = {"$set": {"phase": Phase.SWAPPING.value}}
        known = await kit_collection(new.database, REBUILDS).update_one(state.match, decided, session=session)
        await offsets.update_many({GROUP: group, HELD: hold}, {"$set": {CLOSED: state.number}}, session=session)
        progressed = await offsets.find_one({GROUP: group, HELD: {"$ne": hold}}, session=session)
        if not known.matched_count or progressed is not None:
            raise StoreUnavailable(
                f"{group} made progress while it should have been blocked",
                why="The swap took too long, or a partition was added.",
                remedy="Run it again: it continues where it was.",
            )
        await require_alone(new.database, group, session)
        closed = {"$set": {CLOSED: state.number}, "$setOnInsert": {"before": DatetimeMS(0)}}
        old_horizon = await horizon.find_one_and_update({"_id": group}, closed, upsert=True, session=session)
        # A prune that has read the old horizon may delete new markers after the swap.
        before = {"$max": {"before": DatetimeMS(horizon_of(old_horizon))}}
        await new.kit(HORIZON).update_one({"_id": group}, before, session=session)
        sealed = {"$set": {SEALED: state.number}}
        await new.kit(OFFSETS).update_many({GROUP: group}, sealed, session=session)
        for partition, offset in reached.items():
            name = {"_id": offset_id(group, partition)}
            await new.kit(OFFSETS).update_one(name, {"$max": {"next_offset": offset}}, session=session)

    async with client.start_session() as session:
        await session.with_transaction(
            decide, read_concern=ReadConcern("snapshot"), write_concern=DURABLE, read_preference=ReadPreference.PRIMARY
        )


async def _release(database: Database, hold: ObjectId) -> None:
    try:
        await kit_collection(database, OFFSETS).update_many({HELD: hold}, {"$unset": {HELD: ""}})
    except PyMongoError:
        pass  # unavailable: the waiting workers remove the mark


async def finish(database: Database) -> None:
    """Completes a decided swap, if there is one."""
    with translated("swapping"):
        state = await read(database)
        if state.phase is not Phase.SWAPPING:
            return
        for name in state.collections:
            await _rename(database, state, name)
            failpoints.reached(SWAP_RENAMED)
        await kit_collection(database, OWNERS).delete_many({GROUP: shadow_name(state.projection, state.number)})
        await kit_collection(database, REBUILDS).update_one(state.match, {"$set": {"phase": Phase.DONE.value}})
    log.info("swapped", extra={"fields": {"projection": state.projection, "collections": len(state.collections)}})


async def _rename(database: Database, state: RebuildState, name: str) -> None:
    """Returns when the copy has its final name, no matter which process has renamed it."""
    source, identity = shadow_name(name, state.number), state.collections[name]
    deadline = time.monotonic() + RENAME_SECONDS
    while True:
        found = await identities(database, [source, name])
        if found.get(name) == identity:
            return
        late = time.monotonic() >= deadline
        if found.get(source) == identity:
            try:
                await database[source].rename(name, dropTarget=True)
            except (OperationFailure, ConnectionFailure) as error:
                code = error.code if isinstance(error, OperationFailure) else None
                if late or not (is_transient(error) or code in (NAMESPACE_NOT_FOUND, INDEX_BUILD)):
                    raise
            else:
                return
        elif (await read(database)).match != state.match:
            return  # completed by another process
        elif late:
            raise ProjectionError(
                f"{source}, which should become {name}, does not exist any more",
                why="Someone has dropped it after the swap was decided.",
                remedy=f"Drop the collection {REBUILDS}, then run `tailrace project APP --rebuild` again.",
            )
        await asyncio.sleep(PAUSE)
