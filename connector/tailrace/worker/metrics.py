"""Records the metrics of one pipeline, batch by batch, and its signs of life; see `metric_table.py` for all names.

One object lives as long as the process. Each value is written by one thread only and read by any: a snapshot may miss
the batch that is being recorded. Nothing here waits, and nothing is recorded per event.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.errors import Halted, OutcomeUnknown, Reason, RecordDelayed, RecordsRefused, TailraceError, Unavailable
from tailrace.histogram import Histogram
from tailrace.pipeline.batch import Batch
from tailrace.positions.base import Position
from tailrace.worker.metric_table import ALERTS, BY_NAME, REASONS, RETRY_STAGES, STAGES

INVALID = (Reason.SCHEMA_VALIDATION_FAILED.value, Reason.POISON_MESSAGE.value)
"""Dead letters with these reasons are validation errors."""
_TIMEOUT = re.compile(r"\btime[d]?[ -]?out|no answer within|did not answer within|silent for", re.IGNORECASE)
"""The drivers report timeouts only in their texts."""
_PAGE = os.sysconf("SC_PAGE_SIZE")

Value = float | dict[str, float]


@dataclass(slots=True)
class Liveness:
    """When the threads of a running pipeline last gave a sign of life, and when a position was last stored.

    Times are of the monotonic clock; 0 means never in this attempt.
    """

    running: bool = False
    reader_at: float = 0.0
    phase: str = ""
    publisher_at: float = 0.0
    publisher_busy: bool = False
    stored_at: float = 0.0


def _histogram(name: str) -> Histogram:
    return Histogram(BY_NAME[name].buckets)


class PipelineMetrics:
    """Implements `pipeline.recorder.Recorder`. `own_topics` are internal topics, whose records are no events."""

    def __init__(self, own_topics: frozenset[str] = frozenset(), *, capacity: int = 0) -> None:
        """`capacity`: most records of a batch."""
        self._own_topics = own_topics
        self._capacity = capacity
        self._filled = 0
        self.alive = Liveness()
        self.position: Position | None = None
        """The position that was stored last."""
        self._stored_at = 0.0
        self._last_event_at = 0.0
        self.published = self.delivered = self.failed = 0
        self.dead_letters = dict.fromkeys(REASONS, 0)
        self._bytes = 0
        self._network = self._timeouts = self._invalid = 0
        self._retries = dict.fromkeys(RETRY_STAGES, 0)
        self._alerts = dict.fromkeys(ALERTS, 0)
        self._batches = _histogram("outbox_batch_events")
        self._latency = _histogram("outbox_end_to_end_latency_seconds")
        self._delivery = _histogram("outbox_delivery_duration_seconds")
        self._commit = _histogram("outbox_commit_duration_seconds")
        self._delay = _histogram("outbox_retry_delay_seconds")
        self._validation = _histogram("outbox_validation_duration_seconds")
        self._stages = {stage: _histogram("outbox_stage_duration_seconds") for stage in STAGES}
        self.validated: Callable[[float], None] = self._validation.observe
        self.observers: list[Callable[[Batch, float], None]] = []
        """Called with each committed batch and the seconds of its commit, by the publisher's thread."""
        self._probed: dict[str, Value] = {}
        self._started = time.time()

    # The recorder of the loop and the publisher

    def reader_alive(self, phase: str) -> None:
        self.alive.phase = phase
        self.alive.reader_at = time.monotonic()

    def publisher_alive(self, *, busy: bool) -> None:
        self.alive.publisher_busy = busy
        self.alive.publisher_at = time.monotonic()

    def filled(self, records: int) -> None:
        self._filled = records

    def committed(self, batch: Batch, commit_seconds: float) -> None:
        for observe in tuple(self.observers):
            observe(batch, commit_seconds)
        now = time.time()
        self.position = batch.position
        self._stored_at = now
        self.alive.stored_at = time.monotonic()
        self._commit.observe(commit_seconds)
        if not batch.records:
            return
        self._batches.observe(len(batch.records))
        published = now - batch.submitted_at
        self._delivery.observe(published)
        if not batch.rows:
            # Events behind released keys, which count as published since they were read.
            self.delivered += sum(record.topic not in self._own_topics for record in batch.records)
            return
        self.published += batch.rows
        self.delivered += len(batch.records) - batch.dead_letters - batch.other_records
        self._bytes += batch.size
        self._last_event_at = now
        oldest, newest = batch.oldest_ms / 1000, batch.newest_ms / 1000
        # The clock of the database may be ahead of ours.
        self._latency.observe(max(0.0, now - oldest))
        self._latency.observe(max(0.0, now - newest))
        self._stages["source"].observe(max(0.0, batch.read_at - oldest))
        self._stages["processing"].observe(max(0.0, batch.submitted_at - batch.read_at))
        self._stages["publish"].observe(published)

    # The supervisor

    def started(self, position: Position) -> None:
        """Notes that the pipeline is RUNNING from `position` on."""
        now = time.monotonic()
        self.position = position
        self.alive = Liveness(running=True, reader_at=now, publisher_at=now, stored_at=now)

    def ended(self) -> None:
        """Notes that the attempt has ended: no thread is expected to give a sign of life."""
        self.alive.running = False

    def dead_lettered(self, reason: str, count: int) -> None:
        """Counts dead letters that are committed to Kafka."""
        self.dead_letters[reason] = self.dead_letters.get(reason, 0) + count
        self.failed += count
        if reason in INVALID:
            self._invalid += count

    def attempt_failed(self, error: TailraceError) -> None:
        """Counts an error that ended an attempt."""
        if isinstance(error, Halted):
            self.failed += 1
            self._invalid += 1
        elif isinstance(error, RecordsRefused):
            self.failed += len(error.reasons)
            self._retries["record"] += len(error.reasons)
        elif isinstance(error, Unavailable) and not isinstance(error, RecordDelayed):
            if isinstance(error, OutcomeUnknown) or _TIMEOUT.search(f"{error.what} {error.why}"):
                self._timeouts += 1
            else:
                self._network += 1

    def retrying(self, seconds: float) -> None:
        """Counts a retry after this delay."""
        self._retries["attempt"] += 1
        self._delay.observe(seconds)

    def alerted(self, kind: str) -> None:
        """Counts an alert of one of the kinds in `ALERTS`."""
        self._alerts[kind] += 1

    # The probe

    def probed(self, values: Mapping[str, Value]) -> None:
        """Replaces the values that the probe has read; names of metrics that it could not read are left out."""
        self._probed = dict(values)

    def snapshot(self) -> dict[str, Any]:
        """Returns all values as plain data: `values` by name, and `histograms` by name.

        A metric with a second label has an object there, by the value of that label.
        """
        retries = sum(self._retries.values())
        values: dict[str, Value] = {
            "outbox_events_published_total": self.published,
            "outbox_events_delivered_total": self.delivered,
            "outbox_events_failed_total": self.failed,
            "outbox_events_dlq_total": dict(self.dead_letters),
            "outbox_validation_errors_total": self._invalid,
            "outbox_network_errors_total": self._network,
            "outbox_timeout_errors_total": self._timeouts,
            "outbox_retries_total": dict(self._retries),
            "outbox_bytes_read_total": self._bytes,
            "alerts_total": dict(self._alerts),
            "external_db_retry_count_total": retries,
            **process_values(self._started),
            **self._probed,
        }
        if self._stored_at:
            values["pipeline_last_stored_timestamp_seconds"] = self._stored_at
        if "outbox_pending_events_count" in values:
            values["external_db_outbox_size"] = values["outbox_pending_events_count"]
        return {
            "values": values,
            "histograms": {
                "outbox_batch_events": self._batches.snapshot(),
                "external_db_batch_size": self._batches.snapshot(),
                "outbox_end_to_end_latency_seconds": self._latency.snapshot(),
                "outbox_delivery_duration_seconds": self._delivery.snapshot(),
                "outbox_commit_duration_seconds": self._commit.snapshot(),
                "outbox_retry_delay_seconds": self._delay.snapshot(),
                "outbox_validation_duration_seconds": self._validation.snapshot(),
                "outbox_stage_duration_seconds": {name: each.snapshot() for name, each in self._stages.items()},
            },
            "queue": {"capacity": self._capacity, "remaining": max(0, self._capacity - self._filled)},
            "last_event_at": self._last_event_at,
        }


def process_values(started: float) -> dict[str, Value]:
    """Returns the metrics of this process; without /proc only the CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    values: dict[str, Value] = {
        "pipeline_process_cpu_seconds_total": used.ru_utime + used.ru_stime,
        "pipeline_process_start_time_seconds": started,
    }
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        values["pipeline_process_resident_memory_bytes"] = pages * _PAGE
        values["pipeline_process_open_fds"] = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1
    except OSError:
        pass
    return values
