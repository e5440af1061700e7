"""The next offset of each partition, in the collection `tailrace_offsets`: one document each, named by its `_id`.

These documents are also where a rebuild stops those who apply events, for they all come here first (`mongo_swap.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection

from tailrace.errors import StoreUnavailable
from tailrace.projections.core.store import Partition
from tailrace.projections.mongo.client import DURABLE, Client, Database, Document, own

OFFSETS = "tailrace_offsets"
GROUP = "_id.consumer_group"
HELD = "held"
"""By whom, while a rebuild that is about to swap does its last steps: whoever applies events waits."""
CLOSED = "closed"
"""The swap is decided, and this belongs to what is replaced: nothing may be written any more."""


SEALED = "sealed"
"""The swap is decided, and this belongs to what takes over: nothing may be written to it before it is in its place."""


class Swapping(StoreUnavailable):
    """What was asked for is being replaced at this moment."""


def swapping() -> Swapping:
    return Swapping(
        "what a rebuild has made is being put in its place",
        why="The swap is decided, and not finished: nothing may be written to the old collections any more.",
        remedy="Tailrace finishes it, and goes on by itself.",
    )


def offset_id(group: str, partition: Partition) -> Document:
    """Fields in this order, always: to the server another order is another `_id`."""
    return {"consumer_group": group, "topic": partition.topic, "partition": partition.number}


async def read_offsets(database: Database, group: str) -> dict[Partition, int]:
    """The next offset of each partition that has one."""
    return await stored_offsets(own(database, OFFSETS), group)


async def stored_offsets(
    collection: AsyncCollection[Document], group: str, field: str = "next_offset"
) -> dict[Partition, int]:
    """What each partition has in `field`: `furthest` is the highest next offset that it ever had."""
    found = collection.find({GROUP: group, field: {"$ne": None}})
    return {Partition(each["_id"]["topic"], each["_id"]["partition"]): each[field] async for each in found}


async def reset_offsets(
    client: Client, database: Database, group: str, offsets: Mapping[Partition, int | None]
) -> None:
    """Sets or forgets them, all or none; waits for transactions that are about to store theirs."""
    collection = own(database, OFFSETS)

    async def set_all(session: AsyncClientSession) -> None:
        for partition, offset in offsets.items():
            name = {"_id": offset_id(group, partition)}
            change = {"$unset": {"next_offset": ""}} if offset is None else {"$set": {"next_offset": offset}}
            found = await collection.find_one_and_update(name, change, upsert=offset is not None, session=session)
            if found is not None and CLOSED in found:
                raise swapping()

    async with client.start_session() as session:
        await session.with_transaction(set_all, write_concern=DURABLE)
