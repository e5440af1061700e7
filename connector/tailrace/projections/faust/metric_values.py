"""The current values of all metrics of an app's projections, for every exporter."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from tailrace.errors import Reason
from tailrace.histogram import Histogram
from tailrace.projections.core.metrics import DUPLICATE, METRICS, STATES
from tailrace.projections.core.store import EventOutcome
from tailrace.projections.faust.health import ProjectionHealth, health

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp
    from tailrace.projections.projection import Projection

T = TypeVar("T")
Values = dict[str, dict[tuple[str, ...], float | Histogram]]
"""Values by the name of the metric (`core.metrics.METRICS`), then by the values of its labels."""
OUTCOMES = (*(each.value for each in EventOutcome), DUPLICATE)


def in_loop(app: ProjectionApp, function: Callable[[], T]) -> Future[T]:
    """Calls a function in the app's event loop, from another thread; at once if the loop does not run."""
    answer: Future[T] = Future()

    def call() -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised where the result is used
                answer.set_exception(error)

    loop = app.event_loop
    if loop is None or not loop.is_running():
        call()
    else:
        loop.call_soon_threadsafe(call)
    return answer


def metric_values(app: ProjectionApp) -> Values:
    """Returns the values of all projections. Like `health`, to be called in the app's event loop."""
    values: Values = {metric.name: {} for metric in METRICS}
    for projection, state in zip(app.projections, health(app), strict=True):
        _add(values, projection, state)
    return values


def _add(values: Values, projection: Projection, state: ProjectionHealth) -> None:
    metrics, name = projection.metrics, projection.name

    def add(metric: str, value: float | Histogram, *labels: str) -> None:
        values[metric][name, *labels] = value

    for topic in projection.topics:
        for outcome in OUTCOMES:
            add("projection_events_total", metrics.events[topic, outcome], topic, outcome)
        if topic in state.lag:
            add("projection_lag_events", state.lag[topic], topic)
        if topic in metrics.last_event_ms:
            age = max(0.0, time.time() - metrics.last_event_ms[topic] / 1000)
            add("projection_last_event_age_seconds", age, topic)
    for cause in ("store", "event"):
        add("projection_retries_total", metrics.retries[cause], cause)
    for reason in Reason:
        add("projection_dead_letters_total", metrics.dead_letters[reason.value], reason.value)
    for each in STATES:
        add("projection_state", int(each == state.state), each)
    if metrics.last_commit is not None:
        add("projection_last_commit_timestamp_seconds", metrics.last_commit)
    add("projection_batches_total", sum(metrics.batches.counts))
    add("projection_partitions", state.partitions)
    add("projection_queued_events", state.queued)
    add("projection_stalled_seconds", state.stalled_seconds)
    add("projection_batch_events", metrics.batches)
    add("projection_apply_duration_seconds", metrics.apply_seconds)
    add("projection_event_latency_seconds", metrics.latency_seconds)
    add("external_db_transactions_written_total", metrics.outcomes["applied"] - metrics.deleted)
    add("external_db_transactions_deleted_total", metrics.deleted)
    add("external_db_mongodb_write_errors_total", metrics.retries["store"])
    add("external_db_retry_count_total", sum(metrics.retries.values()))
    add("external_db_write_latency_seconds", metrics.apply_seconds)
    add("external_db_batch_size", metrics.batches)
