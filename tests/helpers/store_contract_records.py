"""The store contract for markers, entities and waiting events. See `store_contract`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.store_scenarios import (
    A_WHILE,
    P0,
    P1,
    Stores,
    StoreTests,
    again,
    all_waiting,
    in_loop,
    mark,
    marker,
    opened,
    same,
    set_outcomes,
    waiting,
)  # fmt: skip
from tailrace.projections.core.store import EntityState, EventOutcome, Partition, ProjectionStore


class RecordsContract(StoreTests):
    """Markers, entities and waiting events."""

    @in_loop
    async def test_an_event_is_new_once(self, stores: Stores) -> None:
        async with opened(stores) as store:
            assert await mark(store, marker("a"), marker("b")) == {"a", "b"}
            assert await mark(store, marker("b"), marker("c"), marker("c"), marker("b")) == {"c"}
            assert await mark(store, marker("c"), partition=P1) == set()
            async with store.transaction(P0) as transaction:
                await transaction.position()
                assert await transaction.mark([marker("d")]) == {"d"}
                assert await transaction.mark([marker("d"), marker("e", entity=None, version=None)]) == {"e"}
        async with opened(stores) as store:
            assert await mark(store, *(marker(each) for each in "abcde")) == set()

    @in_loop
    async def test_names_are_stored_unchanged(self, stores: Stores) -> None:
        names = ["", " ", 'quo"te', "back\\slash", "{a,b}", "NULL", "null", "ä€😀", "o'x", "a.b$c", "%s", "x" * 500]
        async with opened(stores) as store:
            assert await mark(store, *(marker(name, entity=name) for name in names)) == set(names)
            assert await mark(store, *(marker(name) for name in names)) == set()
            states = {name: EntityState(number, deleted=False) for number, name in enumerate(names)}
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.save_entities(states)
                await transaction.wait([waiting(name, entity=name) for name in names])
                assert await transaction.entities(names) == states
                assert {each.event_id for each in await transaction.waiting(names)} == set(names)
                await transaction.release(names)
                assert await transaction.waiting(names) == []

    @in_loop
    async def test_a_large_batch(self, stores: Stores) -> None:
        markers = [marker(f"e-{number}", entity=f"o-{number}") for number in range(2000)]
        async with opened(stores) as store:
            assert len(await mark(store, *markers)) == 2000
            assert await mark(store, *markers, marker("one more")) == {"one more"}

    @in_loop
    async def test_an_event_in_two_partitions_at_once_is_new_in_one(self, stores: Stores) -> None:
        together = asyncio.Barrier(2)
        met: set[Partition] = set()

        async def work(store: ProjectionStore[Any], partition: Partition) -> set[str]:
            async with store.transaction(partition) as transaction:
                await transaction.position()
                if partition not in met:  # in the first attempt only: a retry would wait alone
                    met.add(partition)
                    await together.wait()
                return await transaction.mark([marker("a"), marker("b")])

        async with opened(stores) as one, opened(stores) as two:
            fresh = await asyncio.gather(
                again(one, lambda: work(one, P0)), again(two, lambda: work(two, P1))
            )  # fmt: skip
            assert sorted(sorted(each) for each in fresh) == [[], ["a", "b"]]

    @in_loop
    async def test_a_dead_event_is_new_again(self, stores: Stores) -> None:
        async with opened(stores) as store:
            for outcome in EventOutcome:
                await mark(store, marker(outcome))
            await set_outcomes(store, {str(outcome): outcome for outcome in EventOutcome})
            everyone = [marker(outcome, 2000) for outcome in EventOutcome]
            assert await mark(store, *everyone) == {"dead"}
            assert await mark(store, *everyone) == set()

    @in_loop
    async def test_outcomes_are_changed_within_the_transaction_and_later(self, stores: Stores) -> None:
        async with opened(stores) as store:
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.mark([marker("a"), marker("b")])
                await transaction.set_outcomes(
                    {"a": EventOutcome.DEAD, "b": EventOutcome.WAITING, "nobody": EventOutcome.DEAD}
                )
            await set_outcomes(store, {"b": EventOutcome.DEAD})
            assert await mark(store, marker("a"), marker("b"), marker("nobody")) == {"a", "b", "nobody"}
            await set_outcomes(store, {"a": EventOutcome.DEAD})
            await set_outcomes(store, {"a": EventOutcome.APPLIED})
            assert await mark(store, marker("a")) == set()

    @in_loop
    async def test_entities_are_overwritten(self, stores: Stores) -> None:
        async with opened(stores) as store:
            for state in (
                EntityState(5, deleted=False),
                EntityState(6, deleted=True),
                EntityState(2**60, deleted=False),
            ):
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    await transaction.save_entities({"o-1": state, "o-2": EntityState(1, deleted=False)})
                    assert (await transaction.entities(["o-1"]))["o-1"] == state
                async with store.transaction(P1) as transaction:
                    await transaction.position()
                    known = await transaction.entities(["o-1", "o-2", "o-3"])
                    assert known == {"o-1": state, "o-2": EntityState(1, deleted=False)}

    @pytest.mark.parametrize("known", [None, 1])
    @pytest.mark.parametrize("first", ["applies", "waits"])
    @in_loop
    async def test_an_event_that_starts_to_wait_while_its_predecessor_is_applied(
        self, stores: Stores, first: str, known: int | None
    ) -> None:
        """Neither transaction sees the other; without a conflict the waiting event would never be released."""

        async def come(store: ProjectionStore[Any], partition: Partition, version: int, looked: asyncio.Event) -> None:
            async with store.transaction(partition) as transaction:
                await transaction.position()
                state = (await transaction.entities(["o-1"])).get("o-1")
                waits = {each.version: each.event_id for each in await transaction.waiting(["o-1"])}
                if not looked.is_set():
                    looked.set()
                    await asyncio.wait(tasks, timeout=A_WHILE)  # the other one is done, or waits for this one
                if version > (state.version if state else 0) + 1:
                    await transaction.wait([waiting(f"e-{version}", version, partition=partition)])
                    return
                while version + 1 in waits:
                    version += 1
                    await transaction.release([waits[version]])
                await transaction.save_entities({"o-1": EntityState(version, deleted=False)})

        async with opened(stores) as one, opened(stores) as two:
            if known is not None:
                async with one.transaction(P0) as transaction:
                    await transaction.position()
                    await transaction.save_entities({"o-1": EntityState(known, deleted=False)})
            due = (known or 0) + 1
            versions = (due, due + 1) if first == "applies" else (due + 1, due)
            looked, other = asyncio.Event(), asyncio.Event()
            other.set()

            async def second() -> None:
                await looked.wait()
                await again(two, lambda: come(two, P1, versions[1], other))

            tasks = [asyncio.create_task(second())]
            await again(one, lambda: come(one, P0, versions[0], looked))
            await asyncio.gather(*tasks)
            assert await all_waiting(one, "o-1") == []
            async with one.transaction(P0) as transaction:
                await transaction.position()
                assert await transaction.entities(["o-1"]) == {"o-1": EntityState(due + 1, deleted=False)}

    @in_loop
    async def test_waiting_events_are_returned_complete_and_in_order(self, stores: Stores) -> None:
        events = [
            waiting("c", 10, offset=3),
            waiting("b", 9, partition=P1, offset=2**40),
            waiting("a", 2, entity="o-2")._replace(key=None, value=None, headers=[]),
            waiting("x", 1, entity="o-3"),
        ]
        async with opened(stores) as store:
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.wait(events)
            async with store.transaction(P1) as transaction:
                await transaction.position()
                found = await transaction.waiting({"o-2", "o-1", "o-9"})
            assert [each.event_id for each in found] == ["b", "c", "a"]
            by_id = {each.event_id: each for each in events}
            assert all(same(each, by_id[each.event_id]) for each in found)

    @in_loop
    async def test_an_event_that_waits_already_is_unchanged(self, stores: Stores) -> None:
        async with opened(stores) as store:
            for since_ms in (50, 60):
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    await transaction.wait([waiting("a", since_ms=since_ms), waiting(f"b{since_ms}")])
            async with store.transaction(P0) as transaction:
                await transaction.position()
                found = await transaction.waiting(["o-1"])
            assert {each.event_id: each.since_ms for each in found} == {"a": 50, "b50": 50, "b60": 50}

    @in_loop
    async def test_expired_events_are_the_oldest_of_the_partition(self, stores: Stores) -> None:
        async with opened(stores) as store:
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.wait([waiting(f"w-{since}", since_ms=since) for since in (30, 10, 20, 40)])
                await transaction.wait([waiting("elsewhere", partition=P1, since_ms=1)])
            async with store.transaction(P0) as transaction:
                await transaction.position()
                assert [each.event_id for each in await transaction.expired(40, 2)] == ["w-10", "w-20"]
                assert [each.event_id for each in await transaction.expired(40, 9)] == ["w-10", "w-20", "w-30"]
                assert await transaction.expired(10, 9) == []
            async with store.transaction(P1) as transaction:
                await transaction.position()
                assert [each.event_id for each in await transaction.expired(40, 9)] == ["elsewhere"]

    @in_loop
    async def test_released_events_do_not_wait(self, stores: Stores) -> None:
        async with opened(stores) as store:
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.wait([waiting("a"), waiting("b"), waiting("c")])
                await transaction.release({"a", "nobody"})
            assert sorted(await all_waiting(store, "o-1")) == ["b", "c"]
            async with store.transaction(P1) as transaction:
                await transaction.position()
                await transaction.release(["b"])
                await transaction.wait([waiting("a", since_ms=99)])
            assert sorted(await all_waiting(store, "o-1")) == ["a", "c"]


class PruningContract(StoreTests):
    """Old markers are deleted, and the horizon is raised before."""

    @in_loop
    async def test_prune_deletes_older_markers_and_raises_the_horizon(self, stores: Stores) -> None:
        async with opened(stores) as store:
            assert await store.horizon() == 0
            await mark(store, marker("a", 10), marker("b", 20), marker("c", 30))
            assert await store.prune(30, 100) == 2
            assert await store.horizon() == 30
            assert await mark(store, marker("a", 10), marker("b", 20), marker("c", 30)) == {"a", "b"}
        async with opened(stores) as store:
            assert await store.horizon() == 30

    @in_loop
    async def test_the_horizon_is_raised_even_without_old_markers_and_never_lowered(self, stores: Stores) -> None:
        async with opened(stores) as store:
            assert await store.prune(500, 100) == 0
            assert await store.horizon() == 500
            await mark(store, marker("a", 10))
            assert await store.prune(100, 100) == 1
            assert await store.horizon() == 500

    @in_loop
    async def test_prune_deletes_at_most_the_limit_oldest_first(self, stores: Stores) -> None:
        async with opened(stores) as store:
            await mark(store, *(marker(f"e-{time}", time) for time in (50, 10, 40, 20, 30)))
            assert await store.prune(100, 2) == 2
            assert await store.horizon() == 100
            assert await store.prune(100, 2) == 2
            assert await mark(store, *(marker(f"e-{time}", time) for time in (10, 20, 30, 40, 50))) == {
                "e-10", "e-20", "e-30", "e-40",
            }  # fmt: skip
            assert await store.prune(100, 100) == 5
            assert await store.prune(100, 100) == 0

    @in_loop
    async def test_dead_and_waiting_markers_stay_until_their_outcome_changes(self, stores: Stores) -> None:
        async with opened(stores) as store:
            for outcome in EventOutcome:
                await mark(store, marker(outcome, 10))
            await set_outcomes(store, {str(outcome): outcome for outcome in EventOutcome})
            assert await store.prune(100, 100) == 3
            assert await store.prune(100, 100) == 0
            await set_outcomes(store, {"waiting": EventOutcome.APPLIED})
            assert await store.prune(100, 100) == 1
            # The dead one counts as new when it arrives again, and is pruned then.
            assert await mark(store, marker("dead", 10)) == {"dead"}
            assert await store.prune(100, 100) == 1

    @in_loop
    async def test_a_transaction_that_misses_a_marker_sees_the_horizon(self, stores: Stores) -> None:
        async with opened(stores) as store, opened(stores) as keeper:
            await mark(store, marker("a", 10))

            async def attempt() -> tuple[set[str], int]:
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    await keeper.prune(100, 100)
                    return await transaction.mark([marker("a", 10)]), await transaction.horizon()

            fresh, horizon = await again(store, attempt)
            # The transaction sees the marker, or the horizon says that the marker may be gone.
            assert fresh == set() or horizon == 100
            assert await store.horizon() == 100
