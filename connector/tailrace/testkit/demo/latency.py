"""Latency from commit to consumer: percentiles over the events outside restarts, and the maximum of all. Pure.

The latency of an event is the time from its commit in the database to its arrival at a live `read_committed` consumer.
A restart lasts from the kill until the arrival of the first event committed after the connector was back. Events that
overlap a restart measure the restart, not the connector: they are counted separately and only enter `longest_ms`.
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
    """The times of a kill and of the connector running again, in Unix milliseconds."""

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


def measure(deliveries: Sequence[Delivery], downtimes: Iterable[Downtime]) -> Latency:
    """Measures the latency; `p50_ms` and `p99_ms` are of the events outside restarts, 0 if there are none."""
    restarts = [(downtime.killed_ms, _over_ms(deliveries, downtime)) for downtime in downtimes]
    steady = [
        delivery.millis
        for delivery in deliveries
        if all(delivery.received_ms < begin or delivery.committed_ms > end for begin, end in restarts)
    ]
    return Latency(
        steady_events=len(steady),
        restart_events=len(deliveries) - len(steady),
        p50_ms=percentile(steady, 0.50),
        p99_ms=percentile(steady, 0.99),
        longest_ms=max((delivery.millis for delivery in deliveries), default=0.0),
    )


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the smallest value that at least `share` of all values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _over_ms(deliveries: Iterable[Delivery], downtime: Downtime) -> float:
    return min((each.received_ms for each in deliveries if each.committed_ms >= downtime.running_ms), default=math.inf)
