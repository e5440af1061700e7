"""Whether a measured value stays flat: its slope after a warm-up, against a bound. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

WARM_UP = 0.25
"""The part of a run that does not count: caches fill, and memory is taken that is never returned."""
HOUR = 3600.0
FEWEST = 8
"""With fewer samples after the warm-up nothing is concluded."""


class Verdict(Enum):
    FLAT = "flat"
    GROWS = "grows"
    TOO_SHORT = "too short to tell"


@dataclass(frozen=True, slots=True)
class Flatness:
    """The verdict on one value: `per_hour` is its slope, `bound` the largest that counts as flat."""

    per_hour: float
    bound: float
    median: float
    highest: float
    samples: int
    hours: float
    """The time after the warm-up."""

    @property
    def verdict(self) -> Verdict:
        """A steeper slope is growth only if it has lasted long enough to exceed the bound of an hour."""
        if self.samples < FEWEST:
            return Verdict.TOO_SHORT
        if self.per_hour <= self.bound:
            return Verdict.FLAT
        return Verdict.GROWS if self.hours >= 1 or self.per_hour * self.hours > self.bound else Verdict.TOO_SHORT


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the median of the slopes between all pairs (Theil-Sen): single peaks and a sawtooth do not tilt it."""
    slopes = [
        (y2 - y1) / (x2 - x1) for number, (x1, y1) in enumerate(points) for x2, y2 in points[number + 1 :] if x2 > x1
    ]
    return statistics.median(slopes) if slopes else 0.0


def judge(points: Sequence[tuple[float, float]], bound: float) -> Flatness:
    """Judges samples of (seconds, value)."""
    if not points:
        return Flatness(0.0, bound, 0.0, 0.0, 0, 0.0)
    begin, end = points[0][0], points[-1][0]
    steady = [point for point in points if point[0] >= begin + WARM_UP * (end - begin)]
    values = [value for _, value in steady]
    hours = (end - steady[0][0]) / HOUR
    return Flatness(slope(steady) * HOUR, bound, statistics.median(values), max(values), len(steady), hours)


def judge_all(samples: Sequence[Mapping[str, float]], bounds: Mapping[str, float]) -> dict[str, Flatness]:
    """Judges each value that has a bound. Samples have `seconds`, and values by name."""
    return {
        name: judge([(sample["seconds"], sample[name]) for sample in samples if name in sample], bound)
        for name, bound in bounds.items()
    }
