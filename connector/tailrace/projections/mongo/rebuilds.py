"""The state of rebuilds in a database: one document with the number and phase of the newest rebuild.

The kit's collections are renamed as a whole, so a database has one rebuild at a time, and one projection. A worker that
inserts the document of a new partition locks this document (`join`), and so does the decision to swap: so no partition
is added in between, and a worker of a finished rebuild is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from bson.datetime_ms import DatetimeMS
from pymongo.asynchronous.client_session import AsyncClientSession

from tailrace.errors import ConfigError, ProjectionError, StoreUnavailable
from tailrace.projections.core.store import Partition
from tailrace.projections.mongo.client import (
    DURABLE,
    Client,
    Collections,
    Database,
    Document,
    kit_collection,
    prepare,
)
from tailrace.projections.mongo.collections import (
    GROUP,
    HORIZON,
    NEXT,
    OFFSETS,
    REBUILDS,
    Generation,
    offset_id,
    shadow_name,
    swapping,
)

NEWEST = {"_id": "newest"}


class Phase(StrEnum):
    """The phase of a rebuild."""

    BUILDING = "building"
    SWAPPING = "swapping"
    """The swap is decided: it can only be completed."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RebuildState:
    """The state of one rebuild.

    `collections` are the copied collections in the order of their renames, each with its UUID. A collection keeps its
    UUID when it is renamed, and has another one if it is dropped and re-created.
    """

    number: int
    phase: Phase
    projection: str
    collections: Mapping[str, UUID | None]

    @property
    def match(self) -> Document:
        """A filter that matches only this number in this phase."""
        return {**NEWEST, "number": self.number, "phase": self.phase.value}

    @property
    def copies(self) -> dict[str, UUID | None]:
        """The UUIDs of the shadow copies by their current names."""
        return {shadow_name(name, self.number): identity for name, identity in self.collections.items()}


_NONE = RebuildState(0, Phase.DONE, "", {})


async def read(database: Database) -> RebuildState:
    """Returns the state of the newest rebuild; a finished one if there was none."""
    return _from_document(await kit_collection(database, REBUILDS).find_one(NEWEST))


def _from_document(found: Document | None) -> RebuildState:
    if found is None:
        return _NONE
    listed = {each["name"]: each["identity"] for each in found["collections"]}
    return RebuildState(found["number"], Phase(found["phase"]), found["projection"], listed)


def _to_document(state: RebuildState) -> Document:
    listed = [{"name": name, "identity": identity} for name, identity in state.collections.items()]
    return {
        "number": state.number,
        "phase": state.phase.value,
        "projection": state.projection,
        "collections": listed,
    }


async def identities(database: Database, names: Iterable[str]) -> dict[str, UUID]:
    """Returns the UUIDs of those collections that exist."""
    listed = await database.list_collections(filter={"name": {"$in": list(names)}})
    return {each["name"]: each["info"]["uuid"] async for each in listed}


async def ensure_state(database: Database) -> None:
    """Inserts the document if missing, so that it can be locked."""
    await kit_collection(database, REBUILDS).update_one(NEWEST, {"$setOnInsert": _to_document(_NONE)}, upsert=True)


async def ensure_horizon(generation: Generation, group: str) -> None:
    """Inserts the horizon at the start: if it is missing later, the collection was renamed meanwhile."""
    first = {"$setOnInsert": {"before": DatetimeMS(0)}}
    await generation.kit(HORIZON).update_one({"_id": group}, first, upsert=True)


async def begin_rebuild(client: Client, database: Database, group: str, collections: Collections) -> Generation:
    """Continues an earlier, unfinished rebuild if all its collections still exist; otherwise starts a new one.

    `collections` are the collections to copy, in the order of their renames.
    """
    await _require_no_shards(client)
    await require_alone(database, group)
    state = await read(database)
    if state.phase is Phase.SWAPPING:
        raise swapping()
    if state.phase is Phase.BUILDING:
        same = state.projection == group and list(state.collections) == list(collections)
        if same and await identities(database, state.copies) == state.copies:
            return Generation(database, collections, state.number)
    new = RebuildState(state.number + 1, Phase.BUILDING, group, dict.fromkeys(collections))
    rebuilds = kit_collection(database, REBUILDS)
    # First: existing copies may belong to another rebuild that is about to swap.
    if not (await rebuilds.update_one(state.match, {"$set": _to_document(new)})).matched_count:
        raise _overtaken(group)
    generation = Generation(database, collections, new.number)
    await _drop_old_copies(database, {*state.collections, *collections}, new.number)
    await prepare(database, {shadow_name(name, new.number): indexes for name, indexes in collections.items()})
    await ensure_horizon(generation, group)
    made = await identities(database, new.copies)
    complete = replace(new, collections={name: made.get(shadow_name(name, new.number)) for name in collections})
    # A missing UUID means that someone has dropped the collection.
    ours = None not in complete.collections.values()
    if not ours or not (await rebuilds.update_one(new.match, {"$set": _to_document(complete)})).matched_count:
        for name in new.copies:
            await database.drop_collection(name)
        raise _overtaken(group)
    return generation


async def _drop_old_copies(database: Database, names: Iterable[str], number: int) -> None:
    """Drops the copies of rebuilds up to `number`: they can no longer be swapped in.

    `number` itself has copies only if someone has dropped the state document, so that the numbers start again.
    """
    for found in await database.list_collection_names():
        name, _, ending = found.rpartition(NEXT)
        if name in names and ending.isdecimal() and int(ending) <= number:
            await database.drop_collection(found)


def _overtaken(group: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"another process has started to rebuild {group} at the same time",
        remedy="Tailrace retries automatically. Run the command only once.",
    )


async def join(client: Client, generation: Generation, group: str, partition: Partition) -> None:
    """Inserts the document of a new partition; raises during a swap, or if the rebuild is finished."""
    rebuilds = kit_collection(generation.database, REBUILDS)

    async def enter(session: AsyncClientSession) -> None:
        # A write, so that it conflicts with the decision to swap.
        found = await rebuilds.find_one_and_update(NEWEST, {"$inc": {"joined": 1}}, session=session)
        state = _from_document(found)
        over = state.phase is not Phase.BUILDING or state.number != generation.number
        if state.phase is Phase.SWAPPING:
            raise swapping()
        if generation.number is not None and over:
            raise ProjectionError(
                f"the rebuild of {group} that this worker fills is over",
                why="Another process has swapped in its result, or has started another rebuild.",
                remedy="Run `tailrace project APP --rebuild` again if one is still needed.",
            )
        name = {"_id": offset_id(group, partition)}
        await generation.kit(OFFSETS).update_one(name, {"$setOnInsert": {"turns": 0}}, upsert=True, session=session)

    async with client.start_session() as session:
        await session.with_transaction(enter, write_concern=DURABLE)


async def require_alone(database: Database, group: str, session: AsyncClientSession | None = None) -> None:
    """Raises if another projection uses the database: the kit's collections are swapped as a whole."""
    other = await kit_collection(database, OFFSETS).find_one({GROUP: {"$ne": group}}, session=session)
    if other is not None:
        raise ConfigError(
            f"the database {database.name} also holds other projections: {other['_id']['consumer_group']}",
            why="The kit's collections are swapped as a whole.",
            remedy="Give each projection its own database.",
        )


async def _require_no_shards(client: Client) -> None:
    if (await client.admin.command("hello")).get("msg") == "isdbgrid":
        raise ConfigError(
            "a projection in a sharded cluster cannot be rebuilt",
            why="The swap renames collections, which is not possible for sharded ones.",
            remedy="Start a projection with another name and another database, let it catch up, and move readers.",
        )
