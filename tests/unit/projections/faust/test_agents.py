"""Agents of `app.events(…)`: what they get, how they settle it, and what happens when they misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from helpers.agent_setup import AgentSetup, append, started
from helpers.memory_store import MemoryTransaction
from helpers.worker_setup import async_test
from tailrace.errors import (
    AgentEnded,
    ConfigError,
    EventNotApplied,
    EventNotSettled,
    EventSettledTwice,
    Reason,
    StoreUnavailable,
)
from tailrace.projections.core import handover
from tailrace.projections.core.agent_events import AgentEvent
from tailrace.projections.core.store import EventOutcome
from tailrace.projections.faust.agent_stream import AgentStream

ALWAYS = 99


async def apply_each(stream: AgentStream) -> None:
    async for event in stream:
        async with event.once() as effects:
            await append(event, effects)


@async_test
async def test_each_event_is_applied_in_order_and_committed_when_once_returns() -> None:
    seen: list[tuple[str, int | None]] = []

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once() as effects:
                await append(event, effects)
            seen.append((event.id, setup.store.records.offsets.get(event.partition)))

    setup = await started(agent)
    setup.publish(*range(4))
    await setup.until_applied(4)
    await setup.until(lambda: len(seen) == 4)
    assert setup.history() == ["p0-0", "p0-1", "p0-2", "p0-3"]
    assert seen == [(f"p0-{n}", n + 1) for n in range(4)]
    await setup.stop()


@async_test
async def test_events_that_are_applied_already_never_reach_the_agent() -> None:
    setup = await started(apply_each)
    setup.publish(0, id="same")
    setup.publish(1, id="same", tailrace__replay="r1")
    setup.publish(2)
    await setup.until_applied(3)
    assert setup.history() == ["same", "p0-2"]
    assert setup.outcomes == {"applied": 2, "duplicate": 1}
    await setup.stop()


@async_test
async def test_skip_settles_an_event_without_effects() -> None:
    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            event.skip()

    setup = await started(agent)
    setup.publish(0, 1)
    await setup.until_applied(2)
    assert setup.store.outcomes() == {"p0-0": EventOutcome.SKIPPED, "p0-1": EventOutcome.SKIPPED}
    assert setup.history() == []
    await setup.stop()


class Order(BaseModel):
    order: str


@async_test
async def test_events_are_typed_and_bad_payloads_are_dead_lettered_without_reaching_the_agent() -> None:
    seen: list[Any] = []

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once():
                seen.append(event.data)

    setup = await started(agent, models={"Happened": Order})
    setup.publish(0, value=b'{"order": "o-1"}')
    setup.publish(1, value=b'{"no": 1}')
    setup.publish(2, value=b"not json", type="Other")
    setup.publish(3, value=b"[1]", type="Other")
    await setup.until_applied(4)
    assert seen == [Order(order="o-1"), [1]]
    assert [(name, failure.reason) for name, failure in setup.dead_letters] == [
        ("p0-1", Reason.SCHEMA_VALIDATION_FAILED),
        ("p0-2", Reason.POISON_MESSAGE),
    ]
    await setup.stop()


@async_test
async def test_take_gives_batches_of_one_partition() -> None:
    sizes: list[tuple[int, list[int]]] = []

    async def agent(stream: AgentStream) -> None:
        async for batch in stream.take(5, within=0.01):
            async with batch.once() as effects:
                for event in batch:
                    await append(event, effects)
            sizes.append((batch.partition.number, [event.offset for event in batch]))

    setup = await started(agent, partitions=2)
    await setup.until(lambda: setup.channel.handover.limit == 5)
    for offset in range(8):
        setup.publish(offset, partition=0)
        setup.publish(offset, partition=1)
    await setup.until_applied(8, 0)
    await setup.until_applied(8, 1)
    assert setup.history(0) == [f"p0-{n}" for n in range(8)]
    assert setup.history(1) == [f"p1-{n}" for n in range(8)]
    assert max(len(offsets) for _, offsets in sizes) == 5
    await setup.stop()


@async_test
async def test_a_batch_is_one_transaction_and_is_split_around_the_event_that_fails() -> None:
    calls: list[list[str]] = []

    async def agent(stream: AgentStream) -> None:
        async for batch in stream.take(10, within=0.01):
            calls.append([event.id for event in batch])
            async with batch.once() as effects:
                for event in batch:
                    if event.id == "p0-4":
                        raise ValueError("this one fails")
                    await append(event, effects)

    setup = await started(agent, max_attempts=2)
    await setup.until(lambda: setup.channel.handover.limit == 10)
    setup.publish(*range(8))
    await setup.until_applied(8)
    assert setup.history() == [f"p0-{n}" for n in range(8) if n != 4]
    [(dead, failure)] = setup.dead_letters
    assert (dead, failure.reason, failure.attempts) == ("p0-4", Reason.MAX_RETRIES_EXCEEDED, 2)
    # All, those before it, it alone twice, those after it.
    assert [len(call) for call in calls] == [8, 4, 1, 1, 3]
    await setup.stop()


@async_test
async def test_a_batch_that_fails_as_a_whole_is_halved() -> None:
    async def agent(stream: AgentStream) -> None:
        async for batch in stream.take(16, within=0.01):
            ids = [event.id for event in batch]
            async with batch.once() as effects:
                if "p0-9" in ids:
                    raise ValueError("one of these fails")
                for event in batch:
                    await append(event, effects)

    setup = await started(agent, max_attempts=1)
    setup.publish(*range(16))
    await setup.until_applied(16)
    assert setup.history() == [f"p0-{n}" for n in range(16) if n != 9]
    assert [name for name, _ in setup.dead_letters] == ["p0-9"]
    await setup.stop()


@pytest.mark.parametrize("where", ["before", "inside", "swallowed", "cancelled"])
@async_test
async def test_an_agent_that_fails_gets_the_event_again(where: str) -> None:
    fails = {"p0-1": 3}

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            bad = fails.get(event.id, 0) > 0
            fails[event.id] = fails.get(event.id, 0) - 1
            if bad and where == "before":
                raise ValueError("it fails")
            try:
                async with event.once() as effects:
                    await append(event, effects)
                    if bad and where == "cancelled":
                        raise asyncio.CancelledError
                    if bad:
                        raise ValueError("it fails")
            except ValueError:
                if where != "swallowed":
                    raise

    setup = await started(agent)
    setup.publish(*range(3))
    await setup.until_applied(3)
    assert setup.history() == ["p0-0", "p0-1", "p0-2"]
    assert len(setup.slept[0]) == 3
    assert setup.dead_letters == []
    await setup.stop()


@async_test
async def test_a_failing_partition_does_not_block_the_others() -> None:
    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once() as effects:
                if event.partition.number == 0:
                    raise ValueError("this partition fails")
                await append(event, effects)

    setup = AgentSetup(agent, partitions=3, max_attempts=ALWAYS)
    setup.delay = 0.05
    await setup.start()
    setup.publish(0)
    await setup.until(lambda: setup.slept[0])
    for partition in (1, 2):
        setup.publish(*range(20), partition=partition)
    await setup.until_applied(20, 1)
    await setup.until_applied(20, 2)
    assert setup.workers[0].next == 0
    assert setup.dead_letters == []
    await setup.stop()


@async_test
async def test_a_partition_whose_store_is_locked_does_not_block_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "RESERVED_SECONDS", 0.05)
    setup = await started(apply_each, partitions=2)
    await setup.until(lambda: len(setup.store.records.offsets) == 2)
    async with setup.store.transaction(setup.workers[0].partition) as other_worker:
        await other_worker.position()
        setup.publish(0, partition=0)
        await setup.until(lambda: setup.channel.handover._reserved)
        setup.publish(*range(5), partition=1)
        await setup.until_applied(5, 1)
        assert setup.workers[0].next == 0
    await setup.until_applied(1, 0)
    assert setup.history(0) == ["p0-0"]
    await setup.stop()


@async_test
async def test_a_store_that_always_needs_long_gets_its_events_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that lose their reservations to each other take a task when their transaction is open."""
    monkeypatch.setattr(handover, "RESERVED_SECONDS", 0.005)
    position = MemoryTransaction.position

    async def slow_position(self: MemoryTransaction) -> int | None:
        await asyncio.sleep(0.02)
        return await position(self)

    monkeypatch.setattr(MemoryTransaction, "position", slow_position)
    setup = await started(apply_each, partitions=3)
    for partition in range(3):
        setup.publish(*range(5), partition=partition)
    for partition in range(3):
        await setup.until_applied(5, partition)
        assert setup.history(partition) == [f"p{partition}-{n}" for n in range(5)]
    await setup.stop()


@async_test
async def test_several_tasks_work_on_several_partitions_each_in_order() -> None:
    running = 0
    most = 0
    inside: set[int] = set()

    async def agent(stream: AgentStream) -> None:
        nonlocal running, most
        async for event in stream:
            async with event.once() as effects:
                assert event.partition.number not in inside
                inside.add(event.partition.number)
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.001)
                await append(event, effects)
                running -= 1
                inside.discard(event.partition.number)

    setup = await started(agent, partitions=4, concurrency=3)
    for partition in range(4):
        setup.publish(*range(10), partition=partition)
    for partition in range(4):
        await setup.until_applied(10, partition)
        assert setup.history(partition) == [f"p{partition}-{n}" for n in range(10)]
    assert most == 3
    await setup.stop()


@async_test
async def test_going_on_without_settling_is_refused_and_nothing_is_skipped() -> None:
    errors: list[BaseException] = []

    async def agent(stream: AgentStream) -> None:
        try:
            async for event in stream:
                if event.offset == 1:
                    continue
                async with event.once() as effects:
                    await append(event, effects)
        except EventNotSettled as error:
            errors.append(error)
            raise

    setup = await started(agent)
    setup.publish(*range(3))
    with pytest.raises(EventNotSettled, match=r"the event p0-1 at orders\[0\]@1 was not settled"):
        await setup.until_applied(3)
    assert "event.skip()" in str(errors[0])
    assert setup.history() == ["p0-0"]
    assert setup.workers[0].next == 1
    await setup.stop()


@async_test
async def test_leaving_the_loop_without_settling_is_refused() -> None:
    async def agent(stream: AgentStream) -> None:
        while True:
            async for event in stream:
                if event.offset == 1:
                    break
                async with event.once() as effects:
                    await append(event, effects)

    setup = await started(agent)
    setup.publish(*range(3))
    with pytest.raises(EventNotSettled):
        await setup.until_applied(3)
    assert setup.workers[0].next == 1
    await setup.stop()


@async_test
async def test_an_agent_that_returns_is_reported() -> None:
    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once() as effects:
                await append(event, effects)
            break

    setup = await started(agent)
    setup.publish(*range(2))
    with pytest.raises(AgentEnded, match="has returned"):
        await setup.until_applied(2)
    assert setup.history() == ["p0-0"]
    await setup.stop()


@pytest.mark.parametrize("how", ["nested", "twice", "after", "skip after", "skip inside"])
@async_test
async def test_settling_twice_is_refused(how: str) -> None:
    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once() as effects:
                await append(event, effects)
                if how == "nested":
                    async with event.once():
                        pass
                if how == "skip inside":
                    event.skip()
            if how == "skip after":
                event.skip()
            async with event.once() as effects:
                await append(event, effects)

    setup = await started(agent)
    setup.publish(*range(2))
    with pytest.raises(EventSettledTwice, match="settled before"):
        await setup.until_applied(2)
    assert setup.history() == ([] if how in ("nested", "skip inside") else ["p0-0"])
    await setup.stop()


@async_test
async def test_an_event_of_a_batch_is_settled_with_its_batch() -> None:
    async def agent(stream: AgentStream) -> None:
        async for batch in stream.take(3):
            async with batch[0].once():
                pass

    setup = await started(agent)
    setup.publish(0)
    with pytest.raises(ConfigError, match="part of a batch"):
        await setup.until_applied(1)
    assert setup.workers[0].next == 0
    await setup.stop()


@async_test
async def test_effects_after_the_end_are_refused() -> None:
    kept: list[Any] = []

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once() as effects:
                await append(event, effects)
            kept.append(effects)

    setup = await started(agent)
    setup.publish(0)
    await setup.until(lambda: kept)
    with pytest.raises(RuntimeError, match="has ended"):
        kept[0].upsert("history", {"key": "0"}, {"ids": ["late"]})
    assert setup.history() == ["p0-0"]
    await setup.stop()


@async_test
async def test_an_event_that_another_task_has_open_is_not_overtaken() -> None:
    hold = asyncio.Event()
    errors: list[BaseException] = []

    async def later(event: AgentEvent) -> None:
        try:
            async with event.once() as effects:
                await hold.wait()
                await append(event, effects)
        except BaseException as error:
            errors.append(error)
            raise

    tasks: list[asyncio.Task[None]] = []

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            tasks.append(asyncio.create_task(later(event)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    setup = await started(agent)
    setup.publish(*range(2))
    with pytest.raises(EventNotSettled, match="was not settled"):
        await setup.until_applied(2)
    hold.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(error) for error in errors} == {EventNotApplied}
    assert setup.history() == []
    assert setup.workers[0].next == 0
    await setup.stop()


@async_test
async def test_once_in_another_task_that_is_awaited_works() -> None:
    async def applied(event: AgentEvent) -> None:
        async with event.once() as effects:
            await append(event, effects)

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            await asyncio.create_task(applied(event))

    setup = await started(agent)
    setup.publish(*range(3))
    await setup.until_applied(3)
    assert setup.history() == ["p0-0", "p0-1", "p0-2"]
    await setup.stop()


@async_test
async def test_two_loops_over_one_stream_are_refused() -> None:
    async def other(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once():
                pass

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            await asyncio.create_task(other(stream))
            async with event.once():
                pass

    setup = await started(agent)
    setup.publish(*range(2))
    with pytest.raises(EventNotSettled, match="concurrency=2"):
        await setup.until_applied(2)
    assert setup.workers[0].next == 0
    await setup.stop()


@async_test
async def test_an_agent_that_takes_too_long_is_interrupted() -> None:
    stuck = {"p0-1": 1, "p0-3": ALWAYS}

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once() as effects:
                if stuck.get(event.id, 0) > 0:
                    stuck[event.id] -= 1
                    await asyncio.Event().wait()
                await append(event, effects)

    setup = await started(agent, time_limit=0.05, max_attempts=2)
    setup.publish(*range(5))
    await setup.until_applied(5)
    assert setup.history() == ["p0-0", "p0-1", "p0-2", "p0-4"]
    [(name, failure)] = setup.dead_letters
    assert (name, failure.reason) == ("p0-3", Reason.PROCESSING_TIMEOUT)
    [task] = setup.agent_tasks
    assert task.cancelling() == 0
    await setup.stop()


@pytest.mark.parametrize("entered", [False, True])
@async_test
async def test_a_lost_partition_is_not_applied_here(entered: bool) -> None:
    """The worker is cancelled while the agent has the event: the next owner applies it, and this one does not."""
    errors: list[BaseException] = []
    has_event, go_on = asyncio.Event(), asyncio.Event()

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            if not entered:
                has_event.set()
                await go_on.wait()
            try:
                async with event.once() as effects:
                    has_event.set()
                    await go_on.wait()
                    await append(event, effects)
            except BaseException as error:
                errors.append(error)
                raise

    setup = await started(agent)
    setup.publish(0)
    await setup.until(has_event.is_set)
    [task] = setup.worker_tasks
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    setup.worker_tasks.clear()
    go_on.set()
    await setup.until(lambda: errors)
    assert type(errors[0]) is EventNotApplied
    assert "lost its partition" in str(errors[0])
    assert setup.history() == []
    setup.workers[0] = setup.new_worker(0)
    setup.worker_tasks.append(asyncio.create_task(setup.workers[0].run()))
    setup.publish(0)
    await setup.until_applied(1)
    assert setup.history() == ["p0-0"]
    await setup.stop()


@async_test
async def test_a_failed_commit_is_reported_to_the_agent_and_tried_again() -> None:
    errors: list[BaseException] = []

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            try:
                async with event.once() as effects:
                    await append(event, effects)
                    if event.offset == 1 and not errors:
                        setup.store.database.cut()
            except EventNotApplied as error:
                errors.append(error)

    setup = await started(agent)
    setup.publish(*range(3))
    await setup.until_applied(3)
    assert setup.history() == ["p0-0", "p0-1", "p0-2"]
    assert isinstance(errors[0].__cause__, StoreUnavailable)
    assert "could not be committed" in str(errors[0])
    await setup.stop()


@async_test
async def test_a_stopped_agent_is_no_failure_of_its_event() -> None:
    has_event = asyncio.Event()

    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once() as effects:
                await append(event, effects)
                has_event.set()
                await asyncio.Event().wait()

    setup = await started(agent, max_attempts=1)
    setup.publish(0)
    await setup.until(has_event.is_set)
    [task] = setup.agent_tasks
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    setup.agent_tasks.clear()
    await asyncio.sleep(0.01)
    assert (setup.history(), setup.dead_letters, setup.slept) == ([], [], {})
    assert not setup.worker_tasks[0].done()
    await setup.stop()


@async_test
async def test_a_crash_without_an_event_ends_the_agent() -> None:
    async def agent(stream: AgentStream) -> None:
        async for event in stream:
            async with event.once() as effects:
                await append(event, effects)
            raise ValueError("after the commit")

    setup = await started(agent)
    setup.publish(0, 1)
    with pytest.raises(ValueError, match="after the commit"):
        await setup.until_applied(2)
    assert setup.history() == ["p0-0"]
    await setup.stop()


@async_test
async def test_an_agent_that_fails_at_its_start_after_a_failed_event_does_not_loop() -> None:
    starts = 0

    async def agent(stream: AgentStream) -> None:
        nonlocal starts
        starts += 1
        if starts > 1:
            raise ValueError("at the start")
        async for _ in stream:
            raise ValueError("with an event")

    setup = await started(agent)
    setup.publish(0)
    with pytest.raises(ValueError, match="at the start"):
        await setup.until_applied(1)
    assert starts == 2
    await setup.stop()


@async_test
async def test_an_agent_may_yield() -> None:
    async def agent(stream: AgentStream) -> AsyncIterator[str]:
        async for event in stream:
            async with event.once() as effects:
                await append(event, effects)
                if event.offset == 1 and not setup.slept:
                    raise ValueError("once")
            yield event.id

    setup = await started(agent)  # type: ignore[arg-type]
    setup.publish(*range(3))
    await setup.until_applied(3)
    assert setup.history() == ["p0-0", "p0-1", "p0-2"]
    await setup.stop()


@async_test
async def test_a_stopped_channel_ends_the_agent() -> None:
    setup = await started(apply_each, concurrency=2)
    setup.publish(0)
    await setup.until_applied(1)
    setup.channel._throw(StopAsyncIteration())
    await asyncio.gather(*setup.agent_tasks)
    assert setup.history() == ["p0-0"]
    await setup.stop()


@async_test
async def test_a_batch_for_an_agent_that_takes_single_events_is_split() -> None:
    setup = await started(apply_each)
    await setup.until(lambda: setup.channel.handover._waiting)
    setup.channel.handover.limit = 7
    setup.publish(*range(7))
    await setup.until_applied(7)
    assert setup.history() == [f"p0-{n}" for n in range(7)]
    await setup.stop()


@pytest.mark.parametrize("name", ["items", "events", "noack", "through", "group_by", "filter", "take_events", "join"])
def test_methods_of_streams_that_would_break_the_order_are_refused(name: str) -> None:
    setup = AgentSetup(apply_each)
    stream = AgentStream(setup.channel, app=setup.app)
    with pytest.raises(ConfigError, match="exactly once"):
        getattr(stream, name)("x")
    with pytest.raises(ConfigError, match="take"):
        stream.take(0)


@pytest.mark.parametrize("settings", [{"versions": None}, {"events": 5}, {"on_replay": "rebuild"}, {"unknown": 1}])
def test_settings_that_agents_cannot_have_are_refused(settings: dict[str, Any]) -> None:
    setup = AgentSetup(apply_each)
    with pytest.raises(ConfigError, match="agent's events"):
        setup.app.events("orders", store=setup.store, name="other", **settings)


@async_test
async def test_a_channel_of_events_is_only_for_its_agent() -> None:
    setup = AgentSetup(apply_each)
    with pytest.raises(ConfigError, match="written to"):
        await setup.channel.send(value=b"x")
    with pytest.raises(ConfigError, match="written to"):
        await setup.agent.cast(b"x")
    with pytest.raises(ConfigError, match="outside of its agent"):
        async for _ in setup.channel:
            pass
