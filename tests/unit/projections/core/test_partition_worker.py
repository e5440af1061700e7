"""Blocks, splits around a bad event, retries, dead letters, versions: a worker on a store in memory."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.memory_store import MemoryStore
from tailrace.errors import ConfigError, Halted, ProjectionError, Reason, Rejected
from tailrace.projections.core.apply import BatchResult, StoredOffsetMoved
from tailrace.projections.core.dead_letters import Failure
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.failure_policy import split_batch
from tailrace.projections.core.handlers import Handlers, RegisteredHandler
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.settings import ProjectionSpec, Settings
from tailrace.projections.core.store import EntityState, EventOutcome, Partition
from tailrace.projections.core.versions import Versions

P0 = Partition("orders", 0)


def event(offset: int, *, key: str = "k", kind: str = "Happened", value: bytes | None = b"{}", **said: str) -> Event:
    headers = {"id": f"e{offset}", "type": kind, "timestamp": str(1000 + offset), **said}
    pairs = [(name.replace("__", "."), text.encode()) for name, text in headers.items()]
    return read_event(P0, offset, key.encode(), value, pairs, 0)


class Scene:
    """A worker with nothing around it. Handlers append ids to `history`, by key."""

    def __init__(self, **choices: Any) -> None:
        self.store = MemoryStore()
        self.letters: list[tuple[str, Failure]] = []
        self.held_up: list[str] = []
        self.slept: list[float] = []
        self.now = 1_000_000.0
        self.fails: dict[str, int] = {}
        """How often events fail before they pass, by id."""
        self.error: Callable[[], Exception] = lambda: ValueError("it fails")
        self.applied = BatchResult()
        self.paused: list[bool] = []
        self.missed_at: list[int] = []
        self.looked_at = 0
        handlers = Handlers()
        handlers.add((), RegisteredHandler(self.append, None, deletes=False))
        handlers.add(("Deleted",), RegisteredHandler(self.append, None, deletes=True))
        self.worker = PartitionWorker(
            P0,
            0,
            0,
            self.store,
            ProjectionSpec("orders", handlers, Settings(**choices)),
            self,
            sleep=self.sleep,
            clock=lambda: self.now,
        )

    async def append(self, event: Event, effects: Any) -> None:
        if self.fails.get(event.id, 0) > 0:
            self.fails[event.id] -= 1
            raise self.error()
        row = await effects.fetch_one("history", {"key": event.key.decode()})
        ids = [*(row["ids"] if row else []), event.id]
        effects.upsert("history", {"key": event.key.decode()}, {"ids": ids})

    def history(self, key: str = "k") -> list[str]:
        for row in self.store.rows.get("history", {}).values():
            if row["key"] == key:
                return list(row["ids"])
        return []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        self.letters.append((event.id, failure))

    def committed(self, worker: PartitionWorker, applied: BatchResult) -> None:
        self.applied = applied

    def blocked(self, worker: PartitionWorker, error: BaseException | None) -> None:
        self.held_up.append(type(error).__name__)

    def missed(self, worker: PartitionWorker) -> None:
        self.missed_at.append(worker.expected)

    def reached(self, worker: PartitionWorker) -> int:
        return max(worker.next, self.looked_at)

    def pause(self, worker: PartitionWorker) -> None:
        self.paused.append(True)

    def resume(self, worker: PartitionWorker) -> None:
        self.paused.append(False)


def on_stage(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A plain test from an async one."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*given, **named), 60))

    return run


async def opened(**choices: Any) -> Scene:
    scene = Scene(**choices)
    await scene.store.open("orders")
    return scene


@on_stage
async def test_a_block_is_applied_in_order_and_its_offset_stored() -> None:
    scene = await opened()
    await scene.worker.process([event(3), event(5), event(9)])
    assert scene.history() == ["e3", "e5", "e9"]
    assert scene.store.records.offsets == {P0: 10}
    assert scene.worker.next == 10


@on_stage
async def test_what_comes_again_is_passed_over() -> None:
    scene = await opened()
    await scene.worker.process([event(0), event(1)])
    again = [event(0), event(1), event(2, id="e0"), event(3)]
    scene.worker.next = 0
    await scene.store.reset({P0: 0})
    await scene.worker.process(again)
    assert scene.history() == ["e0", "e1", "e3"]
    assert scene.applied.duplicates == 3


@on_stage
async def test_twice_in_one_block_is_applied_once() -> None:
    scene = await opened()
    await scene.worker.process([event(0, id="a"), event(1, id="a"), event(2, id="b")])
    assert scene.history() == ["a", "b"]


@on_stage
async def test_what_another_worker_has_done_is_passed_over_by_its_position() -> None:
    """Even if the markers are gone."""
    scene = await opened()
    await scene.store.reset({P0: 2})
    await scene.worker.process([event(0), event(1), event(2)])
    assert scene.history() == ["e2"]
    assert scene.store.records.offsets == {P0: 3}


@on_stage
async def test_a_position_that_was_set_back_ends_the_lane() -> None:
    scene = await opened()
    await scene.worker.process([event(0), event(1)])
    await scene.store.reset({P0: 0})
    with pytest.raises(StoredOffsetMoved):
        await scene.worker.process([event(2)])
    assert scene.history() == ["e0", "e1"]


@on_stage
async def test_a_bad_event_does_not_poison_its_neighbours() -> None:
    scene = await opened(max_attempts=3)
    scene.fails["e2"] = 99
    await scene.worker.process([event(number) for number in range(5)])
    assert scene.history() == ["e0", "e1", "e3", "e4"]
    [(name, failure)] = scene.letters
    assert name == "e2"
    assert (failure.reason, failure.attempts) == (Reason.MAX_RETRIES_EXCEEDED, 3)
    assert "it fails" in failure.explanation
    assert scene.store.outcomes()["e2"] is EventOutcome.DEAD
    assert len(scene.slept) == 2
    assert scene.slept[0] < scene.slept[1] * 1.7


@on_stage
async def test_one_that_heals_is_applied_in_its_place() -> None:
    scene = await opened()
    scene.fails["e1"] = 3
    await scene.worker.process([event(number) for number in range(4)])
    assert scene.history() == ["e0", "e1", "e2", "e3"]
    assert scene.letters == []


@on_stage
async def test_an_error_that_shows_only_when_writes_are_carried_out_is_found_by_halves() -> None:
    scene = await opened(max_attempts=1)

    def refuse(table: str, key: Any, values: Any) -> None:
        if values is not None and values["ids"][-1] == "e5":
            raise ValueError("the table does not take it")

    scene.store.database.refuse = refuse
    events = [event(number, key=f"k{number}") for number in range(9)]

    async def write_blindly(each: Event, effects: Any) -> None:
        effects.upsert("history", {"key": (each.key or b"").decode()}, {"ids": [each.id]})

    handlers = Handlers()
    handlers.add((), RegisteredHandler(write_blindly, None, deletes=False))
    worker = PartitionWorker(
        P0, 0, 0, scene.store, ProjectionSpec("orders", handlers, Settings(max_attempts=1)), scene, sleep=scene.sleep
    )
    await worker.process(events)
    assert [name for name, _ in scene.letters] == ["e5"]
    assert len(scene.store.rows["history"]) == 8


@on_stage
async def test_what_is_rejected_is_not_tried_again() -> None:
    scene = await opened()
    scene.error = lambda: Rejected(Reason.PERMANENT_FAILURE, "no such customer", remedy="Add it.")
    scene.fails["e0"] = 99
    await scene.worker.process([event(0)])
    [(_, failure)] = scene.letters
    assert (failure.reason, failure.explanation, failure.attempts) == (Reason.PERMANENT_FAILURE, "no such customer", 1)
    assert scene.slept == []


@on_stage
async def test_a_payload_that_is_no_json_is_set_aside_at_once() -> None:
    scene = await opened()
    await scene.worker.process([event(0), event(1, value=b"{"), event(2)])
    assert scene.history() == ["e0", "e2"]
    assert [failure.reason for _, failure in scene.letters] == [Reason.POISON_MESSAGE]


@on_stage
async def test_a_handler_that_takes_too_long_is_cut_off() -> None:
    scene = await opened(max_attempts=2, time_limit=0.01)

    async def hang(each: Event, effects: Any) -> None:
        await asyncio.Event().wait()

    handlers = Handlers()
    handlers.add((), RegisteredHandler(hang, None, deletes=False))
    spec = ProjectionSpec("orders", handlers, Settings(max_attempts=2, time_limit=0.01))
    await PartitionWorker(P0, 0, 0, scene.store, spec, scene, sleep=scene.sleep).process([event(0)])
    [(_, failure)] = scene.letters
    assert (failure.reason, failure.attempts) == (Reason.PROCESSING_TIMEOUT, 2)


@on_stage
async def test_halt_stops_before_the_event() -> None:
    scene = await opened(max_attempts=1, on_failure="halt")
    scene.fails["e1"] = 99
    with pytest.raises(Halted, match="e1"):
        await scene.worker.process([event(0), event(1), event(2)])
    assert scene.history() == ["e0"]
    assert scene.store.records.offsets == {P0: 1}
    assert scene.letters == []


@on_stage
async def test_a_declaration_that_is_wrong_sets_no_event_aside() -> None:
    scene = await opened()
    scene.error = lambda: ConfigError("there is no table history")
    scene.fails["e1"] = 99
    with pytest.raises(ConfigError, match="no table"):
        await scene.worker.process([event(0), event(1), event(2)])
    assert scene.history() == ["e0"]
    assert scene.letters == []


@on_stage
async def test_a_store_that_is_not_to_be_used_any_more_sets_no_event_aside() -> None:
    """Such as that of a rebuild which is over: no event is to blame, and none is tried again."""
    scene = await opened()
    scene.error = lambda: ProjectionError("the rebuild is over")
    scene.fails["e1"] = 99
    with pytest.raises(ProjectionError, match="is over"):
        await scene.worker.process([event(0), event(1), event(2)])
    assert (scene.letters, scene.slept, scene.history()) == ([], [], [])


@on_stage
async def test_ids_of_any_length_can_be_kept() -> None:
    scene = await opened()
    long = "x" * 10_000
    await scene.worker.process([event(0, id=long), event(1, id=long + "y"), event(2, id=long)])
    assert len(scene.history()) == 2
    assert all(len(each) < 600 for each in scene.store.outcomes())


@on_stage
async def test_a_store_that_is_away_costs_no_attempt() -> None:
    scene = await opened(max_attempts=1)
    times = 0

    async def cut_once(each: Event, effects: Any) -> None:
        nonlocal times
        times += 1
        if times <= 3:
            scene.store.database.cut()
        await scene.append(each, effects)

    handlers = Handlers()
    handlers.add((), RegisteredHandler(cut_once, None, deletes=False))
    await PartitionWorker(
        P0, 0, 0, scene.store, ProjectionSpec("orders", handlers, Settings(max_attempts=1)), scene, sleep=scene.sleep
    ).process([event(0), event(1)])
    assert scene.history() == ["e0", "e1"]
    assert scene.letters == []
    assert "StoreUnavailable" in scene.held_up


@on_stage
async def test_one_that_was_dead_is_tried_again_when_it_comes_again() -> None:
    scene = await opened(max_attempts=1)
    scene.fails["e0"] = 2  # in the block, and by itself
    await scene.worker.process([event(0), event(1)])
    await scene.worker.process([event(2, id="e0", tailrace__redriven="0-0", tailrace__redriven__for="orders")])
    assert scene.history() == ["e1", "e0"]
    assert scene.store.outcomes()["e0"] is EventOutcome.APPLIED


@on_stage
async def test_stale_versions_are_passed_over_and_tombstones_stay() -> None:
    scene = await opened(versions=Versions())
    await scene.worker.process(
        [event(0, entity_version="1"), event(1, entity_version="3"), event(2, entity_version="2")]
    )
    assert scene.history() == ["e0", "e1"]
    await scene.worker.process([event(3, kind="Deleted", entity_version="4"), event(4, entity_version="3")])
    assert scene.store.outcomes()["e4"] is EventOutcome.STALE
    assert scene.store.records.entities == {"k": EntityState(4, deleted=True)}
    await scene.worker.process([event(5, value=None, entity_version="5")])
    assert scene.store.records.entities == {"k": EntityState(5, deleted=True)}


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(1, 8)), st.integers(1, 4))
def test_whatever_the_order_versions_are_applied_one_by_one(order: list[int], size: int) -> None:
    async def play() -> None:
        scene = await opened(versions=Versions(gaps="wait"))
        events = [event(n, id=f"v{version}", entity_version=str(version)) for n, version in enumerate(order)]
        for begin in range(0, len(events), size):
            await scene.worker.process(events[begin : begin + size])
        assert scene.history() == [f"v{version}" for version in range(1, 8)]
        assert scene.store.records.waiting == {}
        assert set(scene.store.outcomes().values()) == {EventOutcome.APPLIED}

    asyncio.run(play())


@on_stage
async def test_what_waits_too_long_is_set_aside_and_a_stale_one_is_not() -> None:
    scene = await opened(versions=Versions(gaps="wait", timeout=60))
    await scene.worker.process(
        [event(0, entity_version="1"), event(1, entity_version="3"), event(2, entity_version="4")]
    )
    scene.now += 59
    await scene.worker.expire()
    assert scene.letters == []
    scene.now += 2
    await scene.worker.expire()
    assert [name for name, _ in scene.letters] == ["e1", "e2"]
    assert scene.store.records.waiting == {}
    assert scene.store.outcomes()["e1"] is EventOutcome.DEAD
    # The missing one, and then what was redriven.
    again = [event(4, id="e1", entity_version="3"), event(5, id="e2", entity_version="4")]
    await scene.worker.process([event(3, entity_version="2"), *again])
    assert scene.history() == ["e0", "e3", "e1", "e2"]


@on_stage
async def test_what_is_due_when_it_has_waited_too_long_is_applied() -> None:
    """Its predecessor was applied, and did not release it."""
    scene = await opened(versions=Versions(gaps="wait", timeout=60), max_attempts=2)
    waits = [event(n, entity_version=str(version)) for n, version in ((1, 3), (2, 4), (3, 4), (4, 6))]
    await scene.worker.process([event(0, entity_version="1"), *waits])
    assert scene.history() == ["e0"]
    scene.store.records.entities["k"] = EntityState(2, deleted=False)
    scene.now += 61
    scene.fails["e1"] = 1
    await scene.worker.expire()
    assert scene.history()[:2] == ["e0", "e1"]
    assert scene.history()[2:] in (["e2"], ["e3"]), "the other one is a second version 4"
    assert [(name, "version 6" in failure.explanation) for name, failure in scene.letters] == [("e4", True)]
    assert scene.store.records.waiting == {}
    assert sorted(scene.store.outcomes().values()) == ["applied", "applied", "applied", "dead", "stale"]


@on_stage
async def test_what_is_due_but_fails_is_set_aside_for_its_own_reason() -> None:
    scene = await opened(versions=Versions(gaps="wait", timeout=60), max_attempts=2)
    await scene.worker.process(
        [event(0, entity_version="1"), event(1, entity_version="3"), event(2, entity_version="4")]
    )
    scene.store.records.entities["k"] = EntityState(2, deleted=False)
    scene.now += 61
    scene.fails["e1"] = 99
    await scene.worker.expire()
    assert [name for name, _ in scene.letters] == ["e1", "e2"]
    assert "it fails" in scene.letters[0][1].explanation
    assert "waited" in scene.letters[1][1].explanation
    assert scene.store.records.waiting == {}
    assert scene.store.outcomes() == {"e0": EventOutcome.APPLIED, "e1": EventOutcome.DEAD, "e2": EventOutcome.DEAD}


@on_stage
async def test_one_that_waited_and_then_fails_is_set_aside_itself() -> None:
    """Not the one that it had waited for."""
    scene = await opened(versions=Versions(gaps="wait"), max_attempts=2)
    scene.fails["e0"] = 99
    await scene.worker.process([event(0, entity_version="2")])
    await scene.worker.process([event(1, entity_version="1"), event(2, key="other", entity_version="1")])
    assert scene.history() == ["e1"]
    assert scene.history("other") == ["e2"]
    assert [name for name, _ in scene.letters] == ["e0"]
    assert scene.store.records.waiting == {}


@on_stage
async def test_replays() -> None:
    scene = await opened()
    await scene.worker.process([event(0)])
    await scene.worker.process([event(1, id="e0", tailrace__replay="r"), event(2, id="new", tailrace__replay="r")])
    assert scene.history() == ["e0", "new"]
    for policy in ("skip", "rebuild"):
        skipping = await opened(on_replay=policy)
        await skipping.worker.process([event(0), event(1, tailrace__replay="r")])
        assert skipping.history() == ["e0"]
        assert skipping.store.records.offsets == {P0: 2}


@on_stage
async def test_a_replay_behind_the_horizon_is_not_guessed() -> None:
    scene = await opened()
    await scene.worker.process([event(0), event(1)])
    assert await scene.store.prune(1001, 100) == 1
    again = {"timestamp": "1000", "tailrace__replay": "r"}
    await scene.worker.process([event(2, id="e0", **again), event(3, id="e1", timestamp="1001", tailrace__replay="r")])
    # For the first time, however late: its marker cannot have been pruned.
    await scene.worker.process([event(4, timestamp="5")])
    assert scene.history() == ["e0", "e1", "e4"]
    assert [name for name, _ in scene.letters] == ["e0"]


@on_stage
async def test_a_full_lane_asks_for_a_pause_and_goes_on_by_itself() -> None:
    scene = await opened(events=2, within=0.0)
    for offset in range(20):
        scene.worker.put(event(offset), offset)
    assert scene.paused == [True]
    running = asyncio.create_task(scene.worker.run())
    while len(scene.history()) < 20:
        await asyncio.sleep(0)
    running.cancel()
    assert scene.paused == [True, False]
    assert scene.history() == [f"e{offset}" for offset in range(20)]


@on_stage
async def test_where_reading_begins_is_stored_before_anything_comes() -> None:
    scene = await opened()
    scene.worker.next = 17
    running = asyncio.create_task(scene.worker.run())
    while not scene.store.records.offsets:
        await asyncio.sleep(0)
    running.cancel()
    assert scene.store.records.offsets == {P0: 17}


@on_stage
async def test_what_is_read_again_behind_the_horizon_is_not_guessed() -> None:
    """After a reset, whatever the times of the records: there was a marker, and it is gone."""
    scene = await opened()
    await scene.worker.process([event(0), event(1, timestamp="5"), event(2)])
    assert await scene.store.prune(100, 10) == 1
    await scene.store.reset({P0: 0})
    again = PartitionWorker(
        P0, 0, (await scene.store.furthest())[P0], scene.store, scene.worker._spec, scene, sleep=scene.sleep
    )
    await again.process([event(0), event(1, timestamp="5"), event(2), event(3)])
    assert scene.history() == ["e0", "e1", "e2", "e3"]
    assert [name for name, _ in scene.letters] == ["e1"]


@on_stage
async def test_what_waited_is_told_again_in_a_rebuild_too() -> None:
    scene = await opened(versions=Versions(gaps="wait"))
    seen: list[tuple[str, bool]] = []

    async def look(each: Event, effects: Any) -> None:
        seen.append((each.id, each.is_replay))

    handlers = Handlers()
    handlers.add((), RegisteredHandler(look, None, deletes=False))
    worker = PartitionWorker(P0, 0, 0, scene.store, ProjectionSpec("orders", handlers, scene.worker._settings), scene)
    for each in (event(0, entity_version="2"), event(1, entity_version="1")):
        each.is_rebuild = True
        await worker.process([each])
    assert seen == [("e1", True), ("e0", True)]


@on_stage
async def test_a_lane_at_rest_stores_how_far_it_has_looked() -> None:
    scene = await opened()
    await scene.worker.process([event(0)])
    await scene.worker.store_reached(5)
    assert scene.store.records.offsets == {P0: 5}
    scene.worker.put(event(7), 1)
    await scene.worker.store_reached(9)
    assert scene.store.records.offsets == {P0: 5}, "something is left to apply"


@on_stage
async def test_a_lane_takes_only_what_follows_the_last_event_it_was_given() -> None:
    scene = await opened(within=0.0)
    scene.worker.put(event(0), 0)
    scene.worker.put(event(3), 1)  # the log has no event between
    scene.worker.put(event(5), 5)  # 4 was dropped on its way
    scene.worker.put(event(6), 6)
    assert scene.missed_at == [4, 4]
    for offset, follows in ((3, 0), (4, 4), (5, 5), (6, 6)):  # read again from before
        scene.worker.put(event(offset), follows)
    running = asyncio.create_task(scene.worker.run())
    while len(scene.history()) < 5:
        await asyncio.sleep(0)
    running.cancel()
    assert scene.history() == ["e0", "e3", "e4", "e5", "e6"]
    assert scene.missed_at == [4, 4]


@on_stage
async def test_a_lane_has_work_as_soon_as_something_waits_in_it() -> None:
    """Whatever it does meanwhile: a store that does not answer when it only notes a position must be noticed."""
    scene = await opened(within=0.0)
    asked = asyncio.Event()

    @asynccontextmanager
    async def silent(_: Partition) -> AsyncIterator[None]:
        asked.set()
        await asyncio.Event().wait()
        yield

    scene.store.transaction = silent  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(scene.worker.run())
    await asked.wait()
    assert scene.worker.busy_since is None
    scene.worker.put(event(0), 0)
    assert scene.worker.busy_since is not None
    running.cancel()


@on_stage
async def test_a_block_of_slow_events_gets_on_with_each_of_them() -> None:
    scene = await opened()
    seen = []

    async def look(_: Event, __: Any) -> None:
        await asyncio.sleep(0)
        seen.append(worker.busy_since)
        worker.busy_since = 0.0

    handlers = Handlers()
    handlers.add((), RegisteredHandler(look, None, deletes=False))
    worker = PartitionWorker(P0, 0, 0, scene.store, ProjectionSpec("orders", handlers, scene.worker._settings), scene)
    worker.busy_since = 0.0
    await worker.process([event(offset) for offset in range(3)])
    assert len(seen) == 3
    assert all(seen), "each handler that is called is progress"


@on_stage
async def test_large_events_fill_a_lane_too() -> None:
    scene = await opened()
    for offset in range(5):
        scene.worker.put(event(offset, value=b"x" * (8 << 20)), offset)
    assert scene.paused == [True]


@given(st.integers(2, 50), st.data())
def test_a_cut_keeps_all_in_order(size: int, data: st.DataObject) -> None:
    index = data.draw(st.none() | st.integers(0, size - 1))
    part = [event(number) for number in range(size)]
    pieces = split_batch(part, index)
    assert [each for piece in pieces for each in piece] == part
    assert all(0 < len(piece) < size for piece in pieces)
    if index is not None:
        assert [part[index]] in [list(piece) for piece in pieces]


Handle = Callable[[Event, Any], Awaitable[None]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), min_size=1, max_size=40),
    st.sets(st.integers(0, 12), max_size=4),
    st.integers(1, 7),
)
def test_the_projection_is_the_fold_of_its_events(told: list[tuple[int, str]], bad: set[int], size: int) -> None:
    """Duplicates, bad events, any size of block: of each key the first of each good event, in order."""

    async def play() -> None:
        scene = await opened(max_attempts=1)
        scene.fails = {f"{number}{key}": 10_000 for number in bad for key in "abc"}
        events = [event(n, id=f"{number}{key}", key=key) for n, (number, key) in enumerate(told)]
        for begin in range(0, len(events), size):
            await scene.worker.process(events[begin : begin + size])
        for key in "abc":
            ids = [f"{number}{key}" for number, where in told if where == key and number not in bad]
            assert scene.history(key) == list(dict.fromkeys(ids))
        assert {name for name, _ in scene.letters} == {f"{number}{key}" for number, key in told if number in bad}

    asyncio.run(play())
