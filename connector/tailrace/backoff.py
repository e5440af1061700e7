"""Retry delays: exponential, capped, with jitter."""

from __future__ import annotations

from collections.abc import Callable
from random import random

FIRST_DELAY = 1.0
LARGEST_DELAY = 60.0
JITTER = (0.75, 1.25)
"""Each delay is multiplied by a random factor of this range, so that many pipelines do not retry at the same time."""


def delay(attempt: int, *, chance: Callable[[], float] = random) -> float:
    """Returns the seconds to wait before retry `attempt` (from 1); `chance` returns a number in [0, 1)."""
    low, high = JITTER
    # The exponent is capped first: the attempt count of a long outage must not overflow a float.
    plain = min(FIRST_DELAY * 2.0 ** min(attempt - 1, 16), LARGEST_DELAY)
    return plain * (low + (high - low) * chance())
