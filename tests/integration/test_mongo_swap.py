"""A projection in MongoDB that is made anew: killed between any two steps of the swap, and with workers that go on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bson.objectid import ObjectId
from pymongo import IndexModel

from tailrace import failpoints
from tailrace.errors import ConfigError, ProjectionError, Rejected, StoreUnavailable
from tailrace.projections.core.store import CatchUp, EntityState, Marker, Partition
from tailrace.projections.mongo import partition_lock, rebuilds, swap
from tailrace.projections.mongo.client import Database
from tailrace.projections.mongo.collections import HELD, Swapping
from tailrace.projections.mongo.rebuilds import RebuildState, read
from tailrace.projections.mongo.store import NOT_SWAPPED, SWAPPED, MongoStore
from tailrace.projections.mongo.swap import finish
from tailrace.projections.mongo.transaction import MongoTransaction
from tailrace.testkit.stack import MongoServer

FIRST = Partition("orders", 0)
SECOND = Partition("orders", 1)
PATIENCE = 60.0
COLLECTIONS = {"history": [], "totals": [IndexModel([("name", 1)], unique=True)]}
STEPS = len(COLLECTIONS) + len(SWAPPED)


class Killed(BaseException):
    """Nobody catches it: what would be done by a process that lives on is not done."""


class Scene:
    """A projection of the database `place`, made by hand: events are numbers, and each adds to its history."""

    def __init__(self, server: MongoServer) -> None:
        self.server = server
        self.place = f"test_{uuid.uuid4().hex[:12]}"

    def store(self, **options: Any) -> MongoStore:
        return MongoStore(self.server.uri, self.place, **{"collections": COLLECTIONS, **options})

    @asynccontextmanager
    async def opened(self, store: MongoStore | None = None) -> AsyncIterator[MongoStore]:
        store = store or self.store()
        await store.open(self.place)
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def both(self, events: int = 3) -> AsyncIterator[tuple[MongoStore, MongoStore, MongoStore]]:
        """One that is in its place, with a worker on it and wrong by now; what rebuilds it, and what that has made."""
        old = self.store()
        async with self.opened() as live, self.opened(old.shadow()) as new:
            for partition in (FIRST, SECOND):
                await up_to(live, partition, events)
                await up_to(new, partition, events)
            self.spoil()
            yield live, old, new

    def documents(self, name: str) -> list[dict[str, Any]]:
        with self.server.client() as client:
            return list(client[self.place][name].find())

    def spoil(self) -> None:
        """From here on one can tell what is in its place from what is made anew."""
        with self.server.client() as client:
            for name in COLLECTIONS:
                client[self.place][name].update_many({}, {"$set": {"wrong": True}})

    def is_held(self) -> bool:
        return any(HELD in each for each in self.documents("tailrace_offsets"))

    def history(self) -> dict[str, int]:
        return {each["_id"]: each["times"] for each in self.documents("history")}

    def is_old(self, name: str) -> bool:
        """Old or new, but never a mixture."""
        (wrong,) = {each.get("wrong", False) for each in self.documents(name)}
        return bool(wrong)

    def collections(self) -> set[str]:
        with self.server.client() as client:
            return set(client[self.place].list_collection_names())

    def require_new(self, events: int, second: int | None = None, *, number: int = 0) -> None:
        """In its place is what was made anew, each event once; nothing is there beside it but the rebuild `number`."""
        assert not self.is_old("history")
        assert self.history() == expected(events, events if second is None else second)
        assert [each["sum"] for each in self.documents("totals")] == [sum(self.history().values())]
        making = {f"{name}__next{number}" for name in (*COLLECTIONS, *SWAPPED)} if number else set()
        assert self.collections() == {*COLLECTIONS, *SWAPPED, *NOT_SWAPPED, *making}
        with self.server.client() as client:
            assert "name_1" in client[self.place].totals.index_information()


def expected(first: int, second: int) -> dict[str, int]:
    return {**{f"0-{n}": 1 for n in range(first)}, **{f"1-{n}": 1 for n in range(second)}}


async def apply(transaction: MongoTransaction, partition: Partition, behind: int, done: int = 0) -> None:
    """As the kit does: from the stored position on, which is never behind what was done; markers first."""
    start = await transaction.position() or 0
    assert start >= done
    ids = [f"{partition.number}-{offset}" for offset in range(start, behind)]
    new = await transaction.mark([Marker(each, "o", 1, 1_000) for each in ids])
    for each in sorted(new):
        await transaction.effects.collection("history").update_one({"_id": each}, {"$inc": {"times": 1}}, upsert=True)
        await transaction.effects.collection("totals").update_one(
            {"_id": "all"}, {"$inc": {"sum": 1}, "$set": {"name": "all"}}, upsert=True
        )
    await transaction.save_entities({f"o-{partition.number}": EntityState(behind, deleted=False)})
    if behind > start:
        await transaction.advance(behind)


async def up_to(store: MongoStore, partition: Partition, behind: int, done: int = 0) -> None:
    """Until it is done, as a worker would."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                async with store.transaction(partition) as transaction:
                    await apply(transaction, partition, behind, done)
            except Exception as error:
                if not store.is_transient(error):
                    raise
                await asyncio.sleep(0.01)
            else:
                return


async def level(positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
    """The new one is as far already."""
    return positions


async def too_slow(positions: Mapping[Partition, int]) -> None:
    return None


async def raised(doing: Awaitable[object]) -> BaseException:
    try:
        await doing
    except (Exception, Killed) as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Step 0 is the decision, the others are renames."""
    left = [step]

    def reached(name: str) -> None:
        if name in (swap.SWAP_DECIDED, swap.SWAP_RENAMED):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

    monkeypatch.setattr(failpoints, "reached", reached)


@pytest.fixture
def scene(mongo: MongoServer) -> Scene:
    return Scene(mongo)


class TestSwap:
    def test_a_running_worker_goes_on_with_what_was_made_anew(self, scene: Scene) -> None:
        async def further(positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
            """Behind the last event stands the end of its transaction, which the old one may have passed already."""
            assert positions == {FIRST: 3, SECOND: 3}
            return {**positions, SECOND: 4}

        async def scenario() -> None:
            async with scene.both() as (live, old, _):
                assert scene.is_old("history")
                assert scene.is_old("totals")
                assert await old.swap(scene.place, further)
                scene.require_new(3)
                # Told again, and then something new.
                await up_to(live, FIRST, 2)
                await up_to(live, FIRST, 5)
                scene.require_new(5, 3)
                assert await live.positions() == {FIRST: 5, SECOND: 4}

        asyncio.run(scenario())

    def test_partitions_that_are_always_busy_are_held_up_and_nothing_is_lost(self, scene: Scene) -> None:
        """No transaction gets all partitions at once if each is taken again as soon as it is free."""

        async def scenario() -> None:
            async with scene.both() as (live, old, new):
                applied = {FIRST: 3, SECOND: 3}
                stop = asyncio.Event()

                async def busy(partition: Partition) -> None:
                    while not stop.is_set():
                        await up_to(live, partition, applied[partition] + 1, applied[partition])
                        applied[partition] += 1

                async def catch_up(positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
                    for partition, offset in positions.items():
                        await up_to(new, partition, offset)
                    return positions

                async def insistent(old: MongoStore, catch_up: CatchUp) -> None:
                    """As the rebuild does: blocks that take long are no reason to give up."""
                    while True:
                        try:
                            assert await old.swap(scene.place, catch_up)
                        except StoreUnavailable:
                            continue
                        return

                async with asyncio.TaskGroup() as group:
                    for partition in applied:
                        group.create_task(busy(partition))
                    while min(applied.values()) < 6:
                        await asyncio.sleep(0.01)
                    await asyncio.wait_for(insistent(old, catch_up), PATIENCE)
                    then = dict(applied)
                    async with asyncio.timeout(PATIENCE):
                        while any(applied[partition] < then[partition] + 3 for partition in applied):
                            await asyncio.sleep(0.01)
                    stop.set()
                scene.require_new(applied[FIRST], applied[SECOND])

        asyncio.run(scenario())

    def test_without_an_old_one(self, scene: Scene) -> None:
        async def scenario() -> None:
            old = scene.store()
            async with scene.opened(old.shadow()) as new:
                await up_to(new, FIRST, 2)
                assert await old.swap(scene.place, level)
            async with scene.opened() as store:
                assert await store.positions() == {FIRST: 2}
                await up_to(store, SECOND, 1)

        asyncio.run(scenario())
        assert scene.history() == expected(2, 1)

    def test_one_that_does_not_catch_up_changes_nothing(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario() -> None:
            async with scene.both() as (live, old, _):
                assert not await old.swap(scene.place, too_slow)
                assert not scene.is_held()
                await up_to(live, FIRST, 4)
                assert scene.is_old("totals")
                # Killed where it was to be held up, it lets go after a while.
                monkeypatch.setattr(partition_lock, "HELD_SECONDS", 0.3)
                with scene.server.client() as client:
                    client[scene.place].tailrace_offsets.update_many({}, {"$set": {HELD: ObjectId()}})
                await up_to(live, FIRST, 5)
                assert await old.swap(scene.place, level), "another mark takes the place of the one left behind"

        asyncio.run(scenario())


class TestKilled:
    def test_at_each_step_of_the_swap(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever comes next finishes it. One rebuild follows the other here, each killed a step later."""

        async def scenario(live: MongoStore, step: int) -> None:
            done = 3 + step
            old = scene.store()
            async with scene.opened(old.shadow()) as new:
                for partition in (FIRST, SECOND):
                    await up_to(live, partition, done)
                    await up_to(new, partition, done)
                scene.spoil()
                with monkeypatch.context() as patched:
                    kill_at(patched, step)
                    assert isinstance(await raised(old.swap(scene.place, level)), Killed)
            assert [scene.is_old(name) for name in COLLECTIONS] == [step < 1, step < 2]
            if step % 3 == 0:
                await up_to(live, FIRST, done + 1)
            elif step % 3 == 1:
                async with scene.opened() as starting:
                    await up_to(starting, FIRST, done + 1)
            else:
                async with scene.opened(scene.store().shadow()) as again:
                    assert await again.positions() == {}, "another one, from the start"
            for partition in (FIRST, SECOND):
                await up_to(live, partition, done + 1)
            scene.require_new(done + 1, number=step + 2 if step % 3 == 2 else 0)

        async def one_after_the_other() -> None:
            async with scene.opened() as live:
                for step in range(STEPS + 1):
                    await scenario(live, step)

        asyncio.run(one_after_the_other())

    def test_what_was_to_be_put_in_place_is_dropped_by_somebody(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(swap, "RENAME_SECONDS", 0.3)

        async def scenario() -> None:
            async with scene.both() as (_, old, _):
                with monkeypatch.context() as patched:
                    kill_at(patched, 1)
                    assert isinstance(await raised(old.swap(scene.place, level)), Killed)
            with scene.server.client() as client:
                client[scene.place].drop_collection("totals__next1")
                error = await raised(scene.store().open(scene.place))
                assert isinstance(error, ProjectionError)
                assert "Drop the collection tailrace_rebuilds" in error.remedy
                client[scene.place].drop_collection("tailrace_rebuilds")
            again = scene.store()
            async with scene.opened(again.shadow()) as new:
                for partition in (FIRST, SECOND):
                    await up_to(new, partition, 3)
                assert await again.swap(scene.place, level)

        asyncio.run(scenario())
        scene.require_new(3)

    def test_while_it_is_filled_it_goes_on_and_begins_anew_if_a_part_is_dropped(self, scene: Scene) -> None:
        async def scenario() -> None:
            async with scene.opened(scene.store().shadow()) as new:
                await up_to(new, FIRST, 2)
            async with scene.opened(scene.store().shadow()) as new:
                assert await new.positions() == {FIRST: 2}
            with scene.server.client() as client:
                client[scene.place].drop_collection("history__next1")
            async with scene.opened(scene.store().shadow()) as new:
                assert await new.positions() == {}
                assert {name for name in scene.collections() if "__next" in name} == {
                    f"{name}__next2" for name in (*COLLECTIONS, *SWAPPED)
                }

        asyncio.run(scenario())


class TestSomebodyElse:
    def test_several_finish_it_at_once(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario() -> None:
            async with scene.both() as (live, old, _):
                with monkeypatch.context() as patched:
                    kill_at(patched, 0)
                    assert isinstance(await raised(old.swap(scene.place, level)), Killed)
                others = [up_to(live, partition, 4) for partition in (FIRST, SECOND, FIRST)]
                await asyncio.gather(*others, *(finish(live._opened.database) for _ in range(4)))

        asyncio.run(scenario())
        scene.require_new(4)

    def test_one_that_comes_late_renames_nothing_of_the_next_rebuild(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario() -> None:
            async with scene.both() as (live, old, _):
                with monkeypatch.context() as patched:
                    kill_at(patched, 0)
                    assert isinstance(await raised(old.swap(scene.place, level)), Killed)
                database = live._opened.database
                late = await read(database)
                await finish(database)
                async with scene.opened(scene.store().shadow()):
                    for name in late.collections:
                        await swap._rename(database, late, name)
                    scene_history = scene.history()
            assert scene_history == expected(3, 3), "not the empty one"

        asyncio.run(scenario())

    @pytest.mark.parametrize("what", ["goes on", "joins"])
    def test_who_goes_on_while_it_is_held_up_prevents_the_swap(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        monkeypatch.setattr(partition_lock, "HELD_SECONDS", 0.2)
        added = Partition("orders", 2)

        async def scenario() -> None:
            async with scene.both() as (live, old, _):

                async def meanwhile(positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
                    async with live.transaction(added if what == "joins" else FIRST) as transaction:
                        await transaction.position()
                        await transaction.advance(9)
                    return positions

                error = await raised(old.swap(scene.place, meanwhile))
                assert isinstance(error, StoreUnavailable)
                assert "made progress" in error.what
                assert scene.is_old("history")
                assert (await live.positions())[added if what == "joins" else FIRST] == 9

        asyncio.run(scenario())

    def test_a_rebuild_that_was_overtaken_can_neither_swap_nor_write(self, scene: Scene) -> None:
        async def once(store: MongoStore) -> None:
            async with store.transaction(FIRST) as transaction:
                await apply(transaction, FIRST, 4)

        async def scenario() -> None:
            async with scene.both() as (_, old, new):
                with scene.server.client() as client:
                    client[scene.place].drop_collection("totals__next1")
                async with scene.opened(scene.store().shadow()):
                    assert isinstance(await raised(old.swap(scene.place, level)), ProjectionError)
                    # Its offsets are gone with the rest: it would make them again, from the start.
                    assert isinstance(await raised(once(new)), ProjectionError)
                    assert not {name for name in scene.collections() if name.endswith("__next1")}

        asyncio.run(scenario())

    @pytest.mark.parametrize("step", range(STEPS + 1))
    def test_what_was_made_takes_no_event_of_its_rebuild_once_the_swap_is_decided(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        """A rebalance of its group, or a second rebuild, gives its partitions to somebody after they were closed."""
        added = Partition("orders", 2)

        async def once(store: MongoStore, partition: Partition) -> None:
            async with store.transaction(partition) as transaction:
                await apply(transaction, partition, 5)

        async def scenario() -> None:
            async with scene.both() as (live, old, new):
                with monkeypatch.context() as patched:
                    kill_at(patched, step)
                    assert isinstance(await raised(old.swap(scene.place, level)), Killed)
                errors = [await raised(once(new, partition)) for partition in (FIRST, added, SECOND)]
                assert all(isinstance(error, Swapping | ProjectionError) for error in errors), errors
                assert not new.is_transient(errors[-1]), "it is over: nobody must try again for ever"
                for partition in (FIRST, SECOND):
                    await up_to(live, partition, 5, 3)

        asyncio.run(scenario())
        scene.require_new(5)

    def test_one_that_begins_anew_takes_nothing_from_one_that_is_decided(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has looked before the decision, and comes to act behind it."""
        monkeypatch.setattr(swap, "RENAME_SECONDS", 0.3)

        async def scenario() -> None:
            async with scene.both() as (live, old, _):

                async def looked_before(database: Database) -> RebuildState:
                    seen = await read(database)
                    with monkeypatch.context() as patched:
                        kill_at(patched, 0)
                        assert isinstance(await raised(old.swap(scene.place, level)), Killed)
                    return seen

                other = scene.store(collections={**COLLECTIONS, "more": []}).shadow()
                with monkeypatch.context() as patched:
                    patched.setattr(rebuilds, "read", looked_before)
                    error = await raised(other.open(scene.place))
                assert isinstance(error, StoreUnavailable)
                assert "at the same moment" in error.what
                await up_to(live, FIRST, 4)

        asyncio.run(scenario())
        scene.require_new(4, 3)

    @pytest.mark.parametrize("behind", ["prepare", "identities"])
    def test_one_that_is_overtaken_while_it_begins_leaves_the_field(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, behind: str
    ) -> None:
        """Its collections are made, or their identities known, when another one comes."""
        done = getattr(rebuilds, behind)
        winner = scene.store().shadow()

        async def overtaken(*arguments: Any) -> Any:
            answer = await done(*arguments)
            monkeypatch.setattr(rebuilds, behind, done)
            await winner.open(scene.place)
            return answer

        async def scenario() -> None:
            monkeypatch.setattr(rebuilds, behind, overtaken)
            error = await raised(scene.store().shadow().open(scene.place))
            try:
                assert isinstance(error, StoreUnavailable)
                assert "Run the command once" in error.remedy
                await up_to(winner, FIRST, 2)
                assert {name for name in scene.collections() if "__next" in name} == {
                    f"{name}__next2" for name in (*COLLECTIONS, *SWAPPED)
                }
            finally:
                await winner.close()
            async with scene.opened(scene.store().shadow()) as again:
                assert await again.positions() == {FIRST: 2}, "it looks again, and goes on with the other one's"

        asyncio.run(scenario())

    def test_what_one_that_was_killed_has_left_is_removed_by_the_next(self, scene: Scene) -> None:
        async def scenario() -> None:
            async with scene.opened(scene.store().shadow()):
                pass
            with scene.server.client() as client:
                # Killed between the account of the second and the removal of the first.
                state = client[scene.place].tailrace_rebuilds
                state.update_one({}, {"$set": {"number": 2, "collections.$[].identity": None}})
                client[scene.place].create_collection("mine__next1")
            async with scene.opened(scene.store().shadow()):
                assert {name for name in scene.collections() if "__next" in name} == {
                    *(f"{name}__next3" for name in (*COLLECTIONS, *SWAPPED)),
                    "mine__next1",
                }, "but nothing of anybody else"

        asyncio.run(scenario())

    def test_another_projection_in_the_database(self, scene: Scene) -> None:
        async def scenario() -> None:
            async with scene.both() as (_, old, _):
                other = scene.store()
                await other.open("other")
                await up_to(other, FIRST, 1)
                await other.close()
                assert "other" in str(await raised(old.swap(scene.place, level)))
                assert isinstance(await raised(scene.store().shadow().open(scene.place)), ConfigError)

        asyncio.run(scenario())
        assert not scene.is_held()

    def test_pruning_and_resets_do_not_get_lost_in_the_swap(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario() -> None:
            async with scene.both() as (live, old, _):
                await live.prune(500, 10)
                with monkeypatch.context() as patched:
                    kill_at(patched, 0)
                    assert isinstance(await raised(old.swap(scene.place, level)), Killed)
                with pytest.raises(Swapping):
                    await live.prune(2_000, 10)
                with pytest.raises(Swapping):
                    await live.reset({FIRST: 0})
                await finish(live._opened.database)
                assert await live.horizon() == 500, "who prunes by it may find the new markers"
                assert await live.prune(2_000, 100) == 6
                await live.reset({FIRST: 0})
                assert (await live.positions())[FIRST] == 0

        asyncio.run(scenario())


class TestHandlers:
    def test_nothing_is_declared(self) -> None:
        with pytest.raises(ConfigError, match="are declared"):
            MongoStore("mongodb://localhost", "shop").shadow()

    def test_what_is_not_declared_is_read_as_it_is_and_not_written(self, scene: Scene) -> None:
        async def careless(new: MongoStore) -> None:
            async with new.transaction(FIRST) as transaction:
                await transaction.position()
                countries = transaction.effects.collection("countries")
                with pytest.raises(ConfigError, match="countries"):
                    transaction.effects.upsert("countries", {"_id": "CH"}, {"name": ""})
                with pytest.raises(ConfigError, match="countries"):
                    await countries.update_one({}, {"$set": {"name": ""}})

        async def scenario() -> None:
            with scene.server.client() as client:
                client[scene.place].countries.insert_one({"_id": "CH", "name": "Switzerland"})
            async with scene.opened(scene.store().shadow()) as new:
                async with new.transaction(FIRST) as transaction:
                    await transaction.position()
                    assert await transaction.effects.collection("countries").find_one({"_id": "CH"})

                error = await raised(careless(new))
                assert isinstance(error, Rejected)
                assert "ignored an error" in str(error)

        asyncio.run(scenario())
        assert scene.documents("countries") == [{"_id": "CH", "name": "Switzerland"}]

    def test_stages_that_name_a_collection_see_the_one_that_is_made_anew(self, scene: Scene) -> None:
        lookup = {"from": "totals", "localField": "total", "foreignField": "_id", "as": "found"}
        graph = {"from": "totals", "startWith": "all", "connectFromField": "x", "connectToField": "_id", "as": "more"}
        nested = {"from": "history", "pipeline": [{"$lookup": lookup}], "as": "nested"}
        stages = [{"$lookup": lookup}, {"$facet": {"all": [{"$lookup": nested}, {"$graphLookup": graph}]}}]

        async def scenario() -> None:
            async with scene.both(events=1) as (_, _, new), new.transaction(FIRST) as transaction:
                effects = transaction.effects
                await transaction.position()
                effects.upsert("history", {"_id": "0-0"}, {"total": "all"})
                (facets,) = await effects.collection("history").aggregate(stages)
                one = next(each for each in facets["all"] if each["_id"] == "0-0")
                other = next(each for each in one["nested"] if each["_id"] == "0-0")
                assert one["found"] == one["more"] == other["found"] == [{"_id": "all", "name": "all", "sum": 2}]

        asyncio.run(scenario())
