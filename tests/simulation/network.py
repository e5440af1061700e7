"""Requests to servers and their answers, and the faults that a run places on them.

Each request is a numbered step. The plan of a run says at which steps a fault happens; without a plan, chance does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulation.scheduler import Crashed, Simulation
from simulation.stdlib import Condition

CRASH_BEFORE, CRASH_AFTER, CRASH_BETWEEN = "crash before", "crash after", "crash between"
LOSE_REQUEST, LOSE_ANSWER, DELAY, PAUSE, HOLD = "lose request", "lose answer", "delay", "pause", "hold"
BREAK = "break"
"""The session with the database is ended by the server."""
RESTART = "restart"
"""Postgres is killed: all sessions end, and what a slot has not persisted is forgotten."""
FAULTS = (CRASH_BEFORE, CRASH_BETWEEN, CRASH_AFTER, LOSE_REQUEST, LOSE_ANSWER, DELAY, PAUSE, HOLD, BREAK, RESTART)


class Lost(Exception):
    """No answer came in time."""


class Network:
    """Carries the requests of all simulated processes."""

    def __init__(
        self,
        simulation: Simulation,
        plan: Mapping[int, str] | None = None,
        *,
        rate: float = 0.0,
        kinds: Sequence[str] = FAULTS,
    ) -> None:
        """`plan` has faults by step. `rate` is the chance of one of `kinds` at each other step."""
        self._kinds = kinds
        self._simulation = simulation
        self._plan = plan or {}
        self.rate = rate
        self.steps = 0
        self.labels: list[str] = []
        self.injected: list[tuple[int, str, str]] = []
        self.on_server_fault: Callable[[str], None] = lambda _: None
        """Called with BREAK and RESTART."""
        self.enabled = True

    def request(self, label: str, effect: Callable[[], Any], timeout: float) -> Any:
        """Sends a request of the running task, and returns the answer or raises what the server raised."""
        simulation = self._simulation
        process = simulation.current().process
        fault = self._fault(label)
        if fault == CRASH_BEFORE:
            self._crash()
        there, back = simulation.delay(), simulation.delay()
        if fault in (BREAK, RESTART):
            self.on_server_fault(fault)
        if fault == PAUSE:
            process.paused_until = simulation.now + simulation.random.choice((0.5, 8.0, 70.0))
        if fault == DELAY:
            there += simulation.random.choice((0.05, 0.7, 4.0))
        if fault == HOLD:
            there += simulation.random.choice((1.0, 12.0, 65.0))
        answered = Condition(simulation)
        answer: list[tuple[bool, Any]] = []
        closed: list[bool] = []

        def arrive() -> None:
            # The client has closed this connection and asks again on another one.
            if closed:
                return
            try:
                result = True, effect()
            except AssertionError as error:
                simulation.failure = simulation.failure or error
                return
            except Exception as error:  # noqa: BLE001 - the answer
                result = False, error

            def come_back() -> None:
                answer.append(result)
                answered.wake_all()

            if fault != LOSE_ANSWER:
                simulation.at(back, come_back)

        if fault != LOSE_REQUEST:
            simulation.at(there, arrive)
        if fault == CRASH_BETWEEN:
            self._crash()
        answered.wait_for(lambda: answer, timeout)
        if fault == CRASH_AFTER:
            self._crash()
        if not answer:
            closed.append(True)
            raise Lost(label)
        good, result = answer[0]
        if not good:
            raise result
        return result

    def _fault(self, label: str) -> str:
        if not self.enabled:
            return ""
        self.steps += 1
        fault = self._plan.get(self.steps, "")
        if not fault and self.rate and self._simulation.random.random() < self.rate:
            fault = self._simulation.random.choice(self._kinds)
        if fault:
            self.injected.append((self.steps, label, fault))
            self._simulation.note(f"FAULT {fault} at step {self.steps}, {label}")
        return fault

    def _crash(self) -> None:
        self._simulation.crash(self._simulation.current().process)
        raise Crashed
