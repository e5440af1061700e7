"""`/metrics`: the metrics of all pipelines of a worker, from the last reports of their processes.

Names and meanings are in `worker/metric_table.py`. Counters of a process that has ended stay as they were; what it knew
about servers and itself is left out, because it may be wrong by now.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric as Family
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tailrace.api.exposition import DEFAULT_PREFIX, answer, buckets, family, require_prefix
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import FAILED, PAUSED, RESTARTING, RETRYING, RUNNING, STOPPED
from tailrace.worker.metric_table import ALIASES, METRICS, STATES, Metric

STREAMING, SNAPSHOT = "streaming", "snapshot"
_STATUS = {
    RUNNING: "running",
    FAILED: "failed",
    PAUSED: "paused",
    STOPPED: "stopped",
    RETRYING: "restarting",
    RESTARTING: "restarting",
}
"""States as Kafka Connect names them; all others are `unassigned`."""
_TASK_COUNTS = ("running", "paused", "failed", "unassigned", "restarting", "destroyed")


def routes(manager: PipelineManager, prefix: str = DEFAULT_PREFIX) -> list[BaseRoute]:
    """Returns the route of `/metrics`; raises ConfigError if the prefix cannot be used."""
    require_prefix(prefix)
    own = (ProcessCollector(registry=None), PlatformCollector(registry=None))

    async def metrics(request: Request) -> Response:
        of_worker = [each for collector in own for each in collector.collect()]
        return answer(request, [*families(manager.pipelines, prefix), *of_worker])

    return [Route("/metrics", metrics)]


def families(pipelines: Mapping[str, ManagedPipeline], prefix: str = DEFAULT_PREFIX) -> Iterable[Family]:
    """Returns the metrics of all pipelines, and their aliases."""
    made = {
        metric.name: family(f"{prefix}_{metric.name}", metric.kind, metric.help, metric.labels) for metric in METRICS
    }
    aliases = {alias.name: family(alias.name, alias.kind, alias.of, alias.labels) for alias in ALIASES}
    for pipeline in pipelines.values():
        values = _values(pipeline)
        for metric in METRICS:
            if metric.kind == "histogram":
                _add_histogram(made[metric.name], metric, pipeline)
            elif metric.name in values:
                _add(made[metric.name], pipeline.name, values[metric.name])
        _add_aliases(aliases, pipeline, values)
    tasks = [each for each in pipelines.values() if each.state != STOPPED]
    _put(aliases["kafka_connect_worker_connector_count"], [], len(pipelines))
    _put(aliases["kafka_connect_worker_task_count"], [], len(tasks))
    return [*made.values(), *aliases.values()]


def _values(pipeline: ManagedPipeline) -> dict[str, Any]:
    """Returns all values that are valid now, by the name of the metric."""
    metrics = pipeline.report.metrics if pipeline.report is not None else {}
    found: dict[str, Any] = dict(metrics.get("values", {}))
    if pipeline.pid is None:
        counters = {metric.name for metric in METRICS if metric.kind == "counter"}
        found = {name: value for name, value in found.items() if name in counters}
    found["pipeline_state"] = {state: int(state == pipeline.state) for state in STATES}
    found["pipeline_restarts_total"] = pipeline.restarts_total
    return found


def _add(made: Family, pipeline: str, value: Any) -> None:  # noqa: ANN401 - from JSON
    if isinstance(value, dict):
        for label, each in value.items():
            _put(made, [pipeline, label], each)
    else:
        _put(made, [pipeline], math.inf if value is None else value)  # JSON has no infinity


def _put(made: Family, labels: list[str], value: float) -> None:
    made.add_metric(labels, value)  # type: ignore[attr-defined]


def _add_histogram(made: Family, metric: Metric, pipeline: ManagedPipeline) -> None:
    recorded = pipeline.report.metrics.get("histograms", {}).get(metric.name) if pipeline.report is not None else None
    if recorded is None:
        return
    parts: dict[tuple[str, ...], Any] = (
        {(): recorded} if "counts" in recorded else {(label,): each for label, each in recorded.items()}
    )
    for labels, each in parts.items():
        cumulated = buckets(metric.buckets, each["counts"])
        made.add_metric([pipeline.name, *labels], cumulated, each["sum"])  # type: ignore[attr-defined]


def _add_aliases(aliases: dict[str, Family], pipeline: ManagedPipeline, values: dict[str, Any]) -> None:
    name, status = pipeline.name, _STATUS.get(pipeline.state, "unassigned")
    has_task = pipeline.state != STOPPED
    _put(aliases["kafka_connect_connector_status"], [name, status], 1)
    _put(aliases["kafka_connect_worker_connector_total_task_count"], [name], int(has_task))
    for each in _TASK_COUNTS:
        _put(aliases[f"kafka_connect_worker_connector_{each}_task_count"], [name], int(has_task and each == status))
    if has_task:
        _put(aliases["kafka_connect_connector_task_status"], [name, "0", status], 1)
    published = values.get("outbox_events_published_total", 0)
    _put(aliases["kafka_connect_source_task_source_record_poll_total"], [name, "0"], published)
    delivered = values.get("outbox_events_delivered_total", 0)
    _put(aliases["kafka_connect_source_task_source_record_write_total"], [name, "0"], delivered)
    _add_debezium(aliases, pipeline, values, published)


def _add_debezium(
    aliases: dict[str, Family], pipeline: ManagedPipeline, values: dict[str, Any], published: float
) -> None:
    settings, report = pipeline.settings, pipeline.report
    plugin = "mongodb" if settings is not None and settings.source.mongo is not None else "postgres"
    facts = report.facts if report is not None and pipeline.pid is not None else {}
    recorded = report.metrics if report is not None else {}

    def put(metric: str, value: float | None, context: str = STREAMING) -> None:
        if value is not None:
            _put(aliases[f"debezium_metrics_{metric}"], [plugin, pipeline.name, context], value)

    put("Connected", int(pipeline.state == RUNNING))
    lag = values.get("outbox_lag_seconds")
    put("MilliSecondsBehindSource", None if lag is None else lag * 1000)
    last = recorded.get("last_event_at") or 0
    put("MilliSecondsSinceLastEvent", max(0.0, time.time() - last) * 1000 if last else -1)
    put("TotalNumberOfEventsSeen", published)
    put("TotalNumberOfCreateEventsSeen", published)
    put("NumberOfErroneousEvents", values.get("outbox_events_failed_total", 0))
    put("NumberOfEventsFiltered", 0)
    queue = recorded.get("queue")
    if queue is not None:
        put("QueueTotalCapacity", queue["capacity"])
        put("QueueRemainingCapacity", queue["remaining"])
    reading = facts.get("reading_existing")
    if reading is not None:
        put("SnapshotRunning", int(reading), SNAPSHOT)
        put("SnapshotCompleted", int(not reading), SNAPSHOT)
        put("RemainingTableCount", int(reading), SNAPSHOT)
        put("TotalTableCount", 1, SNAPSHOT)
