"""What a pipeline reports about its work: signs of life, and figures of each committed batch.

The loop and the publisher know only this Protocol; `worker.metrics.PipelineMetrics` implements it. Calls must be cheap
and must not block: they are made a few times per batch, never per event.
"""

from __future__ import annotations

from typing import Protocol

from tailrace.pipeline.batch import Batch

READING, PROCESSING, PUBLISHING, RELEASING = "reading", "processing", "publishing", "releasing"
"""What the reading thread does: waits for the source, processes rows, waits for the publisher, releases parked keys."""


class Recorder(Protocol):
    """Receives the reports of one pipeline."""

    def reader_alive(self, phase: str) -> None:
        """Called by the reading thread whenever it begins `phase`, about every second or more often."""

    def publisher_alive(self, *, busy: bool) -> None:
        """Called by the publisher's thread when it takes a batch, while it waits for Kafka, and when it is idle."""

    def filled(self, records: int) -> None:
        """Called with the number of records that the next batch has so far."""

    def committed(self, batch: Batch, commit_seconds: float) -> None:
        """Called by the publisher's thread after a batch is committed."""


class NullRecorder:
    """Records nothing; for commands and tests."""

    def reader_alive(self, phase: str) -> None:
        pass

    def publisher_alive(self, *, busy: bool) -> None:
        pass

    def filled(self, records: int) -> None:
        pass

    def committed(self, batch: Batch, commit_seconds: float) -> None:
        pass
