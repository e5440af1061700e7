"""Waiting for a condition with a deadline: the only way anything here waits.

A condition is asked again and again at a short, growing interval until it holds; one that takes its time to answer is
asked less often, as looking takes the processor from what is awaited. Nothing sleeps for a guessed time, and nothing
waits for ever: past the deadline a `StackError` says what was awaited and for how long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tailrace.testkit.stack.errors import StackError

T = TypeVar("T")

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.3


def wait_until(
    condition: Callable[[], T],
    timeout: float = 60.0,
    *,
    what: str = "the condition",
    remedy: str = "",
) -> T:
    """Ask `condition` until its answer is true, and return that answer.

    An exception from the condition is not caught: only the caller knows which ones mean "not yet".
    """
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE
    while True:
        asked = time.monotonic()
        answer = condition()
        if answer:
            return answer
        now = time.monotonic()
        left = deadline - now
        if left <= 0:
            raise StackError(f"{what} did not happen within {timeout:g} s", remedy=remedy)
        pause = min(max(pause, 4 * (now - asked)), LONGEST_PAUSE)
        time.sleep(min(pause, left))
        pause *= 1.5
