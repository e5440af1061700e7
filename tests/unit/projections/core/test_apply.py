"""A batch in one transaction: markers, duplicates, versions, replays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.worker_setup import P0, async_test, event, opened
from tailrace.projections.core.apply import StoredOffsetMoved
from tailrace.projections.core.event import Event
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.store import EntityState, EventOutcome
from tailrace.projections.core.versions import Versions


@async_test
async def test_a_batch_is_applied_in_order_and_its_offset_stored() -> None:
    setup = await opened()
    await setup.worker.process([event(3), event(5), event(9)])
    assert setup.history() == ["e3", "e5", "e9"]
    assert setup.store.records.offsets == {P0: 10}
    assert setup.worker.next == 10


@async_test
async def test_repeated_events_are_skipped() -> None:
    setup = await opened()
    await setup.worker.process([event(0), event(1)])
    again = [event(0), event(1), event(2, id="e0"), event(3)]
    setup.worker.next = 0
    await setup.store.reset({P0: 0})
    await setup.worker.process(again)
    assert setup.history() == ["e0", "e1", "e3"]
    assert setup.result.duplicates == 3


@async_test
async def test_a_duplicate_within_a_batch_is_applied_once() -> None:
    setup = await opened()
    await setup.worker.process([event(0, id="a"), event(1, id="a"), event(2, id="b")])
    assert setup.history() == ["a", "b"]


@async_test
async def test_events_below_the_stored_offset_are_skipped() -> None:
    """Even if their markers are gone."""
    setup = await opened()
    await setup.store.reset({P0: 2})
    await setup.worker.process([event(0), event(1), event(2)])
    assert setup.history() == ["e2"]
    assert setup.store.records.offsets == {P0: 3}


@async_test
async def test_a_stored_offset_that_was_set_back_ends_the_worker() -> None:
    setup = await opened()
    await setup.worker.process([event(0), event(1)])
    await setup.store.reset({P0: 0})
    with pytest.raises(StoredOffsetMoved):
        await setup.worker.process([event(2)])
    assert setup.history() == ["e0", "e1"]


@async_test
async def test_ids_of_any_length_are_stored() -> None:
    setup = await opened()
    long = "x" * 10_000
    await setup.worker.process([event(0, id=long), event(1, id=long + "y"), event(2, id=long)])
    assert len(setup.history()) == 2
    assert all(len(each) < 600 for each in setup.store.outcomes())


@async_test
async def test_stale_versions_are_skipped_and_deleted_entities_keep_their_version() -> None:
    setup = await opened(versions=Versions())
    await setup.worker.process(
        [event(0, entity_version="1"), event(1, entity_version="3"), event(2, entity_version="2")]
    )
    assert setup.history() == ["e0", "e1"]
    await setup.worker.process([event(3, kind="Deleted", entity_version="4"), event(4, entity_version="3")])
    assert setup.store.outcomes()["e4"] is EventOutcome.STALE
    assert setup.store.records.entities == {"k": EntityState(4, deleted=True)}
    await setup.worker.process([event(5, value=None, entity_version="5")])
    assert setup.store.records.entities == {"k": EntityState(5, deleted=True)}


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(1, 8)), st.integers(1, 4))
def test_versions_in_any_order_are_applied_one_by_one(order: list[int], size: int) -> None:
    async def run() -> None:
        setup = await opened(versions=Versions(gaps="wait"))
        events = [event(n, id=f"v{version}", entity_version=str(version)) for n, version in enumerate(order)]
        for begin in range(0, len(events), size):
            await setup.worker.process(events[begin : begin + size])
        assert setup.history() == [f"v{version}" for version in range(1, 8)]
        assert setup.store.records.waiting == {}
        assert set(setup.store.outcomes().values()) == {EventOutcome.APPLIED}

    asyncio.run(run())


@async_test
async def test_replays() -> None:
    setup = await opened()
    await setup.worker.process([event(0)])
    await setup.worker.process([event(1, id="e0", tailrace__replay="r"), event(2, id="new", tailrace__replay="r")])
    assert setup.history() == ["e0", "new"]
    for policy in ("skip", "rebuild"):
        other = await opened(on_replay=policy)
        await other.worker.process([event(0), event(1, tailrace__replay="r")])
        assert other.history() == ["e0"]
        assert other.store.records.offsets == {P0: 2}


@async_test
async def test_a_replay_older_than_the_horizon_is_dead_lettered() -> None:
    setup = await opened()
    await setup.worker.process([event(0), event(1)])
    assert await setup.store.prune(1001, 100) == 1
    again = {"timestamp": "1000", "tailrace__replay": "r"}
    await setup.worker.process([event(2, id="e0", **again), event(3, id="e1", timestamp="1001", tailrace__replay="r")])
    # Read for the first time, however late: its marker cannot have been pruned.
    await setup.worker.process([event(4, timestamp="5")])
    assert setup.history() == ["e0", "e1", "e4"]
    assert [name for name, _ in setup.dead_letters] == ["e0"]


@async_test
async def test_an_event_read_again_and_older_than_the_horizon_is_dead_lettered() -> None:
    """After a reset: its marker was pruned."""
    setup = await opened()
    await setup.worker.process([event(0), event(1, timestamp="5"), event(2)])
    assert await setup.store.prune(100, 10) == 1
    await setup.store.reset({P0: 0})
    again = PartitionWorker(
        P0, 0, (await setup.store.furthest())[P0], setup.store, setup.worker._spec, setup, sleep=setup.sleep
    )
    await again.process([event(0), event(1, timestamp="5"), event(2), event(3)])
    assert setup.history() == ["e0", "e1", "e2", "e3"]
    assert [name for name, _ in setup.dead_letters] == ["e1"]


@async_test
async def test_a_released_event_of_a_rebuild_is_a_replay() -> None:
    setup = await opened(versions=Versions(gaps="wait"))
    handled: list[tuple[str, bool]] = []

    async def look(each: Event, effects: Any) -> None:
        handled.append((each.id, each.is_replay))

    worker = setup.worker_with(look)
    for each in (event(0, entity_version="2"), event(1, entity_version="1")):
        each.is_rebuild = True
        await worker.process([each])
    assert handled == [("e1", True), ("e0", True)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), min_size=1, max_size=40),
    st.sets(st.integers(0, 12), max_size=4),
    st.integers(1, 7),
)
def test_the_projection_is_the_fold_of_its_events(published: list[tuple[int, str]], bad: set[int], size: int) -> None:
    """With duplicates, failing events and batches of any size: each key has its good events once, in order."""

    async def run() -> None:
        setup = await opened(max_attempts=1)
        setup.fails = {f"{number}{key}": 10_000 for number in bad for key in "abc"}
        events = [event(n, id=f"{number}{key}", key=key) for n, (number, key) in enumerate(published)]
        for begin in range(0, len(events), size):
            await setup.worker.process(events[begin : begin + size])
        for key in "abc":
            ids = [f"{number}{key}" for number, where in published if where == key and number not in bad]
            assert setup.history(key) == list(dict.fromkeys(ids))
        assert {name for name, _ in setup.dead_letters} == {
            f"{number}{key}" for number, key in published if number in bad
        }

    asyncio.run(run())
