"""What a projection counts, batch by batch."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.memory_store import MemoryStore
from tailrace.histogram import Histogram
from tailrace.projections import ProjectionTester, projection_app
from tailrace.projections.core.apply import BatchResult
from tailrace.projections.core.event import Event
from tailrace.projections.core.metrics import METRICS, STATES, ProjectionMetrics
from tailrace.projections.core.store import EventOutcome
from tailrace.projections.projection import Projection


def test_a_value_counts_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 1.1, 10.0, 11.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == pytest.approx(23.6)


def batch(**changes: Any) -> BatchResult:
    now = int(time.time() * 1000)
    result = BatchResult({EventOutcome.APPLIED: 3}, duplicates=1, deleted=1, size=4, seconds=0.2)
    result.first_ms, result.last_ms = now - 2000, now - 1000
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def test_a_batch_counts_by_topic_and_outcome() -> None:
    metrics = ProjectionMetrics()
    metrics.committed("orders", batch())
    metrics.committed("users", batch())
    assert metrics.events["orders", "applied"] == 3
    assert metrics.events["users", "duplicate"] == 1
    assert metrics.outcomes == {"applied": 6, "duplicate": 2}
    assert (metrics.deleted, sum(metrics.batches.counts), metrics.batches.sum) == (2, 2, 8)
    assert metrics.apply_seconds.sum == pytest.approx(0.4)
    assert 6 <= metrics.latency_seconds.sum < 60


def test_the_last_event_never_gets_older() -> None:
    metrics = ProjectionMetrics()
    metrics.committed("orders", batch(last_ms=5000))
    metrics.committed("orders", batch(last_ms=4000))
    assert metrics.last_event_ms == {"orders": 5000}


def test_a_rebuild_has_no_latency_and_an_expired_event_is_no_batch() -> None:
    metrics = ProjectionMetrics()
    metrics.committed("orders", batch(is_rebuild=True))
    metrics.committed("orders", BatchResult({EventOutcome.DEAD: 1}))
    assert sum(metrics.latency_seconds.counts) == 0
    assert sum(metrics.batches.counts) == 1
    assert metrics.outcomes["dead"] == 1


def test_the_names_of_metrics_are_unique_and_explained() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(metric.help.endswith(".") for metric in METRICS)


def test_the_page_names_every_metric_and_state() -> None:
    page = (Path(__file__).parents[4] / "docs" / "projections.md").read_text()
    named = set(re.findall(r"`tailrace_((?:projection|external_db)_\w+)`", page))
    assert named == {metric.name for metric in METRICS}
    assert all(f"| `{state}` |" in page for state in STATES)


def test_a_worker_reports_size_times_and_deletions_of_its_batch() -> None:
    orders = Projection(projection_app("app"), "orders", store=MemoryStore(), name="summary")

    @orders.on("Placed")
    async def place(event: Event, effects: Any) -> None: ...

    @orders.on("Deleted", deletes=True)
    async def delete(event: Event, effects: Any) -> None: ...

    async def scenario() -> None:
        async with ProjectionTester(orders) as tester:
            tester.committed = orders.committed  # type: ignore[method-assign]
            await tester.send("Placed", {}, event_id="e-1")
            await tester.send("Deleted", {}, event_id="e-2")
            await tester.send("Placed", {}, event_id="e-1")

    asyncio.run(scenario())
    metrics = orders.metrics
    assert metrics.outcomes == {"applied": 2, "duplicate": 1}
    assert (metrics.deleted, metrics.batches.sum) == (1, 3)
    assert metrics.apply_seconds.sum > 0
    assert metrics.last_event_ms["orders"] > 0
