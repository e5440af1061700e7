"""The swap of a rebuilt projection in MongoDB: with running workers, and killed at each step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from bson.objectid import ObjectId

from helpers.mongo_rebuild import (
    COLLECTIONS,
    FIRST,
    PATIENCE,
    SECOND,
    STEPS,
    Killed,
    RebuildSetup,
    caught_up,
    expected,
    kill_at,
    raised,
    too_slow,
    up_to,
)
from tailrace.errors import ConfigError, ProjectionError, Rejected, StoreUnavailable
from tailrace.projections.core.store import CatchUp, Partition
from tailrace.projections.mongo import partition_lock, swap
from tailrace.projections.mongo.collections import HELD
from tailrace.projections.mongo.store import SWAPPED, MongoStore
from tailrace.testkit.stack import MongoServer


@pytest.fixture
def rebuild(mongo: MongoServer) -> RebuildSetup:
    return RebuildSetup(mongo)


class TestSwap:
    def test_a_running_worker_continues_with_the_copy(self, rebuild: RebuildSetup) -> None:
        async def further(positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
            """Its transaction marker follows the last event; the copy may have read it already."""
            assert positions == {FIRST: 3, SECOND: 3}
            return {**positions, SECOND: 4}

        async def scenario() -> None:
            async with rebuild.both() as (live, old, _):
                assert rebuild.is_old("history")
                assert rebuild.is_old("totals")
                assert await old.swap(rebuild.name, further)
                rebuild.require_new(3)
                # Events that arrive again, then new ones.
                await up_to(live, FIRST, 2)
                await up_to(live, FIRST, 5)
                rebuild.require_new(5, 3)
                assert await live.positions() == {FIRST: 5, SECOND: 4}

        asyncio.run(scenario())

    def test_busy_partitions_are_blocked_and_nothing_is_lost(self, rebuild: RebuildSetup) -> None:
        """No transaction gets all partitions at once if each is taken again as soon as it is free."""

        async def scenario() -> None:
            async with rebuild.both() as (live, old, new):
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
                    """Retries the swap, as the rebuild does."""
                    while True:
                        try:
                            assert await old.swap(rebuild.name, catch_up)
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
                rebuild.require_new(applied[FIRST], applied[SECOND])

        asyncio.run(scenario())

    def test_a_rebuild_without_an_old_projection(self, rebuild: RebuildSetup) -> None:
        async def scenario() -> None:
            old = rebuild.store()
            async with rebuild.opened(old.shadow()) as new:
                await up_to(new, FIRST, 2)
                assert await old.swap(rebuild.name, caught_up)
            async with rebuild.opened() as store:
                assert await store.positions() == {FIRST: 2}
                await up_to(store, SECOND, 1)

        asyncio.run(scenario())
        assert rebuild.history() == expected(2, 1)

    def test_a_copy_that_does_not_catch_up_changes_nothing(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario() -> None:
            async with rebuild.both() as (live, old, _):
                assert not await old.swap(rebuild.name, too_slow)
                assert not rebuild.is_held()
                await up_to(live, FIRST, 4)
                assert rebuild.is_old("totals")
                # The mark of a killed rebuild is removed after a while.
                monkeypatch.setattr(partition_lock, "HELD_SECONDS", 0.3)
                with rebuild.server.client() as client:
                    client[rebuild.name].tailrace_offsets.update_many({}, {"$set": {HELD: ObjectId()}})
                await up_to(live, FIRST, 5)
                assert await old.swap(rebuild.name, caught_up), "its mark replaces the one that was left"

        asyncio.run(scenario())


class TestKilled:
    def test_killed_at_each_step_of_the_swap(self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next process completes the swap. Each rebuild here is killed one step later than the one before."""

        async def scenario(live: MongoStore, step: int) -> None:
            done = 3 + step
            old = rebuild.store()
            async with rebuild.opened(old.shadow()) as new:
                for partition in (FIRST, SECOND):
                    await up_to(live, partition, done)
                    await up_to(new, partition, done)
                rebuild.spoil()
                with monkeypatch.context() as patched:
                    kill_at(patched, step)
                    assert isinstance(await raised(old.swap(rebuild.name, caught_up)), Killed)
            assert [rebuild.is_old(name) for name in COLLECTIONS] == [step < 1, step < 2]
            if step % 3 == 0:
                await up_to(live, FIRST, done + 1)
            elif step % 3 == 1:
                async with rebuild.opened() as starting:
                    await up_to(starting, FIRST, done + 1)
            else:
                async with rebuild.opened(rebuild.store().shadow()) as again:
                    assert await again.positions() == {}, "a new rebuild, from the beginning"
            for partition in (FIRST, SECOND):
                await up_to(live, partition, done + 1)
            rebuild.require_new(done + 1, number=step + 2 if step % 3 == 2 else 0)

        async def one_after_the_other() -> None:
            async with rebuild.opened() as live:
                for step in range(STEPS + 1):
                    await scenario(live, step)

        asyncio.run(one_after_the_other())

    def test_a_copy_that_is_dropped_after_the_decision_is_reported(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(swap, "RENAME_SECONDS", 0.3)

        async def scenario() -> None:
            async with rebuild.both() as (_, old, _):
                with monkeypatch.context() as patched:
                    kill_at(patched, 1)
                    assert isinstance(await raised(old.swap(rebuild.name, caught_up)), Killed)
            with rebuild.server.client() as client:
                client[rebuild.name].drop_collection("totals__next1")
                error = await raised(rebuild.store().open(rebuild.name))
                assert isinstance(error, ProjectionError)
                assert "Drop the collection tailrace_rebuilds" in error.remedy
                client[rebuild.name].drop_collection("tailrace_rebuilds")
            again = rebuild.store()
            async with rebuild.opened(again.shadow()) as new:
                for partition in (FIRST, SECOND):
                    await up_to(new, partition, 3)
                assert await again.swap(rebuild.name, caught_up)

        asyncio.run(scenario())
        rebuild.require_new(3)

    def test_a_killed_rebuild_continues_and_restarts_if_a_copy_is_dropped(self, rebuild: RebuildSetup) -> None:
        async def scenario() -> None:
            async with rebuild.opened(rebuild.store().shadow()) as new:
                await up_to(new, FIRST, 2)
            async with rebuild.opened(rebuild.store().shadow()) as new:
                assert await new.positions() == {FIRST: 2}
            with rebuild.server.client() as client:
                client[rebuild.name].drop_collection("history__next1")
            async with rebuild.opened(rebuild.store().shadow()) as new:
                assert await new.positions() == {}
                assert {name for name in rebuild.collections() if "__next" in name} == {
                    f"{name}__next2" for name in (*COLLECTIONS, *SWAPPED)
                }

        asyncio.run(scenario())


class TestHandlers:
    def test_a_store_without_declared_collections_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="are declared"):
            MongoStore("mongodb://localhost", "shop").shadow()

    def test_undeclared_collections_are_read_and_not_written(self, rebuild: RebuildSetup) -> None:
        async def careless(new: MongoStore) -> None:
            async with new.transaction(FIRST) as transaction:
                await transaction.position()
                countries = transaction.effects.collection("countries")
                with pytest.raises(ConfigError, match="countries"):
                    transaction.effects.upsert("countries", {"_id": "CH"}, {"name": ""})
                with pytest.raises(ConfigError, match="countries"):
                    await countries.update_one({}, {"$set": {"name": ""}})

        async def scenario() -> None:
            with rebuild.server.client() as client:
                client[rebuild.name].countries.insert_one({"_id": "CH", "name": "Switzerland"})
            async with rebuild.opened(rebuild.store().shadow()) as new:
                async with new.transaction(FIRST) as transaction:
                    await transaction.position()
                    assert await transaction.effects.collection("countries").find_one({"_id": "CH"})

                error = await raised(careless(new))
                assert isinstance(error, Rejected)
                assert "ignored an error" in str(error)

        asyncio.run(scenario())
        assert rebuild.documents("countries") == [{"_id": "CH", "name": "Switzerland"}]

    def test_stages_that_name_a_collection_read_the_copy(self, rebuild: RebuildSetup) -> None:
        lookup = {"from": "totals", "localField": "total", "foreignField": "_id", "as": "found"}
        graph = {"from": "totals", "startWith": "all", "connectFromField": "x", "connectToField": "_id", "as": "more"}
        nested = {"from": "history", "pipeline": [{"$lookup": lookup}], "as": "nested"}
        stages = [{"$lookup": lookup}, {"$facet": {"all": [{"$lookup": nested}, {"$graphLookup": graph}]}}]

        async def scenario() -> None:
            async with rebuild.both(events=1) as (_, _, new), new.transaction(FIRST) as transaction:
                effects = transaction.effects
                await transaction.position()
                effects.upsert("history", {"_id": "0-0"}, {"total": "all"})
                (facets,) = await effects.collection("history").aggregate(stages)
                one = next(each for each in facets["all"] if each["_id"] == "0-0")
                other = next(each for each in one["nested"] if each["_id"] == "0-0")
                assert one["found"] == one["more"] == other["found"] == [{"_id": "all", "name": "all", "sum": 2}]

        asyncio.run(scenario())
