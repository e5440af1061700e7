"""`StackError`, and waiting for a condition until a deadline.

Everything in the testkit waits through `wait_until`: it polls at a short, growing interval, never sleeps for a guessed
time and never waits forever. A condition that is slow to answer is polled less often, so that polling does not take the
processor from what it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tailrace.errors import TailraceError

T = TypeVar("T")

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.3
TAIL_LINES = 25


class StackError(TailraceError):
    """A server of the local stack could not be started, reached or controlled."""


def wait_until(
    condition: Callable[[], T],
    timeout: float = 60.0,
    *,
    what: str = "the condition",
    remedy: str = "",
) -> T:
    """Polls `condition` until it returns something true, and returns that; raises StackError after `timeout`.

    Exceptions from the condition are not caught: only the caller knows which of them mean "not yet".
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


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Returns the last lines of a server's log: a server that does not start says why in its log."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        return f"(no log: {exc.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"
