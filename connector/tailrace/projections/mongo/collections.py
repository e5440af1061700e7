"""The collections of a MongoDB projection: live ones and shadow copies of a rebuild, and the stored offsets.

A shadow copy is named `<name>__next<number>` until the swap renames it (`swap.py`). Each rebuild has a new number, so a
late rename by a suspended process finds nothing to rename.

Handlers use the live names. Collections that they write must be declared, since only those are copied and renamed;
undeclared collections belong to others, and are read as they are.

`tailrace_offsets` has one document for each partition. All workers read and lock it first, so this is where a rebuild
stops them for the swap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection

from tailrace.errors import ConfigError, StoreUnavailable
from tailrace.projections.core.store import Partition
from tailrace.projections.mongo.client import (
    DURABLE,
    Client,
    Database,
    Document,
    connected,
    database_of,
    is_transient,
    kit_collection,
)

MARKERS = "tailrace_markers"
ENTITIES = "tailrace_entities"
WAITING = "tailrace_waiting"
HORIZON = "tailrace_horizon"
OFFSETS = "tailrace_offsets"
OWNERS = "tailrace_owners"
REBUILDS = "tailrace_rebuilds"

GROUP = "_id.consumer_group"
HELD = "held"
"""Field with the id of a rebuild that is about to swap: workers wait."""
CLOSED = "closed"
"""Field of old offsets once the swap is decided: nothing may be written any more."""
SEALED = "sealed"
"""Field of new offsets once the swap is decided: nothing may be written until they are renamed."""
NEXT = "__next"


def shadow_name(name: str, number: int) -> str:
    return f"{name}{NEXT}{number}"


class Generation:
    """The collections of one rebuild by its `number`, or the live ones (None)."""

    def __init__(self, database: Database, declared: Collection[str] = (), number: int | None = None) -> None:
        self.database = database
        self.number = number
        self._declared = declared

    def kit(self, name: str) -> AsyncCollection[Document]:
        """Returns one of the kit's own collections."""
        return kit_collection(self.database, self._name_of(name))

    def to_read(self, name: str) -> AsyncCollection[Document]:
        return self.database[self._readable_name(name)]

    def to_write(self, name: str) -> AsyncCollection[Document]:
        if self.number is not None and name not in self._declared:
            raise ConfigError(
                f"a handler writes to {name}, which its MongoStore does not declare",
                why="Only declared collections are copied by a rebuild: this write would change the live collection.",
                remedy=f'Give the MongoStore collections={{"{name}": []}}, with its indexes in the list.',
            )
        return self.database[self._name_of(name)]

    def pipeline(self, stages: Sequence[Mapping[str, Any]]) -> list[Document]:
        """Returns the stages with the names of the collections that they read replaced."""
        return [{operator: self._stage(operator, given) for operator, given in stage.items()} for stage in stages]

    def _stage(self, operator: str, given: Any) -> Any:  # noqa: ANN401 - any argument of a stage
        if not isinstance(given, Mapping):
            return given
        if operator == "$facet":
            return {name: self.pipeline(stages) for name, stages in given.items()}
        if operator not in ("$lookup", "$graphLookup"):
            return given  # no other stage that names a collection is allowed in a transaction
        named = {"from": self._readable_name(given["from"])} if isinstance(given.get("from"), str) else {}
        nested = {"pipeline": self.pipeline(given["pipeline"])} if "pipeline" in given else {}
        return {**given, **named, **nested}

    def _readable_name(self, name: str) -> str:
        return self._name_of(name) if name in self._declared else name

    def _name_of(self, name: str) -> str:
        return name if self.number is None else shadow_name(name, self.number)


class Swapping(StoreUnavailable):
    """A swap is decided and not complete."""


def swapping() -> Swapping:
    return Swapping(
        "the result of a rebuild is being swapped in",
        why="The swap is decided and not complete: nothing may be written to the old collections any more.",
        remedy="Tailrace completes it and continues automatically.",
    )


def offset_id(group: str, partition: Partition) -> Document:
    """Returns the `_id` of a partition's document. The order of the fields matters to the server."""
    return {"consumer_group": group, "topic": partition.topic, "partition": partition.number}


async def stored_offsets(
    collection: AsyncCollection[Document], group: str, field: str = "next_offset"
) -> dict[Partition, int]:
    """Returns `field` of each partition that has it; `furthest` is the highest next offset it ever had."""
    found = collection.find({GROUP: group, field: {"$ne": None}})
    return {Partition(each["_id"]["topic"], each["_id"]["partition"]): each[field] async for each in found}


class ConnectedStore:
    """The connection of a store and its offsets: what `MongoStore` and `MirrorStore` share."""

    def __init__(self, uri: str, database: str, timeout: float, pool_size: int) -> None:
        self._uri = uri
        self._database_name = database
        self._timeout = timeout
        self._pool_size = pool_size
        self._name = ""
        self._client: Client | None = None

    @property
    def address(self) -> tuple[str, str]:
        """The address of the server and the database."""
        return self._uri, self._database_name

    async def open(self, name: str) -> None:
        self._name = name
        client = await connected(self._uri, name, timeout=self._timeout, pool_size=self._pool_size)
        try:
            await self._prepare(client, database_of(client, self._database_name))
        except BaseException:
            await client.close()
            raise
        self._client = client

    async def _prepare(self, client: Client, database: Database) -> None:
        """Creates missing collections."""
        raise NotImplementedError

    async def reset(self, offsets: Mapping[Partition, int | None], *, only_missing: bool = False) -> None:
        """Sets or removes next offsets, all or none; waits for transactions that are about to store theirs."""
        collection = kit_collection(self._database, OFFSETS)

        async def set_all(session: AsyncClientSession) -> None:
            for partition, offset in offsets.items():
                key = {"_id": offset_id(self._name, partition)}
                stored = {"$ifNull": ["$next_offset", offset]} if only_missing else offset
                change = [{"$unset": "next_offset"} if offset is None else {"$set": {"next_offset": stored}}]
                found = await collection.find_one_and_update(key, change, upsert=offset is not None, session=session)
                if found is not None and CLOSED in found:
                    raise swapping()

        async with self._connected.start_session() as session:
            await session.with_transaction(set_all, write_concern=DURABLE)

    def is_transient(self, error: BaseException) -> bool:
        return is_transient(error)

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise RuntimeError("the store is not open")
        return self._client

    @property
    def _database(self) -> Database:
        return database_of(self._connected, self._database_name)
