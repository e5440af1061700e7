"""What a rebuild has made takes the place of the old collections: decided in one transaction, then renamed one by one.

MongoDB renames a collection over another at once, but only one at a time. So the swap has three steps:

1. **Hold up.** Every partition's document in `tailrace_offsets` is marked, and whoever applies events to the old ones
   waits there (`mongo_turns.py`), while the new ones catch up with where these stand. A mark that is left behind by a
   kill is removed by those who wait.
2. **Decide.** One transaction, which fails if anybody has gone on meanwhile: the account says `swapping`, the old
   offsets and the old horizon are closed, and the new offsets are sealed: no worker of the rebuild may go on, since
   what it writes to is about to be renamed. Killed before it, nothing has happened. Behind it there is only forward.
3. **Finish.** Each new collection is renamed over the old one, which is dropped with that; the offsets come last. Until
   then all workers find the partitions closed, so none writes to some old and some new ones. Whoever comes across it
   finishes it: the rebuild, a running worker at its next event, whatever opens the store next. Several may do so at
   once: a collection is known by its identity, which a rename does not change.

Locks that wait would be simpler, but a transaction of MongoDB fails at the first conflict: with busy partitions, one
that needs them all would never come to its end. Hence the marks.

What a reader may see: each collection is whole at any time, old or new. Between the first and the last rename, one may
be new and another old; the old ones stand still then, and the new ones are at least as far. Cursors and change streams
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
from tailrace.projections.mongo.client import DURABLE, Client, Database, is_transient, own, translated
from tailrace.projections.mongo.generations import Generation, shadow_name
from tailrace.projections.mongo.offsets import CLOSED, GROUP, HELD, OFFSETS, SEALED, offset_id, stored_offsets
from tailrace.projections.mongo.owners import OWNERS
from tailrace.projections.mongo.rebuilds import REBUILDS, Phase, RebuildState, identities, read, require_alone
from tailrace.projections.mongo.transaction import HORIZON, horizon_of

HOLDING_SECONDS = 5.0
"""How long the blocks at hand may take to end."""
RENAME_SECONDS = 60.0
PAUSE = 0.1
NAMESPACE_NOT_FOUND = 26
INDEX_BUILD = 12587
SWAP_DECIDED = "projection-swap-decided"  # killed here: nothing is renamed yet
SWAP_RENAMED = "projection-swap-renamed"  # killed here: one more collection is renamed
log = logging.getLogger("tailrace.projections")


async def swap_generations(client: Client, new: Generation, group: str, catch_up: CatchUp) -> bool:
    """False if the new one does not get as far as the old one in time; nothing is changed then."""
    database = new.database
    offsets = own(database, OFFSETS)
    hold = ObjectId()
    with translated("swapping"):
        await require_alone(database, group)
        account = await _whole(new)
        try:
            with pymongo.timeout(HOLDING_SECONDS):
                await offsets.update_many({GROUP: group}, {"$set": {HELD: hold}})
            reached = await catch_up(await stored_offsets(offsets, group))
            if reached is None:
                return False
            await _decide(client, new, group, hold, reached, account)
        finally:
            await _let_go(database, hold)
        failpoints.reached(SWAP_DECIDED)
    await finish(database)
    return True


async def _whole(new: Generation) -> RebuildState:
    """The account of what was made, if it is all there and nobody has begun anew."""
    account = await read(new.database)
    ours = account.phase is Phase.BUILDING and account.number == new.number
    if not ours or await identities(new.database, account.made) != account.made:
        raise ProjectionError(
            "what the rebuild has made is not there any more as it was",
            why="Somebody has dropped a part of it, or has begun another rebuild.",
            remedy="Run it again: it begins anew. The old projection is as it was.",
        )
    return account


async def _decide(
    client: Client, new: Generation, group: str, hold: ObjectId, reached: Mapping[Partition, int], account: RebuildState
) -> None:
    offsets, horizon = own(new.database, OFFSETS), own(new.database, HORIZON)

    async def decide(session: AsyncClientSession) -> None:
        decided = {"$set": {"phase": Phase.SWAPPING.value}}
        known = await own(new.database, REBUILDS).update_one(account.as_seen, decided, session=session)
        await offsets.update_many({GROUP: group, HELD: hold}, {"$set": {CLOSED: account.number}}, session=session)
        gone_on = await offsets.find_one({GROUP: group, HELD: {"$ne": hold}}, session=session)
        if not known.matched_count or gone_on is not None:
            raise StoreUnavailable(
                f"{group} has gone on while it was to be held up",
                why="That took too long, or a partition was added.",
                remedy="Run it again: it goes on where it was.",
            )
        await require_alone(new.database, group, session)
        closed = {"$set": {CLOSED: account.number}, "$setOnInsert": {"before": DatetimeMS(0)}}
        forgotten = await horizon.find_one_and_update({"_id": group}, closed, upsert=True, session=session)
        # Somebody may be about to prune by the old horizon, and then it is the new markers that he finds.
        before = {"$max": {"before": DatetimeMS(horizon_of(forgotten))}}
        await new.own(HORIZON).update_one({"_id": group}, before, session=session)
        sealed = {"$set": {SEALED: account.number}}
        await new.own(OFFSETS).update_many({GROUP: group}, sealed, session=session)
        for partition, offset in reached.items():
            name = {"_id": offset_id(group, partition)}
            await new.own(OFFSETS).update_one(name, {"$max": {"next_offset": offset}}, session=session)

    async with client.start_session() as session:
        await session.with_transaction(
            decide, read_concern=ReadConcern("snapshot"), write_concern=DURABLE, read_preference=ReadPreference.PRIMARY
        )


async def _let_go(database: Database, hold: ObjectId) -> None:
    try:
        await own(database, OFFSETS).update_many({HELD: hold}, {"$unset": {HELD: ""}})
    except PyMongoError:
        pass  # away: those who wait help themselves


async def finish(database: Database) -> None:
    """Finishes a swap that is decided, if there is one."""
    with translated("swapping"):
        account = await read(database)
        if account.phase is not Phase.SWAPPING:
            return
        for name in account.collections:
            await _put_in_place(database, account, name)
            failpoints.reached(SWAP_RENAMED)
        await own(database, OWNERS).delete_many({GROUP: shadow_name(account.projection, account.number)})
        await own(database, REBUILDS).update_one(account.as_seen, {"$set": {"phase": Phase.DONE.value}})
    log.info("swapped", extra={"fields": {"projection": account.projection, "collections": len(account.collections)}})


async def _put_in_place(database: Database, account: RebuildState, name: str) -> None:
    """Returns when what was made is there under its own name, whoever did it."""
    source, identity = shadow_name(name, account.number), account.collections[name]
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
        elif (await read(database)).as_seen != account.as_seen:
            return  # finished, long ago perhaps
        elif late:
            raise ProjectionError(
                f"{source} is not there any more, which was to become {name}",
                why="Somebody has dropped it after the swap was decided.",
                remedy=f"Drop the collection {REBUILDS}, then run `tailrace project APP --rebuild` again.",
            )
        await asyncio.sleep(PAUSE)
