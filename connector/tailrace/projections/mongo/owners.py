"""Who applies the events of a partition: the server session of each owner, so that a dead one's can be ended.

A worker that dies within a transaction leaves it open on the server, for more than a minute, and with it the lock on
its partition. Its successor knows its session from here, and ends it if the lock does not come free by itself.

One that seems to be dead may only be slow, and then does the same to its successor. So whoever ends a transaction
writes that down, and the next one is patient for twice as long, until a transaction of the partition is committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bson.binary import Binary
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from tailrace.projections.core.store import Partition
from tailrace.projections.mongo.client import Client, Database, own, translated
from tailrace.projections.mongo.offsets import offset_id

OWNERS = "tailrace_owners"
Evict = Callable[[float, int], Awaitable[None]]
"""Is given how long somebody has waited, in multiples of the least time, and how many turns were committed by now."""


async def take_over(
    client: Client, database: Database, group: str, partition: Partition, session: AsyncClientSession
) -> Evict:
    """Writes down that `session` owns the partition now; what it returns ends the transaction of the one before."""
    ours = session.session_id["id"]
    owners, name = own(database, OWNERS), {"_id": offset_id(group, partition)}
    with translated("taking a partition over"):
        found = await owners.find_one_and_update(name, {"$set": {"session": ours}}, upsert=True)
    previous: Binary | None = None if found is None else found.get("session")

    async def evict(patience: float, turns: int) -> None:
        if previous is None or previous == ours:
            return
        try:
            known = await owners.find_one(name) or {}
            in_vain = known.get("evictions", 0) if known.get("turns") == turns else 0
            if patience < 2**in_vain:
                return
            await owners.update_one(name, {"$set": {"evictions": in_vain + 1, "turns": turns}})
            await client.admin.command({"killSessions": [{"id": previous}]})
        except PyMongoError:
            pass  # not allowed, or away: then the server ends it when its time is up

    return evict
