"""From commit to consumer: percentiles over the steady part, and the longest wait of all. Pure.

An event's journey lasts from its commit in the database to its arrival at a live `read_committed` consumer. A restart
lasts from the kill until the first event committed after the connector was back has arrived. An event whose journey
touches a restart measures the restart, not the connector: such events are counted apart, and they are what
`longest_ms` is for. Nothing else is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Delivery(NamedTuple):
    committed_ms: int
    received_ms: float

    @property
    def millis(self) -> float:
        return self.received_ms - self.committed_ms


class Downtime(NamedTuple):
    """A kill and the moment when the connector was running again, in Unix milliseconds."""

    killed_ms: float
    running_ms: float

    @property
    def millis(self) -> float:
        return self.running_ms - self.killed_ms


@dataclass(frozen=True, slots=True)
class Latency:
    steady_events: int
    restart_events: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


def measure(journeys: Sequence[Delivery], outages: Iterable[Downtime]) -> Latency:
    """`p50_ms` and `p99_ms` are of the steady part; 0 if there is none."""
    restarts = [(outage.killed_ms, _over_ms(journeys, outage)) for outage in outages]
    steady = [
        journey.millis
        for journey in journeys
        if all(journey.received_ms < begin or journey.committed_ms > end for begin, end in restarts)
    ]
    return Latency(
        steady_events=len(steady),
        restart_events=len(journeys) - len(steady),
        p50_ms=percentile(steady, 0.50),
        p99_ms=percentile(steady, 0.99),
        longest_ms=max((journey.millis for journey in journeys), default=0.0),
    )


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _over_ms(journeys: Iterable[Delivery], outage: Downtime) -> float:
    return min((j.received_ms for j in journeys if j.committed_ms >= outage.running_ms), default=math.inf)
