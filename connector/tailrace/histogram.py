"""A histogram as Prometheus has them: counts of values by bucket, and their sum. Not thread-safe."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any


class Histogram:
    """Counts of values up to each of the bounds and above the last one, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def snapshot(self) -> dict[str, Any]:
        """Returns the counts of each bucket, not cumulated, and the sum."""
        return {"counts": self.counts.copy(), "sum": self.sum}
