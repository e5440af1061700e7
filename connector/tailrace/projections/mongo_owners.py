"""Who applies the events of a partition: the server session of each owner, so that a dead one's can be ended.

A worker that dies within a transaction leaves it open on the server, for more than a minute, and with it the lock on
its partition. Its successor knows its session from here, and ends it if the lock does not come free by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bson.binary import Binary
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from tailrace.projections.mongo_offsets import offset_id
from tailrace.projections.mongo_server import Client, Database, own, translated
from tailrace.projections.store import Partition

OWNERS = "tailrace_owners"
Evict = Callable[[], Awaitable[None]]


async def take_over(
    client: Client, database: Database, group: str, partition: Partition, session: AsyncClientSession
) -> Evict:
    """Writes down that `session` owns the partition now; what it returns ends the transaction of the one before."""
    ours = session.session_id["id"]
    with translated("taking a partition over"):
        found = await own(database, OWNERS).find_one_and_update(
            {"_id": offset_id(group, partition)}, {"$set": {"session": ours}}, upsert=True
        )
    previous: Binary | None = None if found is None else found.get("session")

    async def evict() -> None:
        if previous is None or previous == ours:
            return
        try:
            await client.admin.command({"killSessions": [{"id": previous}]})
        except PyMongoError:
            pass  # not allowed, or away: then the server ends it when its time is up

    return evict
