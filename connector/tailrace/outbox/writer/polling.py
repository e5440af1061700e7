"""Waiting for a condition in the database, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.errors import NotPublishedYet
from tailrace.outbox.writer.requests import Sleep, Steps

FIRST_SECONDS = 0.01
"""An event takes about this long from commit to Kafka."""
LONGEST_SECONDS = 0.25
"""Many waiting services must not load the database."""


Check = Callable[[], Steps[str | None]]


def poll(check: Check, timeout: float | None) -> Steps[None]:
    """Repeats `check` until it returns None. What it returns otherwise is the reason in NotPublishedYet."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_SECONDS
    while (reason := (yield from check())) is not None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise NotPublishedYet(
                f"the event was not published within {timeout:g} s: {reason}",
                why="It is committed, and is published as soon as the connector reaches it. With a replay_window the "
                "slot stays behind on purpose and cannot show it.",
                remedy="Do not add the event again. Wait again, or look at `tailrace status`.",
            )
        yield Sleep(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, LONGEST_SECONDS)
