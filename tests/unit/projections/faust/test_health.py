"""The state of a projection follows from the progress of its partitions."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.projections.core.metrics import METRICS, STATES, ProjectionMetrics
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.health import READY, ProjectionHealth, health
from tailrace.projections.faust.metric_values import in_loop, metric_values

ORDERS = Partition("orders", 0)
GIVE_UP = 60.0


class FakeApp:
    """As much of an app as the state of its projection depends on."""

    def __init__(self, **changes: Any) -> None:
        now = time.monotonic()
        busy = changes.get("busy")
        worker = SimpleNamespace(partition=ORDERS, next=5, queued=3, busy_since=None if busy is None else now - busy)
        unsettled = changes.get("unsettled")
        self.event_loop = None
        self.should_stop = changes.get("stopping", False)
        reader = SimpleNamespace(
            unsettled_since=None if unsettled is None else now - unsettled, reached=lambda: {ORDERS: 10}
        )
        self.reader = reader if changes.get("started", True) else None
        self.maintenance: Any = SimpleNamespace(
            ends={ORDERS: 25}, longest_wait=lambda _: (ORDERS, changes.get("missing", 0.0))
        )
        metrics = ProjectionMetrics()
        metrics.was_assigned = changes.get("assigned", True)
        self.projections = [
            SimpleNamespace(
                name="summary",
                topics=("orders",),
                workers={ORDERS: worker} if changes.get("workers", True) else {},
                blocked_partitions=changes.get("blocked", {}),
                spec=SimpleNamespace(settings=SimpleNamespace(give_up=GIVE_UP)),
                metrics=metrics,
            )
        ]


def state(**changes: Any) -> ProjectionHealth:
    (found,) = health(cast(Any, FakeApp(**changes)))
    return found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "RUNNING"),
        ({"busy": 5.0}, "RUNNING"),
        ({"started": False}, "STARTING"),
        ({"unsettled": 1.0, "assigned": False, "workers": False}, "STARTING"),
        ({"unsettled": 1.0, "workers": False}, "REBALANCING"),
        ({"workers": False}, "WAITING"),
        ({"blocked": {ORDERS: "ValueError"}}, "BLOCKED"),
        ({"busy": 40.0}, "STALLED"),
        ({"missing": 40.0}, "STALLED"),
        ({"unsettled": 40.0, "workers": False}, "STALLED"),
        ({"busy": 40.0, "blocked": {ORDERS: "ValueError"}}, "STALLED"),
        ({"stopping": True}, "STOPPING"),
    ],
)
def test_states(changes: dict[str, Any], expected: str) -> None:
    found = state(**changes)
    assert found.state == expected
    assert found.is_ready == (expected in READY)
    assert expected in STATES
    if not found.is_ready:
        assert found.what
        assert found.remedy


def test_lag_is_counted_from_what_was_reached() -> None:
    """Transaction markers have offsets, too: `reached` is behind them, the last applied event is not."""
    found = state()
    assert (found.lag, found.partitions, found.queued) == ({"orders": 15}, 1, 3)


def test_values_fit_the_table() -> None:
    app = cast(Any, FakeApp())
    values = in_loop(app, lambda: metric_values(app)).result(1)
    assert values.keys() == {metric.name for metric in METRICS}
    for metric in METRICS:
        assert all(len(labels) == len(metric.labels) for labels in values[metric.name]), metric.name
    assert values["projection_state"]["summary", "RUNNING"] == 1
    assert values["projection_lag_events"]["summary", "orders"] == 15
