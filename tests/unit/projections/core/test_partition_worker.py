"""The partition worker: its queue, retries, splits around a failing event, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helpers.worker_setup import P0, async_test, event, opened
from tailrace.backoff import Backoff
from tailrace.errors import ConfigError, Halted, ProjectionError, Reason, Rejected
from tailrace.projections.core.event import Event
from tailrace.projections.core.settings import Settings
from tailrace.projections.core.store import EventOutcome, Partition


@async_test
async def test_a_failing_event_does_not_affect_its_neighbours() -> None:
    setup = await opened(max_attempts=3)
    setup.fails["e2"] = 99
    await setup.worker.process([event(number) for number in range(5)])
    assert setup.history() == ["e0", "e1", "e3", "e4"]
    [(name, failure)] = setup.dead_letters
    assert name == "e2"
    assert (failure.reason, failure.attempts) == (Reason.MAX_RETRIES_EXCEEDED, 3)
    assert "it fails" in failure.explanation
    assert setup.store.outcomes()["e2"] is EventOutcome.DEAD
    assert len(setup.slept) == 2
    assert setup.slept[0] < setup.slept[1] * 1.7


@async_test
async def test_the_delays_are_those_of_the_settings() -> None:
    setup = await opened(max_attempts=5, backoff=Backoff(base=0.5, maximum=4, multiplier=3, jitter=0))
    setup.fails["e0"] = 9
    await setup.worker.process([event(0)])
    assert setup.slept == [0.5, 1.5, 4, 4]


@pytest.mark.parametrize("wrong", [{"base": 0}, {"maximum": 0.5}, {"multiplier": 0.9}, {"jitter": 1}])
def test_delays_that_would_loop_without_waiting_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Settings(backoff=Backoff(**wrong))


@async_test
async def test_an_event_that_succeeds_later_keeps_its_order() -> None:
    setup = await opened()
    setup.fails["e1"] = 3
    await setup.worker.process([event(number) for number in range(4)])
    assert setup.history() == ["e0", "e1", "e2", "e3"]
    assert setup.dead_letters == []


@async_test
async def test_an_error_of_deferred_writes_is_found_by_halving_the_batch() -> None:
    setup = await opened(max_attempts=1)

    def refuse(table: str, key: Any, values: Any) -> None:
        if values is not None and values["ids"][-1] == "e5":
            raise ValueError("the table does not accept it")

    setup.store.database.refuse = refuse
    events = [event(number, key=f"k{number}") for number in range(9)]

    async def write_blindly(each: Event, effects: Any) -> None:
        effects.upsert("history", {"key": (each.key or b"").decode()}, {"ids": [each.id]})

    worker = setup.worker_with(write_blindly)
    await worker.process(events)
    assert [name for name, _ in setup.dead_letters] == ["e5"]
    assert len(setup.store.rows["history"]) == 8


@async_test
async def test_a_rejected_event_is_not_retried() -> None:
    setup = await opened()
    setup.error = lambda: Rejected(Reason.PERMANENT_FAILURE, "no such customer", remedy="Add it.")
    setup.fails["e0"] = 99
    await setup.worker.process([event(0)])
    [(_, failure)] = setup.dead_letters
    assert (failure.reason, failure.explanation, failure.attempts) == (Reason.PERMANENT_FAILURE, "no such customer", 1)
    assert setup.slept == []


@async_test
async def test_a_payload_that_is_not_json_is_dead_lettered_at_once() -> None:
    setup = await opened()
    await setup.worker.process([event(0), event(1, value=b"{"), event(2)])
    assert setup.history() == ["e0", "e2"]
    assert [failure.reason for _, failure in setup.dead_letters] == [Reason.POISON_MESSAGE]


@async_test
async def test_a_handler_that_takes_too_long_is_cancelled() -> None:
    setup = await opened(max_attempts=2, time_limit=0.01)

    async def hang(each: Event, effects: Any) -> None:
        await asyncio.Event().wait()

    await setup.worker_with(hang).process([event(0)])
    [(_, failure)] = setup.dead_letters
    assert (failure.reason, failure.attempts) == (Reason.PROCESSING_TIMEOUT, 2)


@async_test
async def test_halt_stops_before_the_event() -> None:
    setup = await opened(max_attempts=1, on_failure="halt")
    setup.fails["e1"] = 99
    with pytest.raises(Halted, match="e1"):
        await setup.worker.process([event(0), event(1), event(2)])
    assert setup.history() == ["e0"]
    assert setup.store.records.offsets == {P0: 1}
    assert setup.dead_letters == []


@async_test
async def test_a_wrong_declaration_dead_letters_no_event() -> None:
    setup = await opened()
    setup.error = lambda: ConfigError("there is no table history")
    setup.fails["e1"] = 99
    with pytest.raises(ConfigError, match="no table"):
        await setup.worker.process([event(0), event(1), event(2)])
    assert setup.history() == ["e0"]
    assert setup.dead_letters == []


@async_test
async def test_an_error_of_the_whole_projection_dead_letters_no_event() -> None:
    """Such as a rebuild that is over: no event is retried."""
    setup = await opened()
    setup.error = lambda: ProjectionError("the rebuild is over")
    setup.fails["e1"] = 99
    with pytest.raises(ProjectionError, match="is over"):
        await setup.worker.process([event(0), event(1), event(2)])
    assert (setup.dead_letters, setup.slept, setup.history()) == ([], [], [])


@async_test
async def test_an_unavailable_store_costs_no_attempt() -> None:
    setup = await opened(max_attempts=1)
    times = 0

    async def cut_once(each: Event, effects: Any) -> None:
        nonlocal times
        times += 1
        if times <= 3:
            setup.store.database.cut()
        await setup.append(each, effects)

    await setup.worker_with(cut_once).process([event(0), event(1)])
    assert setup.history() == ["e0", "e1"]
    assert setup.dead_letters == []
    assert "StoreUnavailable" in setup.blocked_by


@async_test
async def test_a_redriven_dead_letter_is_tried_again() -> None:
    setup = await opened(max_attempts=1)
    setup.fails["e0"] = 2  # in the batch, and alone
    await setup.worker.process([event(0), event(1)])
    await setup.worker.process([event(2, id="e0", tailrace__redriven="0-0", tailrace__redriven__for="orders")])
    assert setup.history() == ["e1", "e0"]
    assert setup.store.outcomes()["e0"] is EventOutcome.APPLIED


@async_test
async def test_a_full_queue_pauses_the_partition_and_resumes_it() -> None:
    setup = await opened(events=2, within=0.0)
    for offset in range(20):
        setup.worker.put(event(offset))
    assert setup.paused == [True]
    running = asyncio.create_task(setup.worker.run())
    while len(setup.history()) < 20:
        await asyncio.sleep(0)
    running.cancel()
    assert setup.paused == [True, False]
    assert setup.history() == [f"e{offset}" for offset in range(20)]


@async_test
async def test_the_start_offset_is_stored_before_the_first_event() -> None:
    setup = await opened()
    setup.worker.next = 17
    running = asyncio.create_task(setup.worker.run())
    while not setup.store.records.offsets:
        await asyncio.sleep(0)
    running.cancel()
    assert setup.store.records.offsets == {P0: 17}


@async_test
async def test_an_idle_worker_stores_how_far_the_log_was_read() -> None:
    setup = await opened()
    await setup.worker.process([event(0)])
    await setup.worker.store_reached(5)
    assert setup.store.records.offsets == {P0: 5}
    setup.worker.put(event(7))
    await setup.worker.store_reached(9)
    assert setup.store.records.offsets == {P0: 5}, "an event is queued"


@async_test
async def test_an_event_that_was_queued_before_is_ignored() -> None:
    setup = await opened(within=0.0)
    for offset in (0, 3, 4, 3, 0, 5):  # the log has no events 1 and 2
        setup.worker.put(event(offset))
    running = asyncio.create_task(setup.worker.run())
    while len(setup.history()) < 4:
        await asyncio.sleep(0)
    running.cancel()
    assert setup.history() == ["e0", "e3", "e4", "e5"]


@async_test
async def test_a_worker_is_busy_as_soon_as_an_event_is_queued() -> None:
    """Even while it only stores an offset: a store that does not answer must be noticed."""
    setup = await opened(within=0.0)
    asked = asyncio.Event()

    @asynccontextmanager
    async def silent(_: Partition) -> AsyncIterator[None]:
        asked.set()
        await asyncio.Event().wait()
        yield

    setup.store.transaction = silent  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(setup.worker.run())
    await asked.wait()
    assert setup.worker.busy_since is None
    setup.worker.put(event(0))
    assert setup.worker.busy_since is not None
    running.cancel()


@async_test
async def test_each_handler_call_of_a_batch_is_progress() -> None:
    setup = await opened()
    times = []

    async def look(_: Event, __: Any) -> None:
        await asyncio.sleep(0)
        times.append(worker.busy_since)
        worker.busy_since = 0.0

    worker = setup.worker_with(look)
    worker.busy_since = 0.0
    await worker.process([event(offset) for offset in range(3)])
    assert len(times) == 3
    assert all(times), "each handler call is progress"


@async_test
async def test_large_events_fill_the_queue_too() -> None:
    setup = await opened()
    for offset in range(5):
        setup.worker.put(event(offset, value=b"x" * (8 << 20)))
    assert setup.paused == [True]
