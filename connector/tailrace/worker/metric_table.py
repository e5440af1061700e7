"""The table of all metrics: name, kind, labels and meaning. Recording, `/metrics` and docs/metrics.md use this table.

Names have no prefix here: `/metrics` puts the configured one (default `tailrace`) and `_` before those of `METRICS`.
`ALIASES` are exported as they are: dashboards and alerts for Debezium and Kafka Connect read these names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.errors import Reason

Kind = Literal["counter", "gauge", "histogram"]
Origin = Literal["pipeline", "probe", "worker"]

REASONS = tuple(reason.value for reason in Reason)
STATES = ("STARTING", "RUNNING", "WAITING", "RETRYING", "FAILED", "STOPPED", "PAUSED", "RESTARTING")
STAGES = ("source", "processing", "publish")
RETRY_STAGES = ("attempt", "record")
SERVERS = ("source", "kafka", "registry")
ALERTS = ("dead_letters", "dead_letter_leak", "stall", "log_in_danger", "recovery")
STATUSES = ("running", "failed", "paused", "unassigned", "restarting", "stopped")
"""The states of a connector and its task as Kafka Connect names them."""

LABEL_VALUES = {
    "reason": REASONS,
    "state": STATES,
    "stage": STAGES + RETRY_STAGES,
    "server": SERVERS,
    "alert": ALERTS,
    "status": STATUSES,
}
"""All values that each label may have, other than the names of pipelines: they bound the number of series."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0)
"""Buckets of durations and latencies."""
DELAYS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
MICROSECONDS = (0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.001, 0.01)
SIZES = (1.0, 10.0, 100.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `origin` says who knows it: the running pipeline, its probe of the servers, or the worker.

    `when` says when its series exist, if that is not always.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("pipeline",)
    buckets: tuple[float, ...] = ()
    origin: Origin = "pipeline"
    when: str = ""


@dataclass(frozen=True, slots=True)
class Alias:
    """A metric under a name of Debezium or Kafka Connect; `of` says where its value comes from."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    of: str


METRICS = (
    # Events
    Metric("outbox_events_published_total", "counter", "Events that services published to the outbox, as read."),
    Metric("outbox_events_delivered_total", "counter", "Events committed to Kafka. Dead letters do not count."),
    Metric(
        "outbox_events_failed_total",
        "counter",
        "Events that could not be delivered: rejected, or refused by a topic. One that is retried counts each time.",
    ),
    Metric("outbox_events_dlq_total", "counter", "Dead letters committed to Kafka.", ("pipeline", "reason")),
    Metric(
        "outbox_validation_errors_total", "counter", "Events that no schema or rule accepts, or that are unreadable."
    ),
    Metric("outbox_network_errors_total", "counter", "Attempts that ended because a server was not reachable."),
    Metric("outbox_timeout_errors_total", "counter", "Attempts that ended because a server did not answer in time."),
    Metric(
        "outbox_retries_total",
        "counter",
        "Retries: of the pipeline after an error (attempt), and of records that their topic refused (record).",
        ("pipeline", "stage"),
    ),
    Metric("outbox_bytes_read_total", "counter", "Bytes of outbox rows read from the source's log."),
    # Durations
    Metric(
        "outbox_end_to_end_latency_seconds",
        "histogram",
        "From the commit in the database to the commit in Kafka; oldest and newest event of each batch.",
        buckets=SECONDS,
    ),
    Metric(
        "outbox_stage_duration_seconds",
        "histogram",
        "The end-to-end latency of the oldest event of a batch in its parts: until it is read (source), until its "
        "batch is submitted (processing), until that is committed (publish).",
        ("pipeline", "stage"),
        SECONDS,
    ),
    Metric(
        "outbox_delivery_duration_seconds",
        "histogram",
        "Publishing one batch: from its submission to the publisher until it is committed to Kafka.",
        buckets=SECONDS,
    ),
    Metric("outbox_commit_duration_seconds", "histogram", "The commit of one Kafka transaction.", buckets=SECONDS),
    Metric(
        "outbox_validation_duration_seconds",
        "histogram",
        "Validating one event; about one event per batch is measured.",
        buckets=MICROSECONDS,
    ),
    Metric("outbox_retry_delay_seconds", "histogram", "Delays before an attempt is repeated.", buckets=DELAYS),
    Metric("outbox_batch_events", "histogram", "Records in one Kafka transaction.", buckets=SIZES),
    # Lag and the log, read by the probe
    Metric("outbox_lag_bytes", "gauge", "Bytes of WAL after the stored position.", origin="probe", when="Postgres"),
    Metric(
        "outbox_lag_seconds",
        "gauge",
        "Age of the first change after the stored position; 0 if there is none.",
        origin="probe",
    ),
    Metric(
        "outbox_pending_events_count",
        "gauge",
        "Events in the outbox that are not delivered yet (the lag in events). An estimate above a bound; see "
        "docs/metrics.md.",
        origin="probe",
    ),
    Metric("outbox_table_size_bytes", "gauge", "Size of the outbox on disk, with indexes.", origin="probe"),
    Metric("outbox_dlq_events_count", "gauge", "Open dead letters, counted up to 10,000.", origin="probe"),
    Metric("outbox_parked_keys_count", "gauge", "Keys whose events wait behind a dead letter.", origin="probe"),
    Metric(
        "log_retained_bytes",
        "gauge",
        "Log that the server keeps for the pipeline: WAL behind its slot, or oplog after its position (estimated).",
        origin="probe",
    ),
    Metric(
        "log_safe_bytes",
        "gauge",
        "Log that may still be written before the server removes what the pipeline needs.",
        origin="probe",
        when="The server limits its log: max_slot_wal_keep_size, or an oplog.",
    ),
    Metric("log_growth_bytes_per_second", "gauge", "Log written per second, over some minutes.", origin="probe"),
    Metric(
        "log_lost_in_seconds",
        "gauge",
        "Forecast: seconds until the server removes log that the pipeline needs, if it stored no further position. "
        "+Inf if the server has no limit or writes nothing.",
        origin="probe",
    ),
    Metric(
        "server_up", "gauge", "1 if the server answered the last probe, else 0.", ("pipeline", "server"), (), "probe"
    ),
    Metric(
        "certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate that the server presented expires, as a Unix time.",
        ("pipeline", "server"),
        origin="probe",
        when="The connection to the server uses TLS.",
    ),
    # The pipeline and its process
    Metric(
        "pipeline_state",
        "gauge",
        "1 for the state of the pipeline, 0 for all others.",
        ("pipeline", "state"),
        (),
        "worker",
    ),
    Metric("pipeline_restarts_total", "counter", "Automatic restarts of the pipeline's process.", origin="worker"),
    Metric(
        "pipeline_last_stored_timestamp_seconds",
        "gauge",
        "When a position was last stored in Kafka, as a Unix time.",
        when="A position was stored.",
    ),
    Metric("alerts_total", "counter", "Alerts raised, by kind.", ("pipeline", "alert")),
    Metric("pipeline_process_cpu_seconds_total", "counter", "CPU time of the pipeline's process."),
    Metric("pipeline_process_resident_memory_bytes", "gauge", "Resident memory of the pipeline's process."),
    Metric("pipeline_process_open_fds", "gauge", "Open file descriptors of the pipeline's process."),
    Metric("pipeline_process_start_time_seconds", "gauge", "When the pipeline's process started, as a Unix time."),
    # Names of requirement A11 that have a counterpart here
    Metric("external_db_batch_size", "histogram", "The same as outbox_batch_events.", buckets=SIZES),
    Metric("external_db_outbox_size", "gauge", "The same as outbox_pending_events_count.", origin="probe"),
    Metric("external_db_retry_count_total", "counter", "The sum of outbox_retries_total."),
)

_DEBEZIUM = ("plugin", "name", "context")
_TASK = ("connector", "task")

ALIASES = (
    Alias("debezium_metrics_Connected", "gauge", _DEBEZIUM, "1 while the pipeline is RUNNING"),
    Alias("debezium_metrics_MilliSecondsBehindSource", "gauge", _DEBEZIUM, "outbox_lag_seconds × 1000"),
    Alias(
        "debezium_metrics_MilliSecondsSinceLastEvent", "gauge", _DEBEZIUM, "since the last event was read; -1 if none"
    ),
    Alias("debezium_metrics_TotalNumberOfEventsSeen", "gauge", _DEBEZIUM, "outbox_events_published_total"),
    Alias("debezium_metrics_TotalNumberOfCreateEventsSeen", "gauge", _DEBEZIUM, "outbox_events_published_total"),
    Alias("debezium_metrics_NumberOfErroneousEvents", "gauge", _DEBEZIUM, "outbox_events_failed_total"),
    Alias(
        "debezium_metrics_NumberOfEventsFiltered", "gauge", _DEBEZIUM, "0: every event is published or dead-lettered"
    ),
    Alias(
        "debezium_metrics_QueueTotalCapacity", "gauge", _DEBEZIUM, "limits.batch_records: the queue is the next batch"
    ),
    Alias("debezium_metrics_QueueRemainingCapacity", "gauge", _DEBEZIUM, "free places in the next batch"),
    Alias("debezium_metrics_SnapshotRunning", "gauge", _DEBEZIUM, "1 while existing rows are read (context=snapshot)"),
    Alias("debezium_metrics_SnapshotCompleted", "gauge", _DEBEZIUM, "1 after that (context=snapshot)"),
    Alias(
        "debezium_metrics_RemainingTableCount", "gauge", _DEBEZIUM, "1 while existing rows are read (context=snapshot)"
    ),
    Alias("debezium_metrics_TotalTableCount", "gauge", _DEBEZIUM, "1 (context=snapshot)"),
    Alias("kafka_connect_connector_status", "gauge", ("connector", "status"), "1 for the current status only"),
    Alias("kafka_connect_connector_task_status", "gauge", (*_TASK, "status"), "1 for the current status only"),
    *(
        Alias(
            f"kafka_connect_worker_connector_{each}_task_count", "gauge", ("connector",), "1 or 0: the pipeline's task"
        )
        for each in ("total", "running", "paused", "failed", "unassigned", "restarting", "destroyed")
    ),
    Alias("kafka_connect_worker_connector_count", "gauge", (), "pipelines of the worker"),
    Alias("kafka_connect_worker_task_count", "gauge", (), "pipelines of the worker that are not stopped"),
    Alias("kafka_connect_source_task_source_record_poll_total", "gauge", _TASK, "outbox_events_published_total"),
    Alias("kafka_connect_source_task_source_record_write_total", "gauge", _TASK, "outbox_events_delivered_total"),
)

BY_NAME = {metric.name: metric for metric in METRICS}
