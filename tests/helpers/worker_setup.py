"""A partition worker on a store in memory, for tests of the projection core."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from helpers.memory_store import MemoryStore
from tailrace.projections.core.apply import BatchResult
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.failures import Failure
from tailrace.projections.core.handlers import Handler, Handlers, RegisteredHandler
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.settings import ProjectionSpec, Settings
from tailrace.projections.core.store import Partition

P0 = Partition("orders", 0)


def event(offset: int, *, key: str = "k", kind: str = "Happened", value: bytes | None = b"{}", **more: str) -> Event:
    headers = {"id": f"e{offset}", "type": kind, "timestamp": str(1000 + offset), **more}
    pairs = [(name.replace("__", "."), text.encode()) for name, text in headers.items()]
    return read_event(P0, offset, key.encode(), value, pairs, 0)


class WorkerSetup:
    """A partition worker on a store in memory. Its handler appends event ids to `history`, by key."""

    def __init__(self, **choices: Any) -> None:
        self.store = MemoryStore()
        self.dead_letters: list[tuple[str, Failure]] = []
        self.blocked_by: list[str] = []
        self.slept: list[float] = []
        self.now = 1_000_000.0
        self.fails: dict[str, int] = {}
        """How often events fail before they succeed, by id."""
        self.error: Callable[[], Exception] = lambda: ValueError("it fails")
        self.result = BatchResult()
        self.paused: list[bool] = []
        self.read_to = 0
        handlers = Handlers()
        handlers.add((), RegisteredHandler(self.append, None, deletes=False))
        handlers.add(("Deleted",), RegisteredHandler(self.append, None, deletes=True))
        self._settings = Settings(**choices)
        self.worker = self._worker(handlers)

    def _worker(self, handlers: Handlers) -> PartitionWorker:
        spec = ProjectionSpec("orders", handlers, self._settings)
        return PartitionWorker(P0, 0, 0, self.store, spec, self, sleep=self.sleep, clock=lambda: self.now)

    def worker_with(self, handler: Handler) -> PartitionWorker:
        """Returns another worker on the same store, with this handler for all events."""
        handlers = Handlers()
        handlers.add((), RegisteredHandler(handler, None, deletes=False))
        return self._worker(handlers)

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
        self.dead_letters.append((event.id, failure))

    def committed(self, worker: PartitionWorker, result: BatchResult) -> None:
        self.result = result

    def blocked(self, worker: PartitionWorker, error: BaseException | None) -> None:
        self.blocked_by.append(type(error).__name__)

    def reached(self, worker: PartitionWorker) -> int:
        return max(worker.next, self.read_to)

    def pause(self, worker: PartitionWorker) -> None:
        self.paused.append(True)

    def resume(self, worker: PartitionWorker) -> None:
        self.paused.append(False)


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a plain test of an async one."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*given, **named), 60))

    return run


async def opened(**choices: Any) -> WorkerSetup:
    setup = WorkerSetup(**choices)
    await setup.store.open("orders")
    return setup
