"""Simulated stand-ins for `time`, `threading`, `select` and the eventfd, with the calls that the product makes."""

from __future__ import annotations

import time as real_time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from simulation.scheduler import START, Process, Simulation, Task

Clock = SimpleNamespace


def simulated_time(simulation: Simulation) -> Any:
    """A stand-in for the module `time`."""
    return SimpleNamespace(
        monotonic=lambda: simulation.now + 1000.0,
        perf_counter=lambda: simulation.now,
        time=lambda: START + simulation.now,
        time_ns=lambda: int((START + simulation.now) * 1_000_000_000),
        sleep=simulation.sleep,
        strftime=real_time.strftime,
        localtime=real_time.localtime,
    )


class Condition:
    """Also a lock: tasks are switched only where they wait, so a critical section without waits needs none."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._waiting: list[Task] = []

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *_: object) -> None: ...

    def notify_all(self) -> None:
        self._simulation.current()
        self.wake_all()

    def wake_all(self) -> None:
        """The same for servers, which are not tasks."""
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._simulation.wake(task)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        simulation = self._simulation
        deadline = None if timeout is None else simulation.now + timeout
        task = simulation.current()
        while not (found := predicate()):
            left = None if deadline is None else deadline - simulation.now
            if left is not None and left <= 0:
                return found
            self._waiting.append(task)
            simulation.suspend(left)
            if task in self._waiting:
                self._waiting.remove(task)
        return found


class Event:
    def __init__(self, simulation: Simulation) -> None:
        self._turn = Condition(simulation)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._turn.wake_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return bool(self._turn.wait_for(self.is_set, timeout))


class Semaphore:
    def __init__(self, simulation: Simulation, value: int) -> None:
        self._turn = Condition(simulation)
        self._value = value

    def acquire(self, timeout: float | None = None) -> bool:
        if not self._turn.wait_for(lambda: self._value > 0, timeout):
            return False
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1
        self._turn.wake_all()


class Thread:
    """A thread of the process that starts it."""

    def __init__(
        self,
        simulation: Simulation,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = False,
    ) -> None:
        self._simulation = simulation
        self._target = target
        self._args = args
        self._task: Task | None = None
        self._ended = Condition(simulation)

    def start(self) -> None:
        process: Process = self._simulation.current().process

        def run() -> None:
            try:
                self._target(*self._args)
            finally:
                self._ended.wake_all()

        self._task = self._simulation.spawn(process, run)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.dead

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait_for(lambda: not self.is_alive(), timeout)


def simulated_threading(simulation: Simulation) -> Any:
    """A stand-in for the module `threading`."""
    return SimpleNamespace(
        Condition=lambda: Condition(simulation),
        Lock=lambda: Condition(simulation),
        Event=lambda: Event(simulation),
        Semaphore=lambda value: Semaphore(simulation, value),
        Thread=lambda target, args=(), name="", daemon=False: Thread(simulation, target, args, name, daemon),
    )


class Wakeup:
    """A stand-in for `tailrace.wakeup.Wakeup`."""

    def __init__(self) -> None:
        self.is_set = False
        self.heard: Callable[[], None] = lambda: None

    def set(self) -> None:
        self.is_set = True
        self.heard()

    def clear(self) -> None:
        self.is_set = False

    def close(self) -> None: ...


class Poll:
    """A stand-in for `select.poll` over a simulated socket and a wakeup."""

    def __init__(self, simulation: Simulation) -> None:
        self._turn = Condition(simulation)
        self._sources: list[Any] = []

    def register(self, source: Any, _events: int = 0) -> None:
        self._sources.append(source)
        source.heard = self._turn.wake_all

    def poll(self, milliseconds: float) -> list[tuple[Any, int]]:
        def ready() -> list[tuple[Any, int]]:
            return [(source, 1) for source in self._sources if source.is_set]

        return list(self._turn.wait_for(ready, milliseconds / 1000))


def simulated_select(simulation: Simulation) -> Any:
    """A stand-in for the module `select`."""
    return SimpleNamespace(poll=lambda: Poll(simulation), POLLIN=1, POLLOUT=4)
