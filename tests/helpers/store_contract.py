"""The store contract as tests: transactions and offsets here, records in `store_contract_records.py`.

The tests of a store are a class that derives from `StoreContract` and creates stores in the fixture `stores`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from helpers.store_contract_records import PruningContract, RecordsContract
from helpers.store_scenarios import (
    P0,
    P1,
    Boom,
    Stores,
    StoreTests,
    again,
    all_waiting,
    in_loop,
    mark,
    marker,
    opened,
    still_waits,
    waiting,
)  # fmt: skip
from tailrace.projections.core.store import EntityState, EventOutcome, Partition, ProjectionStore, StoreTransaction


class TransactionContract(StoreTests):
    """A transaction is atomic."""

    async def everything(self, stores: Stores, transaction: StoreTransaction[Any]) -> None:
        """Calls each method that writes once."""
        await transaction.advance(42)
        await transaction.mark([marker("new"), marker("other")])
        await transaction.set_outcomes({"other": EventOutcome.SKIPPED, "dead": EventOutcome.STALE})
        await transaction.save_entities({"o-1": EntityState(3, deleted=False), "o-2": EntityState(1, deleted=True)})
        await transaction.wait([waiting("waits")])
        await transaction.release(["waited"])
        stores.write(transaction.effects, "row", "new")
        await transaction.flush()

    async def before(self, stores: Stores, store: ProjectionStore[Any]) -> None:
        async with store.transaction(P0) as transaction:
            assert await transaction.position() is None
            await transaction.advance(41)
            await transaction.mark([marker("dead")])
            await transaction.set_outcomes({"dead": EventOutcome.DEAD})
            await transaction.save_entities({"o-1": EntityState(2, deleted=False)})
            await transaction.wait([waiting("waited")])
            stores.write(transaction.effects, "row", "old")

    async def state(self, stores: Stores, store: ProjectionStore[Any]) -> dict[str, Any]:
        async with store.transaction(P0) as transaction:
            position = await transaction.position()
            entities = await transaction.entities(["o-1", "o-2"])
            waits = [each.event_id for each in await transaction.waiting(["o-1"])]
        fresh: set[str] = set()
        try:
            async with store.transaction(P0) as transaction:
                await transaction.position()
                fresh = await transaction.mark([marker(each) for each in ("new", "other", "dead")])
                raise Boom  # to change nothing
        except Boom:
            pass
        rows = await stores.written()
        return {"position": position, "entities": entities, "waiting": waits, "fresh": fresh, "rows": rows}

    OLD = {  # noqa: RUF012 - read only
        "position": 41,
        "entities": {"o-1": EntityState(2, deleted=False)},
        "waiting": ["waited"],
        "fresh": {"new", "other", "dead"},
        "rows": {"row": "old"},
    }

    @in_loop
    async def test_a_commit_keeps_everything(self, stores: Stores) -> None:
        async with opened(stores) as store:
            await self.before(stores, store)
            async with store.transaction(P0) as transaction:
                assert await transaction.position() == 41
                await self.everything(stores, transaction)
        async with opened(stores) as store:
            assert await self.state(stores, store) == {
                "position": 42,
                "entities": {"o-1": EntityState(3, deleted=False), "o-2": EntityState(1, deleted=True)},
                "waiting": ["waits"],
                "fresh": set(),
                "rows": {"row": "new"},
            }

    @in_loop
    async def test_an_error_rolls_everything_back(self, stores: Stores) -> None:
        async with opened(stores) as store:
            await self.before(stores, store)
            with pytest.raises(Boom):  # noqa: PT012
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    await self.everything(stores, transaction)
                    raise Boom
            assert await self.state(stores, store) == self.OLD

    @in_loop
    async def test_a_cancelled_task_rolls_everything_back(self, stores: Stores) -> None:
        done = asyncio.Event()

        async def work() -> None:
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await self.everything(stores, transaction)
                done.set()
                await asyncio.Event().wait()

        async with opened(stores) as store:
            await self.before(stores, store)
            task = asyncio.create_task(work())
            await done.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await self.state(stores, store) == self.OLD

    @in_loop
    async def test_closing_rolls_back_open_transactions(self, stores: Stores) -> None:
        async with opened(stores) as store:
            await self.before(stores, store)
            committed = False
            try:
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    await self.everything(stores, transaction)
                    await store.close()
                committed = True
            except Exception:  # noqa: BLE001 - each driver has its own exception
                pass
            assert not committed
            await store.open("orders")
            assert await self.state(stores, store) == self.OLD

    @in_loop
    async def test_closing_ends_the_wait_for_a_lock(self, stores: Stores) -> None:
        async def second() -> None:
            async with late.transaction(P0) as transaction:
                await transaction.position()

        async with opened(stores) as store, opened(stores) as late, store.transaction(P0) as first:
            await first.position()
            task = asyncio.create_task(second())
            assert await still_waits(task)
            await late.close()
            done, _ = await asyncio.wait({task}, timeout=60)
            assert done
            assert task.exception() is not None

    @in_loop
    async def test_deferred_writes_are_executed_at_the_end(self, stores: Stores) -> None:
        async with opened(stores) as store:
            async with store.transaction(P0) as transaction:
                await transaction.position()
                stores.write(transaction.effects, "row", "first")
                stores.write(transaction.effects, "row", "last")
                assert await stores.written() == {}
            assert await stores.written() == {"row": "last"}

    @pytest.mark.parametrize("commits", [True, False])
    @in_loop
    async def test_effects_are_refused_after_the_end(self, stores: Stores, commits: bool) -> None:
        async with opened(stores) as store:
            with suppress(Boom):
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    if not commits:
                        raise Boom
            with pytest.raises(RuntimeError, match="has ended"):
                stores.write(transaction.effects, "row", "late")
            async with store.transaction(P0) as following:
                await following.position()
            assert await stores.written() == {}

    @in_loop
    async def test_empty_arguments_do_nothing(self, stores: Stores) -> None:
        async with opened(stores) as store:
            async with store.transaction(P0) as transaction:
                assert await transaction.position() is None
                assert await transaction.mark([]) == set()
                await transaction.set_outcomes({})
                assert await transaction.entities([]) == {}
                await transaction.save_entities({})
                await transaction.wait([])
                assert await transaction.waiting([]) == []
                await transaction.release([])
                await transaction.flush()
            await store.reset({})
            assert await store.positions() == {}

    @in_loop
    async def test_a_broken_connection_is_transient_and_the_next_one_works(self, stores: Stores) -> None:
        async with opened(stores) as store:
            await self.before(stores, store)
            caught: Exception | None = None
            try:
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    await self.everything(stores, transaction)
                    await stores.cut()
                    await transaction.advance(43)
            except Exception as error:  # noqa: BLE001 - each driver has its own exception
                caught = error
            assert caught is not None
            assert store.is_transient(caught)
            assert await again(store, lambda: self.state(stores, store)) == self.OLD
            await stores.cut()
            assert await again(store, store.positions) == {P0: 41}

    @in_loop
    async def test_an_error_of_a_handler_is_not_transient(self, stores: Stores) -> None:
        async with opened(stores) as store:
            for error in (Boom(), ValueError("no"), KeyError("no"), asyncio.CancelledError(), TimeoutError()):
                assert not store.is_transient(error)


class PositionContract(StoreTests):
    """Each partition has one offset, and one writer at a time."""

    @in_loop
    async def test_each_partition_has_its_own_offset(self, stores: Stores) -> None:
        async with opened(stores) as store:
            assert await store.positions() == {}
            for partition, offset in ((P0, 5), (P1, 0), (Partition("returns", 0), 2**40)):
                async with store.transaction(partition) as transaction:
                    assert await transaction.position() is None
                    await transaction.advance(offset)
            async with store.transaction(P1) as transaction:
                assert await transaction.position() == 0
                await transaction.advance(1)
                assert await transaction.position() == 1
        async with opened(stores) as store:
            assert await store.positions() == {P0: 5, P1: 1, Partition("returns", 0): 2**40}

    @in_loop
    async def test_reading_a_position_does_not_store_one(self, stores: Stores) -> None:
        async with opened(stores) as store:
            for _ in range(2):
                async with store.transaction(P0) as transaction:
                    assert await transaction.position() is None
            assert await store.positions() == {}

    @pytest.mark.parametrize("start", [None, 10])
    @in_loop
    async def test_the_second_worker_waits_and_sees_the_changes_of_the_first(
        self, stores: Stores, start: int | None
    ) -> None:
        async def late() -> tuple[int | None, set[str], dict[str, EntityState]]:
            async def attempt() -> tuple[int | None, set[str], dict[str, EntityState]]:
                async with second.transaction(P0) as transaction:
                    position = await transaction.position()
                    fresh = await transaction.mark([marker("a"), marker("b")])
                    return position, fresh, await transaction.entities(["o-1"])

            return await again(second, attempt)  # type: ignore[no-any-return]

        async with opened(stores) as first, opened(stores) as second:
            if start is not None:
                await first.reset({P0: start})
            async with first.transaction(P0) as transaction:
                assert await transaction.position() == start
                task = asyncio.create_task(late())
                assert await still_waits(task)
                await transaction.mark([marker("a")])
                await transaction.save_entities({"o-1": EntityState(1, deleted=False)})
                await transaction.advance(11)
            assert await task == (11, {"b"}, {"o-1": EntityState(1, deleted=False)})

    @in_loop
    async def test_the_second_worker_continues_when_the_first_fails(self, stores: Stores) -> None:
        async def late() -> int | None:
            async with second.transaction(P0) as transaction:
                return await transaction.position()

        async with opened(stores) as first, opened(stores) as second:
            with pytest.raises(Boom):  # noqa: PT012
                async with first.transaction(P0) as transaction:
                    await transaction.position()
                    await transaction.advance(11)
                    task = asyncio.create_task(again(second, late))
                    assert await still_waits(task)
                    raise Boom
            assert await task is None

    @in_loop
    async def test_a_waiting_worker_can_be_cancelled(self, stores: Stores) -> None:
        async def late() -> None:
            async with second.transaction(P0) as transaction:
                await transaction.position()

        async with opened(stores) as first, opened(stores) as second:
            async with first.transaction(P0) as transaction:
                await transaction.position()
                task = asyncio.create_task(late())
                assert await still_waits(task)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await transaction.advance(3)
            async with second.transaction(P0) as transaction:
                assert await transaction.position() == 3

    @in_loop
    async def test_partitions_do_not_wait_for_each_other(self, stores: Stores) -> None:
        together = asyncio.Barrier(8)

        async def work(number: int) -> None:
            partition = Partition("orders", number)
            async with store.transaction(partition) as transaction:
                await transaction.position()
                await transaction.mark([marker(f"e-{number}")])
                await transaction.save_entities({f"o-{number}": EntityState(1, deleted=False)})
                stores.write(transaction.effects, str(number), "done")
                await transaction.advance(number + 1)
                await together.wait()  # all of them are this far, and none has committed

        async with opened(stores) as store:
            # Two transactions that create the same table or document may conflict, so it is created before.
            await mark(store, marker("first"), partition=Partition("other", 0))
            await asyncio.gather(*(work(number) for number in range(8)))
            assert await store.positions() == {Partition("orders", number): number + 1 for number in range(8)}
            assert await stores.written() == {str(number): "done" for number in range(8)}

    @in_loop
    async def test_the_furthest_offset_is_kept(self, stores: Stores) -> None:
        async with opened(stores) as store:
            assert await store.furthest() == {}
            for offset in (5, 9, 7):
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    await transaction.advance(offset)
            await store.reset({P0: 2})
            assert await store.furthest() == {P0: 9}
            await store.reset({P0: None})
            assert await store.furthest() == {P0: 9}
            assert await store.positions() == {}

    @in_loop
    async def test_reset_sets_and_removes_offsets_and_keeps_markers(self, stores: Stores) -> None:
        async with opened(stores) as store:
            await mark(store, marker("a"))
            await store.reset({P0: 7, P1: 8})
            assert await store.positions() == {P0: 7, P1: 8}
            await store.reset({P0: None, Partition("returns", 3): 1})
            assert await store.positions() == {P1: 8, Partition("returns", 3): 1}
            async with store.transaction(P0) as transaction:
                assert await transaction.position() is None
            assert await mark(store, marker("a")) == set()

    @in_loop
    async def test_missing_offsets_are_set_without_changing_the_others(self, stores: Stores) -> None:
        async with opened(stores) as store:
            await store.reset({P0: 7, P1: 8})
            await store.reset({P1: None})
            await store.reset({P0: 1, P1: 2, Partition("returns", 3): 3}, only_missing=True)
            assert await store.positions() == {P0: 7, P1: 2, Partition("returns", 3): 3}

    @in_loop
    async def test_two_projections_are_independent(self, stores: Stores) -> None:
        async with opened(stores, "orders") as one, opened(stores, "orders-2") as two:
            async with one.transaction(P0) as transaction:
                await transaction.position()
                await transaction.advance(9)
                await transaction.mark([marker("a", 10), marker("b", 10)])
                await transaction.save_entities({"o-1": EntityState(4, deleted=False)})
                await transaction.wait([waiting("b")])
                # At the same time, in the same partition.
                async with two.transaction(P0) as other:
                    assert await other.position() is None
                    assert await other.mark([marker("a", 10)]) == {"a"}
                    assert await other.entities(["o-1"]) == {}
                    assert await other.waiting(["o-1"]) == []
                    assert await other.expired(1000, 10) == []
                    await other.set_outcomes({"b": EventOutcome.DEAD})
                    await other.release(["b"])
                    await other.advance(1)
            assert await one.positions() == {P0: 9}
            assert await two.positions() == {P0: 1}
            assert await all_waiting(one, "o-1") == ["b"]
            assert await two.prune(100, 10) == 1
            assert (await one.horizon(), await two.horizon()) == (0, 100)
            assert await mark(one, marker("a"), marker("b")) == set()


class StoreContract(TransactionContract, PositionContract, RecordsContract, PruningContract):
    """All tests of the contract."""
