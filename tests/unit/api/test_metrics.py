"""`/metrics` from the reports of pipelines: names, labels, formats, and that the number of series is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tailrace.api import metrics
from tailrace.errors import ConfigError
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import PipelineReport
from tailrace.worker.metric_table import ALIASES, LABEL_VALUES, METRICS
from tailrace.worker.metrics import PipelineMetrics

PROBED = {
    "outbox_lag_bytes": 5,
    "outbox_lag_seconds": 1.5,
    "outbox_pending_events_count": 3,
    "outbox_table_size_bytes": 8192,
    "outbox_dlq_events_count": 1,
    "outbox_parked_keys_count": 0,
    "log_retained_bytes": 10,
    "log_safe_bytes": 20,
    "log_growth_bytes_per_second": 1.0,
    "log_lost_in_seconds": float("inf"),
    "server_up": {"source": 1.0, "kafka": 0.0},
    "certificate_expiry_timestamp_seconds": {"kafka": 1.9e9},
}
SERIES_PER_PIPELINE = 260


def report(**values: Any) -> PipelineReport:
    """A report as it arrives: through JSON, which has no infinity."""
    recorded = PipelineMetrics(capacity=6000)
    recorded.probed({**PROBED, **values})
    recorded._stored_at = 1.0
    snapshot = json.loads(json.dumps(recorded.snapshot()).replace("Infinity", "null"))
    return PipelineReport("RUNNING", 1, 7, metrics=snapshot, facts={"reading_existing": False})


def pipeline(name: str, state: str = "RUNNING", **fields: Any) -> ManagedPipeline:
    given: dict[str, Any] = {"pid": 7, "report": report(), **fields}
    return ManagedPipeline(name, {}, Path("x.yaml"), from_topic=False, state=state, **given)


@pytest.fixture
def manager() -> Iterator[PipelineManager]:
    found = PipelineManager()
    found.pipelines.update({"orders": pipeline("orders"), "users": pipeline("users", "FAILED", pid=None)})
    yield found
    asyncio.run(found.close())


def client(manager: PipelineManager, prefix: str = "tailrace") -> TestClient:
    return TestClient(Starlette(routes=metrics.routes(manager, prefix)))


def scrape(manager: PipelineManager) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Returns all samples by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(client(manager).get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def names(metric: Any) -> set[str]:
    return (
        {f"{metric.name}{end}" for end in ("_bucket", "_sum", "_count")}
        if metric.kind == "histogram"
        else {metric.name}
    )


def test_every_metric_of_the_table_is_there(manager: PipelineManager) -> None:
    found = scrape(manager)
    for metric in METRICS:
        assert {f"tailrace_{name}" for name in names(metric)} <= found.keys()
    for alias in ALIASES:
        assert alias.name in found
    extra = {name for name in found if not name.startswith(("process_", "python_"))}
    extra -= {f"tailrace_{name}" for metric in METRICS for name in names(metric)} | {alias.name for alias in ALIASES}
    assert not extra, "not in the table"


def test_labels_and_the_number_of_series_are_bounded(manager: PipelineManager) -> None:
    found = scrape(manager)
    of_orders = 0
    for name, samples in found.items():
        for labels in samples:
            for label, value in labels:
                if label in LABEL_VALUES:
                    assert value in LABEL_VALUES[label], (name, label, value)
                else:
                    assert label in ("pipeline", "le", "plugin", "name", "context", "connector", "task") or name == (
                        "python_info"
                    ), (name, label)
            of_orders += any(value == "orders" for _, value in labels)
    assert of_orders <= SERIES_PER_PIPELINE


def test_a_process_that_has_ended_keeps_its_counters_only(manager: PipelineManager) -> None:
    found = scrape(manager)
    users = (("pipeline", "users"),)
    assert users in found["tailrace_outbox_events_delivered_total"]
    assert users not in found["tailrace_outbox_lag_seconds"]
    assert users not in found["tailrace_pipeline_process_resident_memory_bytes"]


def test_states(manager: PipelineManager) -> None:
    found = scrape(manager)
    states = found["tailrace_pipeline_state"]
    assert states[("pipeline", "orders"), ("state", "RUNNING")] == 1
    assert sum(value for labels, value in states.items() if ("pipeline", "orders") in labels) == 1
    status = found["kafka_connect_connector_status"]
    assert status == {
        (("connector", "orders"), ("status", "running")): 1,
        (("connector", "users"), ("status", "failed")): 1,
    }
    assert found["kafka_connect_worker_connector_failed_task_count"] == {
        (("connector", "orders"),): 0,
        (("connector", "users"),): 1,
    }
    assert found["kafka_connect_worker_connector_count"] == {(): 2}


def test_a_stopped_pipeline_has_no_task(manager: PipelineManager) -> None:
    manager.pipelines["orders"] = pipeline("orders", "STOPPED", pid=None, report=None)
    manager.pipelines.pop("users")
    found = scrape(manager)
    assert found["kafka_connect_worker_connector_total_task_count"] == {(("connector", "orders"),): 0}
    assert "kafka_connect_connector_task_status" not in found
    assert found["kafka_connect_worker_task_count"] == {(): 0}


def test_an_endless_forecast_survives_json(manager: PipelineManager) -> None:
    assert scrape(manager)["tailrace_log_lost_in_seconds"][("pipeline", "orders"),] == float("inf")


def test_buckets_are_cumulated(manager: PipelineManager) -> None:
    recorded = PipelineMetrics()
    for seconds in (0.001, 0.02, 999):
        recorded._latency.observe(seconds)
    manager.pipelines["orders"].report = PipelineReport("RUNNING", 1, 7, metrics=recorded.snapshot())
    found = scrape(manager)
    counts = found["tailrace_outbox_end_to_end_latency_seconds_bucket"]
    assert counts[("le", "0.005"), ("pipeline", "orders")] == 1
    assert counts[("le", "0.025"), ("pipeline", "orders")] == 2
    assert counts[("le", "300.0"), ("pipeline", "orders")] == 2
    assert counts[("le", "+Inf"), ("pipeline", "orders")] == 3
    assert found["tailrace_outbox_end_to_end_latency_seconds_count"][("pipeline", "orders"),] == 3


def test_openmetrics_if_the_client_accepts_it(manager: PipelineManager) -> None:
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = client(manager).get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert list(openmetrics.text_string_to_metric_families(answer.text))


def test_the_prefix(manager: PipelineManager) -> None:
    text = client(manager, "memoryos_storage").get("/metrics").text
    assert "memoryos_storage_outbox_events_delivered_total{" in text
    assert "tailrace_" not in text
    for wrong in ("memoryos.storage", "", "1st", "a b", "x" * 65):
        with pytest.raises(ConfigError):
            metrics.routes(manager, wrong)


def test_a_worker_without_pipelines(manager: PipelineManager) -> None:
    manager.pipelines.clear()
    assert scrape(manager)["kafka_connect_worker_connector_count"] == {(): 0}
