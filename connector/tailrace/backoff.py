"""How long to wait before the next try: exponential, capped, with jitter, and never a tight loop."""

from __future__ import annotations

from collections.abc import Callable
from random import random

FIRST_DELAY = 1.0
LARGEST_DELAY = 60.0
JITTER = (0.75, 1.25)
"""Each delay is multiplied by a random factor of this range, so that many pipelines do not return in step."""


def delay(attempt: int, *, chance: Callable[[], float] = random) -> float:
    """Seconds to wait before try `attempt` (1 is the first retry); `chance` returns a number in [0, 1)."""
    low, high = JITTER
    # The exponent is capped before it is used: an attempt count of a long outage must not overflow a float.
    plain = min(FIRST_DELAY * 2.0 ** min(attempt - 1, 16), LARGEST_DELAY)
    return plain * (low + (high - low) * chance())
