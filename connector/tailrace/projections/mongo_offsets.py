"""The next offset of each partition, in the collection `tailrace_offsets`: one document each, named by its `_id`."""

from __future__ import annotations

from collections.abc import Mapping

from pymongo.asynchronous.client_session import AsyncClientSession

from tailrace.projections.mongo_server import DURABLE, Client, Database, Document, own
from tailrace.projections.store import Partition

OFFSETS = "tailrace_offsets"


def offset_id(group: str, partition: Partition) -> Document:
    """Fields in this order, always: to the server another order is another `_id`."""
    return {"consumer_group": group, "topic": partition.topic, "partition": partition.number}


async def read_offsets(database: Database, group: str) -> dict[Partition, int]:
    """The next offset of each partition that has one."""
    found = own(database, OFFSETS).find({"_id.consumer_group": group, "next_offset": {"$ne": None}})
    return {Partition(each["_id"]["topic"], each["_id"]["partition"]): each["next_offset"] async for each in found}


async def read_furthest(database: Database, group: str) -> dict[Partition, int]:
    """The highest next offset that each partition ever had."""
    found = own(database, OFFSETS).find({"_id.consumer_group": group, "furthest": {"$ne": None}})
    return {Partition(each["_id"]["topic"], each["_id"]["partition"]): each["furthest"] async for each in found}


async def reset_offsets(
    client: Client, database: Database, group: str, offsets: Mapping[Partition, int | None]
) -> None:
    """Sets or forgets them, all or none; waits for transactions that are about to store theirs."""
    collection = own(database, OFFSETS)

    async def set_all(session: AsyncClientSession) -> None:
        for partition, offset in offsets.items():
            name = {"_id": offset_id(group, partition)}
            if offset is None:
                await collection.update_one(name, {"$unset": {"next_offset": ""}}, session=session)
            else:
                await collection.update_one(name, {"$set": {"next_offset": offset}}, upsert=True, session=session)

    async with client.start_session() as session:
        await session.with_transaction(set_all, write_concern=DURABLE)
