"""Log lines about each batch, at level DEBUG: what was read (`tailrace.source`) and committed (`tailrace.kafka`)."""

from __future__ import annotations

import time

from tailrace.pipeline.batch import Batch
from tailrace.worker.logs import StructuredLogger


class BatchLog:
    """Called with each committed batch, by the publisher's thread."""

    def __init__(self, log: StructuredLogger) -> None:
        self._source = log.of("tailrace.source")
        self._kafka = log.of("tailrace.kafka")

    def __call__(self, batch: Batch, commit_seconds: float) -> None:
        if batch.rows and self._source.is_debug:
            seconds = batch.submitted_at - batch.read_at
            age = batch.read_at - batch.oldest_ms / 1000
            self._source.debug(
                "read", rows=batch.rows, bytes=batch.size, oldest=round(age, 3), processing=round(seconds, 3)
            )
        if self._kafka.is_debug:
            self._kafka.debug(
                "committed",
                position=str(batch.position),
                records=len(batch.records),
                dead_letters=batch.dead_letters,
                topics=",".join(sorted(batch.topics)),
                seconds=round(time.time() - batch.submitted_at, 3),
                commit=round(commit_seconds, 3),
            )
