"""Latency: which events are outside restarts, and percentiles that are measured values."""

from __future__ import annotations

import pytest

from tailrace.testkit.demo.consumer import Delivery, measure, percentile
from tailrace.testkit.demo.process import Downtime


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)])
def test_percentiles_are_nearest_ranks(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_without_events_all_values_are_zero() -> None:
    assert percentile([], 0.5) == 0.0
    latency = measure([], [Downtime(1, 2)])
    assert (latency.steady_events, latency.p99_ms, latency.longest_ms) == (0, 0.0, 0.0)


def test_events_that_overlap_a_restart_are_counted_separately() -> None:
    deliveries = [
        Delivery(100, 110.0),  # before the kill
        Delivery(995, 2150.0),  # being published at the kill
        Delivery(1500, 2160.0),  # committed while the connector was down
        Delivery(2100, 2180.0),  # first event committed after the restart: the restart ends with its arrival
        Delivery(2170, 2190.0),  # committed before that end
        Delivery(3000, 3030.0),
    ]
    latency = measure(deliveries, [Downtime(killed_ms=1000, running_ms=2050)])
    assert (latency.steady_events, latency.restart_events) == (2, 4)
    assert (latency.p50_ms, latency.p99_ms) == (10.0, 30.0)
    assert latency.longest_ms == 1155.0


def test_a_restart_without_later_events_has_no_end() -> None:
    latency = measure([Delivery(10, 20.0), Delivery(200, 300.0)], [Downtime(100, 250)])
    assert (latency.steady_events, latency.restart_events) == (1, 1)
