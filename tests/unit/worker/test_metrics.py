"""Recording of metrics: what a batch, an error and a dead letter count as, and that a snapshot is plain data."""

from __future__ import annotations

import json
import time

import pytest

from tailrace.errors import (
    Halted,
    KafkaUnavailable,
    OutcomeUnknown,
    RecordDelayed,
    RecordsRefused,
    SourceUnavailable,
    TailraceError,
)
from tailrace.event import Record, Row
from tailrace.histogram import Histogram
from tailrace.pipeline.batch import Batch
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.worker.metric_table import ALIASES, BY_NAME, LABEL_VALUES, METRICS
from tailrace.worker.metrics import PipelineMetrics

POSITION = LsnPosition(LogIdentity("1", 1, "shop", "s", "public.outbox", "x"), 1, 1)
E11 = [
    "outbox_events_published_total",
    "outbox_events_delivered_total",
    "outbox_events_failed_total",
    "outbox_events_dlq_total",
    "outbox_delivery_duration_seconds",
    "outbox_retry_delay_seconds",
    "outbox_end_to_end_latency_seconds",
    "outbox_validation_errors_total",
    "outbox_network_errors_total",
    "outbox_timeout_errors_total",
    "outbox_table_size_bytes",
    "outbox_pending_events_count",
    "outbox_dlq_events_count",
]


def record(topic: str = "orders") -> Record:
    return Record(topic, b"{}", b"k", [], 1)


def batch(records: int, rows: int, *, age: float = 2.0, topic: str = "orders") -> Batch:
    now = time.time()
    made = Batch(POSITION)
    for _ in range(records):
        made.add(record(topic))
    if rows:
        made.note_rows([Row((), (), "1", int((now - age) * 1000))] * rows, now - 1)
    made.size, made.submitted_at = 100 * rows, now - 0.5
    return made


def values(metrics: PipelineMetrics) -> dict[str, object]:
    found: dict[str, object] = metrics.snapshot()["values"]
    return found


def test_the_table_has_the_required_names_once_and_low_cardinality() -> None:
    names = [metric.name for metric in METRICS]
    assert set(E11) <= set(names)
    assert len(set(names) | {alias.name for alias in ALIASES}) == len(names) + len(ALIASES)
    for metric in METRICS:
        assert metric.labels[0] == "pipeline"
        assert set(metric.labels[1:]) <= LABEL_VALUES.keys()
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert metric.help.endswith(".")


def test_a_batch_counts_its_rows_records_and_latencies() -> None:
    metrics = PipelineMetrics(frozenset({"letters"}), capacity=10)
    made = batch(5, 5)
    made.dead_letters, made.other_records = 1, 1
    metrics.filled(4)
    metrics.committed(made, 0.2)
    found, histograms = values(metrics), metrics.snapshot()["histograms"]
    assert found["outbox_events_published_total"] == 5
    assert found["outbox_events_delivered_total"] == 3
    assert found["outbox_bytes_read_total"] == 500
    assert sum(histograms["outbox_end_to_end_latency_seconds"]["counts"]) == 2
    assert histograms["outbox_batch_events"]["sum"] == 5
    assert histograms["outbox_commit_duration_seconds"]["sum"] == pytest.approx(0.2)
    stages = histograms["outbox_stage_duration_seconds"]
    # Together they are the end-to-end latency of the oldest event.
    assert stages["source"]["sum"] == pytest.approx(1, abs=0.1)
    assert stages["processing"]["sum"] == pytest.approx(0.5, abs=0.1)
    assert stages["publish"]["sum"] == pytest.approx(0.5, abs=0.3)
    assert metrics.snapshot()["queue"] == {"capacity": 10, "remaining": 6}
    assert metrics.position is POSITION


def test_a_position_without_events_counts_as_progress_only() -> None:
    metrics = PipelineMetrics()
    metrics.committed(batch(0, 0), 0.1)
    assert metrics.alive.stored_at > 0
    assert values(metrics)["outbox_events_published_total"] == 0
    assert sum(metrics.snapshot()["histograms"]["outbox_batch_events"]["counts"]) == 0


def test_released_events_are_delivered_but_were_published_before() -> None:
    metrics = PipelineMetrics(frozenset({"state"}))
    released = batch(3, 0)
    released.add(record("state"))
    released.other_records = 4
    metrics.committed(released, 0.1)
    assert values(metrics)["outbox_events_delivered_total"] == 3
    assert values(metrics)["outbox_events_published_total"] == 0


def test_a_clock_of_the_database_that_is_ahead_gives_no_negative_latency() -> None:
    metrics = PipelineMetrics()
    metrics.committed(batch(1, 1, age=-100), 0.1)
    assert metrics.snapshot()["histograms"]["outbox_end_to_end_latency_seconds"]["sum"] == 0


@pytest.mark.parametrize(
    ("error", "network", "timeouts", "failed", "records"),
    [
        (SourceUnavailable("Postgres closed the connection"), 1, 0, 0, 0),
        (SourceUnavailable("Postgres did not answer within 30 s"), 0, 1, 0, 0),
        (SourceUnavailable("Postgres has been silent for 30 s"), 0, 1, 0, 0),
        (KafkaUnavailable("publishing a batch: Local: Message timed out"), 0, 1, 0, 0),
        (KafkaUnavailable("no answer within 75 s while committing a batch"), 0, 1, 0, 0),
        (KafkaUnavailable("Broker transport failure"), 1, 0, 0, 0),
        (OutcomeUnknown("stopped"), 0, 1, 0, 0),
        (RecordsRefused("too large", {"1": "too large", "2": "too large"}), 0, 0, 2, 2),
        (RecordDelayed("later", why="", remedy="", seconds=1), 0, 0, 0, 0),
        (Halted("a bad event"), 0, 0, 1, 0),
    ],
)
def test_errors_of_attempts(error: TailraceError, network: int, timeouts: int, failed: int, records: int) -> None:
    metrics = PipelineMetrics()
    metrics.attempt_failed(error)
    found = values(metrics)
    assert found["outbox_network_errors_total"] == network
    assert found["outbox_timeout_errors_total"] == timeouts
    assert found["outbox_events_failed_total"] == failed
    assert found["outbox_retries_total"] == {"attempt": 0, "record": records}


def test_dead_letters_count_by_reason_and_as_validation_errors() -> None:
    metrics = PipelineMetrics()
    metrics.dead_lettered("schema_validation_failed", 2)
    metrics.dead_lettered("max_retries_exceeded", 1)
    found = values(metrics)
    assert found["outbox_events_dlq_total"] == {
        **dict.fromkeys(LABEL_VALUES["reason"], 0),
        "schema_validation_failed": 2,
        "max_retries_exceeded": 1,
    }
    assert (found["outbox_validation_errors_total"], found["outbox_events_failed_total"]) == (2, 3)


def test_a_snapshot_is_json_and_has_only_names_of_the_table() -> None:
    metrics = PipelineMetrics()
    metrics.retrying(3.0)
    metrics.validated(0.00002)
    metrics.alerted("stall")
    metrics.probed({"outbox_pending_events_count": 7, "server_up": {"kafka": 1.0}})
    snapshot = json.loads(json.dumps(metrics.snapshot()))
    assert snapshot["values"].keys() <= BY_NAME.keys()
    assert snapshot["histograms"].keys() == {metric.name for metric in METRICS if metric.kind == "histogram"}
    assert snapshot["values"]["external_db_outbox_size"] == 7
    assert snapshot["values"]["external_db_retry_count_total"] == 1
    assert snapshot["values"]["alerts_total"]["stall"] == 1
    assert snapshot["values"]["pipeline_process_resident_memory_bytes"] > 1_000_000
    assert sum(snapshot["histograms"]["outbox_validation_duration_seconds"]["counts"]) == 1


def test_buckets_include_their_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.snapshot() == {"counts": [2, 2, 1], "sum": 104.0}
