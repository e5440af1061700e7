"""Counts what a projection does: events by outcome, batches, durations, failed attempts, dead letters.

Everything is recorded once per batch, in the app's event loop. `api/projections.py` exports it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from tailrace.histogram import Histogram
from tailrace.projections.core.apply import BatchResult

Kind = Literal["counter", "gauge", "histogram"]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0)
SIZES = (1.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)
STATES = ("STARTING", "RUNNING", "WAITING", "REBALANCING", "BLOCKED", "STALLED", "STOPPING")
DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class ProjectionMetric:
    """One exported metric. Its name gets the configured prefix."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("projection",)


METRICS = (
    ProjectionMetric(
        "projection_events_total",
        "counter",
        "Events by outcome: applied, duplicate (skipped: applied before), stale (its entity is newer), skipped (no "
        "handler), waiting (for an earlier version), dead (dead-lettered).",
        ("projection", "topic", "outcome"),
    ),
    ProjectionMetric("projection_batches_total", "counter", "Batches committed to the projection's database."),
    ProjectionMetric("projection_batch_events", "histogram", "Events in one batch."),
    ProjectionMetric(
        "projection_apply_duration_seconds", "histogram", "Applying one batch: handlers, database and commit."
    ),
    ProjectionMetric(
        "projection_event_latency_seconds",
        "histogram",
        "From an event's time to its commit in the projection's database; oldest and newest event of each batch. "
        "Rebuilds do not count.",
    ),
    ProjectionMetric(
        "projection_retries_total",
        "counter",
        "Attempts that failed because of the database (store) or of an event (event). A retry or a dead letter "
        "follows each.",
        ("projection", "cause"),
    ),
    ProjectionMetric(
        "projection_dead_letters_total", "counter", "Events written to the dead-letter topic.", ("projection", "reason")
    ),
    ProjectionMetric(
        "projection_lag_events",
        "gauge",
        "Offsets of the worker's partitions that are not applied yet, as of at most 5 s ago.",
        ("projection", "topic"),
    ),
    ProjectionMetric(
        "projection_last_event_age_seconds",
        "gauge",
        "Age of the newest event that was applied or skipped. Exists after the first one.",
        ("projection", "topic"),
    ),
    ProjectionMetric(
        "projection_last_commit_timestamp_seconds",
        "gauge",
        "When a batch was last committed, as a Unix time. Exists after the first one.",
    ),
    ProjectionMetric("projection_partitions", "gauge", "Partitions that this worker reads."),
    ProjectionMetric("projection_queued_events", "gauge", "Events that were read and are not applied yet."),
    ProjectionMetric(
        "projection_stalled_seconds", "gauge", "For how long the slowest partition with events has made no progress."
    ),
    ProjectionMetric(
        "projection_state", "gauge", "1 for the state of the projection, 0 for all others.", ("projection", "state")
    ),
    # Names of requirement A11 for what is written to an external database
    ProjectionMetric(
        "external_db_transactions_written_total", "counter", "Events applied that do not delete their entity."
    ),
    ProjectionMetric("external_db_transactions_deleted_total", "counter", "Events applied that delete their entity."),
    ProjectionMetric(
        "external_db_write_latency_seconds", "histogram", "The same as projection_apply_duration_seconds."
    ),
    ProjectionMetric(
        "external_db_mongodb_write_errors_total", "counter", "Attempts that failed because of the database (any kind)."
    ),
    ProjectionMetric("external_db_batch_size", "histogram", "The same as projection_batch_events."),
    ProjectionMetric("external_db_retry_count_total", "counter", "The sum of projection_retries_total."),
)
"""All metrics of a projection, with the help texts that `/metrics` shows."""


class ProjectionMetrics:
    """The counters of one projection in this worker; they begin at zero when it starts."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        """By topic and outcome."""
        self.deleted = 0
        self.batches = Histogram(SIZES)
        self.apply_seconds = Histogram(SECONDS)
        self.latency_seconds = Histogram(SECONDS)
        self.retries: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()
        self.last_event_ms: dict[str, int] = {}
        self.last_commit: float | None = None
        self.was_assigned = False
        """Whether it has read a partition since the worker started."""

    def committed(self, topic: str, result: BatchResult) -> None:
        """Records a committed batch. One without events released events that had waited for too long."""
        for outcome, count in result.outcomes.items():
            self.events[topic, outcome.value] += count
        if result.duplicates:
            self.events[topic, DUPLICATE] += result.duplicates
        self.deleted += result.deleted
        if not result.size:
            return
        self.last_commit = now = time.time()
        self.batches.observe(result.size)
        self.apply_seconds.observe(result.seconds)
        if not result.is_rebuild:
            for each in (result.first_ms, result.last_ms):
                self.latency_seconds.observe(max(0.0, now - each / 1000))
        self.last_event_ms[topic] = max(result.last_ms, self.last_event_ms.get(topic, 0))

    @property
    def outcomes(self) -> Counter[str]:
        """The events of all topics by outcome."""
        totals: Counter[str] = Counter()
        for (_, outcome), count in self.events.items():
            totals[outcome] += count
        return totals
