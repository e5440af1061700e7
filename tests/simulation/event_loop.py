"""An asyncio event loop whose clock and delays belong to a simulation.

Callbacks run in the order in which they were registered, as asyncio promises. A task may be resumed late, after each
`await`, as if what it waits for took longer: the seed decides. Several loops, one per process, run in one real thread.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from simulation.scheduler import Simulation
from simulation.stdlib import Condition

LATE = 0.15
"""The chance that a task is resumed late."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Call `complete` in a task of the simulation: the loop's thread."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation
        self._wakes = Condition(simulation)
        self._late: set[int] = set()
        self.set_task_factory(_python_task)

    def time(self) -> float:
        return self._simulation.now

    def complete(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Runs until `main` is done, and returns its result."""
        task = self.create_task(main)
        while not task.done():
            self._run_once()
        return task.result()

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = self._call_soon(callback, args, context)  # type: ignore[attr-defined]
        self._wakes.wake_all()
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Runs the function as another thread of the process."""
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            result = func(*args)
            self.call_soon_threadsafe(lambda: future.done() or future.set_result(result))

        self._simulation.spawn(self._simulation.current().process, run)
        return future

    def _run_once(self) -> None:
        simulation = self._simulation
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        ready = self._ready  # type: ignore[attr-defined]
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= simulation.now):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
        if not ready:
            wait = scheduled[0]._when - simulation.now if scheduled else None
            self._wakes.wait_for(lambda: bool(ready), wait)
            return
        handle = ready.popleft()
        if handle._cancelled:
            return
        task = getattr(handle._callback, "__self__", None)
        is_task = isinstance(task, asyncio.tasks._PyTask)  # type: ignore[attr-defined]
        if is_task and id(handle) not in self._late and simulation.random.random() < LATE:
            self._late.add(id(handle))
            simulation.at(simulation.delay(0.01), lambda: (ready.append(handle), self._wakes.wake_all()))
            return
        self._late.discard(id(handle))
        asyncio.events._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio.events._set_running_loop(None)


def _python_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """A task whose handles show which task they belong to."""
    task: asyncio.Task[Any] = asyncio.tasks._PyTask(coroutine, loop=loop, **options)  # type: ignore[attr-defined]
    return task
