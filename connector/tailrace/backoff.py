"""Retry delays: exponential, capped, with jitter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import random


@dataclass(frozen=True, slots=True)
class Backoff:
    """How delays grow: min(base x multiplier^(attempt - 1), maximum), times a random factor of 1 ± `jitter`."""

    base: float = 1.0
    """Seconds before the first retry."""
    maximum: float = 60.0
    multiplier: float = 2.0
    jitter: float = 0.25
    """Each delay is multiplied by a random factor, so that many pipelines do not retry at the same time."""

    def delay(self, attempt: int, *, chance: Callable[[], float] = random) -> float:
        """Returns the seconds to wait before retry `attempt` (from 1); `chance` returns a number in [0, 1)."""
        try:
            plain = min(self.base * self.multiplier ** (attempt - 1), self.maximum)
        except OverflowError:  # the attempt count of a long outage
            plain = self.maximum
        return plain * (1 - self.jitter + 2 * self.jitter * chance())


DEFAULT = Backoff()


def delay(attempt: int, *, chance: Callable[[], float] = random) -> float:
    """Returns the seconds to wait before retry `attempt` (from 1), with the default settings."""
    return DEFAULT.delay(attempt, chance=chance)
