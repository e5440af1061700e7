"""A deterministic scheduler with simulated time: tasks are greenlets, and one seed decides every order and delay.

Product code runs unchanged. Where it would block (a lock, a wait, a request to a server), its task is suspended, and
the scheduler resumes the task that is due next. A crashed process gets `Crashed` at each of its next steps, so nothing
that it still does has an effect; requests that are on their way arrive nevertheless.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

START = 1_700_000_000.0
"""The simulated Unix time at which a run begins."""
STUCK_STEPS = 400_000
"""A run with more steps is reported as a hang."""


class Crashed(BaseException):
    """Raised in a process that was killed. Not an Exception: product code must not handle it."""


class Hang(AssertionError):
    """The run did not end: a deadlock, a livelock, or an I10 violation."""


class Process:
    """A simulated operating system process."""

    def __init__(self, name: str, host: str = "") -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.paused_until = 0.0

    def __repr__(self) -> str:
        return self.name


class Task(greenlet):
    """One thread of a process."""

    def __init__(self, simulation: Simulation, process: Process, function: Callable[[], Any]) -> None:
        super().__init__(function, parent=simulation.hub)
        self.process = process
        self.turn = 0
        """Increases with each resumption: entries of the queue for an earlier one are void."""


class Simulation:
    """The clock, the queue of what is due, and the random numbers of one run."""

    def __init__(self, seed: object) -> None:
        self.random = random.Random(str(seed))
        self.now = 0.0
        self.hub = getcurrent()
        self.steps = 0
        self._queue: list[tuple[float, float, int, Task | None, Any]] = []
        self._count = 0
        self.tasks: list[Task] = []
        self.failure: BaseException | None = None
        """The first error that a task raised, which ends the run."""
        self.trace: list[str] | None = None

    def note(self, text: str) -> None:
        """Adds a line to the trace of the run, if there is one."""
        if self.trace is not None:
            task = getcurrent()
            who = task.process.name if isinstance(task, Task) else "servers"
            self.trace.append(f"{self.now:9.4f} {who}: {text}")

    def spawn(self, process: Process, function: Callable[[], Any]) -> Task:
        """Starts a thread of a process."""

        def run(_woken: object) -> None:
            try:
                if process.alive:
                    function()
            except Crashed:
                pass
            except BaseException as error:  # noqa: BLE001 - reported by `run`
                self.failure = self.failure or error

        task = Task(self, process, run)
        self.tasks.append(task)
        self._push(self.now, task, 0)
        return task

    def at(self, delay: float, action: Callable[[], Any]) -> None:
        """Calls `action` after a delay, outside any process: a packet that arrives, a timer of a server."""
        self._push(self.now + delay, None, action)

    def delay(self, mean: float = 0.002) -> float:
        """Returns a random latency, mostly near `mean`, rarely much longer."""
        chance = self.random.random
        return mean * 2 * chance() if chance() < 0.97 else mean * 50 * chance()

    def current(self) -> Task:
        """The running task. Raises Crashed if its process was killed."""
        task = getcurrent()
        assert isinstance(task, Task), "simulated calls are made by tasks"
        if not task.process.alive:
            raise Crashed
        return task

    def suspend(self, seconds: float | None) -> bool:
        """Suspends the running task until `wake` (True) or for so long (False); None waits without a limit."""
        task = self.current()
        woken = task.turn
        if seconds is not None:
            self._push(self.now + max(seconds, 0.0), task, woken)
        result = self.hub.switch()
        if not task.process.alive:
            raise Crashed
        return bool(result)

    def sleep(self, seconds: float) -> None:
        self.suspend(seconds)

    def wake(self, task: Task) -> None:
        """Resumes a suspended task."""
        self._push(self.now, task, -1 - task.turn)

    def crash(self, process: Process) -> None:
        """Kills a process with SIGKILL. If it is the running one, the caller must raise Crashed."""
        if process.alive:
            self.note(f"CRASH of {process.name}")
            process.alive = False
            for task in self.tasks:
                if task.process is process and not task.dead:
                    self.wake(task)

    def run(self, done: Callable[[], bool], until: float) -> bool:
        """Runs until `done` or the simulated time `until`; returns whether it was done. Raises what a task raised."""
        queue = self._queue
        while queue and not done():
            if queue[0][0] > until:
                return False
            at, _, _, task, what = heapq.heappop(queue)
            self.now = max(self.now, at)
            self.steps += 1
            if self.steps > STUCK_STEPS:
                raise Hang(f"no end after {STUCK_STEPS} steps")
            if task is None:
                what()
            elif not task.dead:
                turn = what if what >= 0 else -1 - what
                if turn != task.turn:
                    continue
                if task.process.alive and task.process.paused_until > self.now:
                    self._push(task.process.paused_until, task, what)
                    continue
                task.turn += 1
                task.switch(what < 0)
            if self.failure is not None:
                raise self.failure
        return done()

    def end(self) -> None:
        """Kills all processes and lets their tasks end, so that nothing of this run is left for the next one."""
        for process in {id(task.process): task.process for task in self.tasks}.values():
            process.alive = False
        for task in self.tasks:
            while not task.dead and task:
                task.turn += 1
                task.switch(False)
        self.tasks.clear()
        self._queue.clear()

    def _push(self, at: float, task: Task | None, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at, self.random.random(), self._count, task, what))
