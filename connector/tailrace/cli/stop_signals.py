"""Stop signals for commands that publish: finish the current batch, then exit in time with code 130.

Python handles signals only between bytecodes of the main thread, and a call of a driver may take half a minute. So the
work runs in another thread, and the main thread waits.
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

FINISH_SECONDS = 8.0
"""How long the current batch may take. To exit without committing it is as safe as a kill."""
JOIN_SECONDS = 0.2

Result = TypeVar("Result")


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM interrupt the command as Ctrl-C does, while nothing needs to be finished."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_beside(work: Callable[[], Result]) -> Result:
    """Runs `work` in a thread until it ends; raises what it raised."""
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            failures.append(error)

    thread = threading.Thread(target=run, name="work", daemon=True)
    thread.start()
    # No single long wait: if the kernel delivers the signal to another thread, nothing would interrupt it.
    while thread.is_alive():
        thread.join(JOIN_SECONDS)
    if failures:
        raise failures[0]
    return results[0]


class Stop:
    """A request to stop; `wakeup` ends waits of the work."""

    def __init__(self) -> None:
        self.wakeup = Wakeup()
        self._asked = threading.Lock()
        """Acquired once, atomically: a second signal may arrive at any moment."""
        self._leave = threading.Timer(FINISH_SECONDS, _leave)
        self._leave.daemon = True

    def wanted(self) -> bool:
        return self._asked.locked()

    def ask(self, *_: object) -> None:
        if self._asked.acquire(blocking=False):
            self._leave.start()
        self.wakeup.set()

    def close(self) -> None:
        self._leave.cancel()


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Makes SIGTERM and Ctrl-C request a stop."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        stop.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave() -> None:
    say("interrupted: the current batch was not finished in time; the next run publishes it", sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
