"""An agent of `app.events(…)` with partition workers on a store in memory, without Kafka."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterable, Callable, Coroutine
from typing import Any

from faust.types import AgentT

from helpers.memory_store import MemoryStore
from tailrace.projections.core.apply import BatchResult
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.failures import Failure
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.agent_stream import AgentStream
from tailrace.projections.faust.app import projection_app

AgentBody = Callable[[AgentStream], Coroutine[Any, Any, None]]


async def append(event: Event, effects: Any) -> None:
    """Appends the event's id to the history of its partition, in a way that is not idempotent."""
    key = {"key": str(event.partition.number)}
    row = await effects.fetch_one("history", key)
    effects.upsert("history", key, {"ids": [*(row["ids"] if row else []), event.id]})


class AgentSetup:
    """The callbacks of the partition workers, and what they have reported."""

    def __init__(self, body: AgentBody, *, partitions: int = 1, concurrency: int = 1, **settings: Any) -> None:
        self.app = projection_app("shop")
        self.store = MemoryStore()
        self.channel = self.app.events("orders", store=self.store, **settings)
        self.agent: AgentT[Any] = self.app.agent(self.channel, concurrency=concurrency)(body)
        self.dead_letters: list[tuple[str, Failure]] = []
        self.slept: dict[int, list[float]] = defaultdict(list)
        self.outcomes: dict[str, int] = defaultdict(int)
        self.delay = 0.0
        self.agent_tasks: list[asyncio.Task[None]] = []
        self.worker_tasks: list[asyncio.Task[None]] = []
        self.workers = [self.new_worker(number) for number in range(partitions)]

    def new_worker(self, number: int, start: int = 0) -> PartitionWorker:
        async def sleep(seconds: float) -> None:
            self.slept[number].append(seconds)
            await asyncio.sleep(self.delay)

        spec = self.channel.projection.spec
        return PartitionWorker(Partition("orders", number), start, start, self.store, spec, self, sleep=sleep)

    async def start(self) -> None:
        await self.store.open("shop")
        for index in range(self.agent.concurrency):
            stream = AgentStream(self.channel, app=self.app, concurrency_index=index)
            result = self.agent.fun(stream)
            self.agent_tasks.append(asyncio.create_task(_drain(result)))
        self.worker_tasks = [asyncio.create_task(worker.run()) for worker in self.workers]

    async def stop(self) -> None:
        for task in (*self.agent_tasks, *self.worker_tasks):
            task.cancel()
        await asyncio.gather(*self.agent_tasks, *self.worker_tasks, return_exceptions=True)

    def publish(self, *offsets: int, partition: int = 0, value: bytes = b"{}", **headers: str) -> None:
        for offset in offsets:
            pairs = {"id": f"p{partition}-{offset}", "type": "Happened", "timestamp": str(1000 + offset), **headers}
            encoded = [(name.replace("__", "."), text.encode()) for name, text in pairs.items()]
            worker = self.workers[partition]
            worker.put(read_event(worker.partition, offset, b"k", value, encoded, 0))

    def history(self, partition: int = 0) -> list[str]:
        rows = self.store.rows.get("history", {}).values()
        return next((list(row["ids"]) for row in rows if row["key"] == str(partition)), [])

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition; raises the error of a task that ends before."""
        async with asyncio.timeout(20):
            while not condition():
                for task in (*self.agent_tasks, *self.worker_tasks):
                    if task.done():
                        task.result()
                        raise AssertionError("a task has ended")
                await asyncio.sleep(0)

    async def until_applied(self, count: int, partition: int = 0) -> None:
        worker = self.workers[partition]
        await self.until(lambda: worker.next >= count)

    # Called by partition workers.

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        self.dead_letters.append((event.id, failure))

    def committed(self, worker: PartitionWorker, result: BatchResult) -> None:
        for outcome, count in result.outcomes.items():
            self.outcomes[outcome.value] += count
        self.outcomes["duplicate"] += result.duplicates

    def blocked(self, worker: PartitionWorker, error: BaseException | None) -> None:
        pass

    def missed(self, worker: PartitionWorker) -> None:
        raise AssertionError("nothing is missed")

    def reached(self, worker: PartitionWorker) -> int:
        return worker.next

    def pause(self, worker: PartitionWorker) -> None:
        pass

    def resume(self, worker: PartitionWorker) -> None:
        pass


async def _drain(result: Any) -> None:
    if isinstance(result, AsyncIterable):
        async for _ in result:
            pass
    else:
        await result


async def started(body: AgentBody, **options: Any) -> AgentSetup:
    setup = AgentSetup(body, **options)
    await setup.start()
    return setup
