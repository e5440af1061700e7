"""Several rebuilds, workers and operators during the swap of a rebuilt projection in MongoDB."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from helpers.mongo_rebuild import (
    COLLECTIONS,
    FIRST,
    SECOND,
    STEPS,
    Killed,
    RebuildSetup,
    apply,
    caught_up,
    expected,
    kill_at,
    raised,
    up_to,
)
from tailrace.errors import ConfigError, ProjectionError, StoreUnavailable
from tailrace.projections.core.store import Partition
from tailrace.projections.mongo import partition_lock, rebuilds, swap
from tailrace.projections.mongo.client import Database
from tailrace.projections.mongo.collections import Swapping
from tailrace.projections.mongo.rebuilds import RebuildState, read
from tailrace.projections.mongo.store import SWAPPED, MongoStore
from tailrace.projections.mongo.swap import finish
from tailrace.testkit.stack import MongoServer


@pytest.fixture
def rebuild(mongo: MongoServer) -> RebuildSetup:
    return RebuildSetup(mongo)


class TestConcurrency:
    def test_several_processes_complete_the_swap_together(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario() -> None:
            async with rebuild.both() as (live, old, _):
                with monkeypatch.context() as patched:
                    kill_at(patched, 0)
                    assert isinstance(await raised(old.swap(rebuild.name, caught_up)), Killed)
                others = [up_to(live, partition, 4) for partition in (FIRST, SECOND, FIRST)]
                await asyncio.gather(*others, *(finish(live._opened.database) for _ in range(4)))

        asyncio.run(scenario())
        rebuild.require_new(4)

    def test_a_late_rename_does_not_touch_the_next_rebuild(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario() -> None:
            async with rebuild.both() as (live, old, _):
                with monkeypatch.context() as patched:
                    kill_at(patched, 0)
                    assert isinstance(await raised(old.swap(rebuild.name, caught_up)), Killed)
                database = live._opened.database
                late = await read(database)
                await finish(database)
                async with rebuild.opened(rebuild.store().shadow()):
                    for name in late.collections:
                        await swap._rename(database, late, name)
                    history = rebuild.history()
            assert history == expected(3, 3), "not the empty copy of the next rebuild"

        asyncio.run(scenario())

    @pytest.mark.parametrize("what", ["goes on", "joins"])
    def test_progress_while_blocked_prevents_the_swap(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        monkeypatch.setattr(partition_lock, "HELD_SECONDS", 0.2)
        added = Partition("orders", 2)

        async def scenario() -> None:
            async with rebuild.both() as (live, old, _):

                async def progress(positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
                    async with live.transaction(added if what == "joins" else FIRST) as transaction:
                        await transaction.position()
                        await transaction.advance(9)
                    return positions

                error = await raised(old.swap(rebuild.name, progress))
                assert isinstance(error, StoreUnavailable)
                assert "made progress" in error.what
                assert rebuild.is_old("history")
                assert (await live.positions())[added if what == "joins" else FIRST] == 9

        asyncio.run(scenario())

    def test_a_superseded_rebuild_can_neither_swap_nor_write(self, rebuild: RebuildSetup) -> None:
        async def once(store: MongoStore) -> None:
            async with store.transaction(FIRST) as transaction:
                await apply(transaction, FIRST, 4)

        async def scenario() -> None:
            async with rebuild.both() as (_, old, new):
                with rebuild.server.client() as client:
                    client[rebuild.name].drop_collection("totals__next1")
                async with rebuild.opened(rebuild.store().shadow()):
                    assert isinstance(await raised(old.swap(rebuild.name, caught_up)), ProjectionError)
                    # Its offsets are gone, too: it would create them again, from the beginning.
                    assert isinstance(await raised(once(new)), ProjectionError)
                    assert not {name for name in rebuild.collections() if name.endswith("__next1")}

        asyncio.run(scenario())

    @pytest.mark.parametrize("step", range(STEPS + 1))
    def test_workers_of_the_rebuild_apply_nothing_after_the_decision(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        """A rebalance, or a second rebuild, assigns its partitions to another worker after they were sealed."""
        added = Partition("orders", 2)

        async def once(store: MongoStore, partition: Partition) -> None:
            async with store.transaction(partition) as transaction:
                await apply(transaction, partition, 5)

        async def scenario() -> None:
            async with rebuild.both() as (live, old, new):
                with monkeypatch.context() as patched:
                    kill_at(patched, step)
                    assert isinstance(await raised(old.swap(rebuild.name, caught_up)), Killed)
                errors = [await raised(once(new, partition)) for partition in (FIRST, added, SECOND)]
                assert all(isinstance(error, Swapping | ProjectionError) for error in errors), errors
                assert not new.is_transient(errors[-1]), "the rebuild is over: a retry can never succeed"
                for partition in (FIRST, SECOND):
                    await up_to(live, partition, 5, 3)

        asyncio.run(scenario())
        rebuild.require_new(5)

    def test_a_new_rebuild_does_not_touch_a_decided_one(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has read the state before the decision, and writes after it."""
        monkeypatch.setattr(swap, "RENAME_SECONDS", 0.3)

        async def scenario() -> None:
            async with rebuild.both() as (live, old, _):

                async def read_before_decision(database: Database) -> RebuildState:
                    state = await read(database)
                    with monkeypatch.context() as patched:
                        kill_at(patched, 0)
                        assert isinstance(await raised(old.swap(rebuild.name, caught_up)), Killed)
                    return state

                other = rebuild.store(collections={**COLLECTIONS, "more": []}).shadow()
                with monkeypatch.context() as patched:
                    patched.setattr(rebuilds, "read", read_before_decision)
                    error = await raised(other.open(rebuild.name))
                assert isinstance(error, StoreUnavailable)
                assert "at the same time" in error.what
                await up_to(live, FIRST, 4)

        asyncio.run(scenario())
        rebuild.require_new(4, 3)

    @pytest.mark.parametrize("step", ["prepare", "identities"])
    def test_a_rebuild_that_is_superseded_at_its_start_removes_its_copies(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        """Another rebuild starts when its collections are created, or when their UUIDs are known."""
        done = getattr(rebuilds, step)
        winner = rebuild.store().shadow()

        async def superseded(*arguments: Any) -> Any:
            answer = await done(*arguments)
            monkeypatch.setattr(rebuilds, step, done)
            await winner.open(rebuild.name)
            return answer

        async def scenario() -> None:
            monkeypatch.setattr(rebuilds, step, superseded)
            error = await raised(rebuild.store().shadow().open(rebuild.name))
            try:
                assert isinstance(error, StoreUnavailable)
                assert "Run the command only once" in error.remedy
                await up_to(winner, FIRST, 2)
                assert {name for name in rebuild.collections() if "__next" in name} == {
                    f"{name}__next2" for name in (*COLLECTIONS, *SWAPPED)
                }
            finally:
                await winner.close()
            async with rebuild.opened(rebuild.store().shadow()) as again:
                assert await again.positions() == {FIRST: 2}, "it continues the other rebuild"

        asyncio.run(scenario())

    def test_copies_of_a_killed_rebuild_are_removed_by_the_next(self, rebuild: RebuildSetup) -> None:
        async def scenario() -> None:
            async with rebuild.opened(rebuild.store().shadow()):
                pass
            with rebuild.server.client() as client:
                # Killed between the state of the second rebuild and the removal of the first one's copies.
                state = client[rebuild.name].tailrace_rebuilds
                state.update_one({}, {"$set": {"number": 2, "collections.$[].identity": None}})
                client[rebuild.name].create_collection("mine__next1")
            async with rebuild.opened(rebuild.store().shadow()):
                assert {name for name in rebuild.collections() if "__next" in name} == {
                    *(f"{name}__next3" for name in (*COLLECTIONS, *SWAPPED)),
                    "mine__next1",
                }, "collections of others stay"

        asyncio.run(scenario())

    def test_another_projection_in_the_database_is_refused(self, rebuild: RebuildSetup) -> None:
        async def scenario() -> None:
            async with rebuild.both() as (_, old, _):
                other = rebuild.store()
                await other.open("other")
                await up_to(other, FIRST, 1)
                await other.close()
                assert "other" in str(await raised(old.swap(rebuild.name, caught_up)))
                assert isinstance(await raised(rebuild.store().shadow().open(rebuild.name)), ConfigError)

        asyncio.run(scenario())
        assert not rebuild.is_held()

    def test_pruning_and_resets_are_not_lost_in_the_swap(
        self, rebuild: RebuildSetup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario() -> None:
            async with rebuild.both() as (live, old, _):
                await live.prune(500, 10)
                with monkeypatch.context() as patched:
                    kill_at(patched, 0)
                    assert isinstance(await raised(old.swap(rebuild.name, caught_up)), Killed)
                with pytest.raises(Swapping):
                    await live.prune(2_000, 10)
                with pytest.raises(Swapping):
                    await live.reset({FIRST: 0})
                await finish(live._opened.database)
                assert await live.horizon() == 500, "a prune by the old horizon may delete new markers"
                assert await live.prune(2_000, 100) == 6
                await live.reset({FIRST: 0})
                assert (await live.positions())[FIRST] == 0

        asyncio.run(scenario())
