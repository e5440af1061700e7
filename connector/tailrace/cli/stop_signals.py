"""How a command that publishes ends early: it finishes the batch at hand, and leaves in time, by a code of its own.

A signal is handled only when Python's main thread returns from what it calls, and a driver may keep that for half a
minute: so the work is done by another thread, and the main one waits.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tailrace.cli import EXIT_INTERRUPTED
from tailrace.cli.output import say
from tailrace.wakeup import Wakeup

LEAVE_SECONDS = 8.0
"""A batch is committed by then, or never: to leave without it is what a kill would do."""
LOOK_SECONDS = 0.2

Result = TypeVar("Result")


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: nothing is changed yet that would have to be finished."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_beside(work: Callable[[], Result]) -> Result:
    """Runs it in a thread, to its end; raises what it raised."""
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            failures.append(error)

    thread = threading.Thread(target=run, name="work", daemon=True)
    thread.start()
    # Not one long wait: the kernel may give the signal to another thread, and then nothing ends the main one's wait.
    while thread.is_alive():
        thread.join(LOOK_SECONDS)
    if failures:
        raise failures[0]
    return results[0]


class Stop:
    """Whether the work is to end; `wake` ends what waits."""

    def __init__(self) -> None:
        self.wake = Wakeup()
        self._asked = threading.Lock()
        """Taken once, and kept: that is a single step, while a second signal may come between any two."""
        self._leave = threading.Timer(LEAVE_SECONDS, _leave)
        self._leave.daemon = True

    def wanted(self) -> bool:
        return self._asked.locked()

    def ask(self, *_: object) -> None:
        if self._asked.acquire(blocking=False):
            self._leave.start()
        self.wake.set()

    def close(self) -> None:
        self._leave.cancel()


@contextmanager
def stoppable() -> Iterator[Stop]:
    """SIGTERM and Ctrl-C ask the work to stop."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        stop.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave() -> None:
    say("interrupted: the batch at hand could not be finished, and is left to the next run", sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
