"""The account of rebuilds in a database: which number the newest has, and how far it is. One document.

The collections of the kit are renamed as a whole, so a database has one rebuild at a time, and only one projection. The
account is also what a partition without a document of its own locks when it gets one (`join`): the decision to swap
locks it too, so none comes in between, and whoever goes on with a rebuild that is over is turned away.
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
from tailrace.projections.mongo.client import DURABLE, Client, Collections, Database, Document, own, prepare
from tailrace.projections.mongo.generations import NEXT, Generation, shadow_name
from tailrace.projections.mongo.offsets import GROUP, OFFSETS, offset_id, swapping
from tailrace.projections.mongo.transaction import HORIZON

REBUILDS = "tailrace_rebuilds"
NEWEST = {"_id": "newest"}


class Phase(StrEnum):
    """How far it is."""

    BUILDING = "building"
    SWAPPING = "swapping"
    """Decided: what is left of it can only be finished."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RebuildState:
    """`collections` are those it makes anew, in the order in which they are renamed, each with its identity.

    A collection keeps its identity when it is renamed, and has another one if it is dropped and made again.
    """

    number: int
    phase: Phase
    projection: str
    collections: Mapping[str, UUID | None]

    @property
    def as_seen(self) -> Document:
        """A filter: still the same, and as far."""
        return {**NEWEST, "number": self.number, "phase": self.phase.value}

    @property
    def made(self) -> dict[str, UUID | None]:
        """What it makes, by the names they have meanwhile."""
        return {shadow_name(name, self.number): identity for name, identity in self.collections.items()}


_NONE = RebuildState(0, Phase.DONE, "", {})


async def read(database: Database) -> RebuildState:
    """The newest rebuild's; that of one which is done, if there was none."""
    return _account(await own(database, REBUILDS).find_one(NEWEST))


def _account(found: Document | None) -> RebuildState:
    if found is None:
        return _NONE
    listed = {each["name"]: each["identity"] for each in found["collections"]}
    return RebuildState(found["number"], Phase(found["phase"]), found["projection"], listed)


def _written(account: RebuildState) -> Document:
    listed = [{"name": name, "identity": identity} for name, identity in account.collections.items()]
    return {
        "number": account.number,
        "phase": account.phase.value,
        "projection": account.projection,
        "collections": listed,
    }


async def identities(database: Database, names: Iterable[str]) -> dict[str, UUID]:
    """Of those collections that are there."""
    listed = await database.list_collections(filter={"name": {"$in": list(names)}})
    return {each["name"]: each["info"]["uuid"] async for each in listed}


async def ensure_account(database: Database) -> None:
    """Whoever wants to lock it finds it."""
    await own(database, REBUILDS).update_one(NEWEST, {"$setOnInsert": _written(_NONE)}, upsert=True)


async def ensure_horizon(generation: Generation, group: str) -> None:
    """From the beginning: whoever finds none later is looking for it in a collection that was renamed."""
    first = {"$setOnInsert": {"before": DatetimeMS(0)}}
    await generation.own(HORIZON).update_one({"_id": group}, first, upsert=True)


async def begin_rebuild(client: Client, database: Database, group: str, collections: Collections) -> Generation:
    """What an earlier try has made, if all of it is still there; otherwise a new one, empty.

    `collections` are to be made, in the order in which they will be renamed.
    """
    await _require_no_shards(client)
    await require_alone(database, group)
    account = await read(database)
    if account.phase is Phase.SWAPPING:
        raise swapping()
    if account.phase is Phase.BUILDING:
        same = account.projection == group and list(account.collections) == list(collections)
        if same and await identities(database, account.made) == account.made:
            return Generation(database, collections, account.number)
    new = RebuildState(account.number + 1, Phase.BUILDING, group, dict.fromkeys(collections))
    rebuilds = own(database, REBUILDS)
    # First of all: what is there may be another one's, which is about to put it in its place.
    if not (await rebuilds.update_one(account.as_seen, {"$set": _written(new)})).matched_count:
        raise _overtaken(group)
    generation = Generation(database, collections, new.number)
    await _drop_leavings(database, {*account.collections, *collections}, new.number)
    await prepare(database, {shadow_name(name, new.number): indexes for name, indexes in collections.items()})
    await ensure_horizon(generation, group)
    made = await identities(database, new.made)
    whole = replace(new, collections={name: made.get(shadow_name(name, new.number)) for name in collections})
    # Without an identity: somebody has dropped it again.
    ours = None not in whole.collections.values()
    if not ours or not (await rebuilds.update_one(new.as_seen, {"$set": _written(whole)})).matched_count:
        for name in new.made:
            await database.drop_collection(name)
        raise _overtaken(group)
    return generation


async def _drop_leavings(database: Database, names: Iterable[str], number: int) -> None:
    """What rebuilds up to `number` have made of these: nobody else can put it in its place any more.

    Of `number` itself there is nothing, unless somebody has dropped the account and the numbers begin again.
    """
    for found in await database.list_collection_names():
        name, _, ending = found.rpartition(NEXT)
        if name in names and ending.isdecimal() and int(ending) <= number:
            await database.drop_collection(found)


def _overtaken(group: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"somebody else has begun to rebuild {group} at the same moment",
        remedy="Tailrace looks again by itself. Run the command once.",
    )


async def join(client: Client, generation: Generation, group: str, partition: Partition) -> None:
    """Makes the document of a partition that has none; raises if this is not the time or the place for it."""
    rebuilds = own(generation.database, REBUILDS)

    async def enter(session: AsyncClientSession) -> None:
        # A write, so that it is a conflict with the decision to swap.
        found = await rebuilds.find_one_and_update(NEWEST, {"$inc": {"joined": 1}}, session=session)
        account = _account(found)
        over = account.phase is not Phase.BUILDING or account.number != generation.number
        if account.phase is Phase.SWAPPING:
            raise swapping()
        if generation.number is not None and over:
            raise ProjectionError(
                f"the rebuild of {group} that this worker fills is over",
                why="Another process has put its result in place, or has begun another rebuild.",
                remedy="Run `tailrace project APP --rebuild` again if one is still needed.",
            )
        name = {"_id": offset_id(group, partition)}
        await generation.own(OFFSETS).update_one(name, {"$setOnInsert": {"turns": 0}}, upsert=True, session=session)

    async with client.start_session() as session:
        await session.with_transaction(enter, write_concern=DURABLE)


async def require_alone(database: Database, group: str, session: AsyncClientSession | None = None) -> None:
    """The kit's collections are swapped as a whole: no other projection may have anything in them."""
    other = await own(database, OFFSETS).find_one({GROUP: {"$ne": group}}, session=session)
    if other is not None:
        raise ConfigError(
            f"the database {database.name} holds other projections, too: {other['_id']['consumer_group']}",
            why="What the kit keeps there is swapped as a whole.",
            remedy="Give each projection a database of its own.",
        )


async def _require_no_shards(client: Client) -> None:
    if (await client.admin.command("hello")).get("msg") == "isdbgrid":
        raise ConfigError(
            "a projection in a sharded cluster cannot be made anew beside itself",
            why="Its collections are put in their place by renaming, which is not for sharded ones.",
            remedy="Do it by hand: give it another name and another database, let it catch up, and move readers.",
        )
