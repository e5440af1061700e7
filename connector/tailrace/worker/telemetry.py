"""OpenTelemetry for a pipeline: a span for each batch, and its metrics. Off unless `otel.py` finds it configured.

Spans follow the conventions for messaging. The trace context in an event's headers stays as its service wrote it: the
span of a batch only links to it. Nothing here can end a pipeline: an error is logged, and then telemetry is off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.event import Record
from tailrace.pipeline.batch import Batch
from tailrace.worker import otel
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.metric_table import METRICS, SECONDS, SIZES
from tailrace.worker.metrics import PipelineMetrics

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Link, Tracer

MAX_LINKS = 64
"""Events of a batch whose trace contexts are linked. Of larger batches, so many are chosen evenly."""
EXPORTED = [each for each in METRICS if each.origin != "worker" and not each.name.startswith("external_db_")]
"""What a pipeline's process knows, without repetitions."""
_PROPAGATED = ("traceparent", "tracestate")


class Telemetry:
    """Exports spans and metrics of one pipeline. Made by `start`; the base class exports nothing."""

    def close(self, seconds: float) -> None:
        """Exports what is left, for at most `seconds`."""


def start(pipeline: str, metrics: PipelineMetrics, log: StructuredLogger | None = None) -> Telemetry:
    """Starts to export spans and metrics, if OpenTelemetry is installed and configured."""
    log = log or StructuredLogger(pipeline=pipeline)
    found = otel.providers(pipeline, log)
    if found is not None:
        try:
            return PipelineTelemetry(pipeline, metrics, log, found)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            log.warning(otel.OFF, error=f"{type(error).__name__}: {error}")
    return Telemetry()


class PipelineTelemetry(Telemetry):
    """Makes a span and measurements of each committed batch."""

    def __init__(
        self, pipeline: str, metrics: PipelineMetrics, log: StructuredLogger, providers: otel.Providers
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._pipeline = pipeline
        self._metrics = metrics
        self._log = log
        self._providers = providers
        self._common: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.client.id": f"tailrace-{pipeline}",
        }
        self._tracer: Tracer | None = providers.tracers.get_tracer("tailrace") if providers.tracers else None
        self._measure: Callable[[Batch, float, float], None] = lambda *_: None
        if providers.meters is not None:
            meter = providers.meters.get_meter("tailrace")
            otel.observe(meter, EXPORTED, self._values)
            self._measure = self._measuring(meter)
        metrics.observers.append(self.committed)

    def committed(self, batch: Batch, commit_seconds: float) -> None:
        """Called by the publisher's thread after each commit."""
        if not batch.records:
            return
        try:
            now = time.time()
            self._measure(batch, commit_seconds, now)
            if self._tracer is not None:
                self._add_span(self._tracer, batch, now)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self._metrics.observers.remove(self.committed)
            self._log.warning(otel.OFF, error=f"{type(error).__name__}: {error}")

    def close(self, seconds: float) -> None:
        if self.committed in self._metrics.observers:
            self._metrics.observers.remove(self.committed)
        self._providers.close(seconds)

    def _add_span(self, tracer: Tracer, batch: Batch, now: float) -> None:
        topics = sorted(batch.topics)
        attributes = {
            **self._common,
            "messaging.batch.message_count": len(batch.records),
            "tailrace.pipeline": self._pipeline,
            "tailrace.position": str(batch.position),
            "tailrace.dead_letters": batch.dead_letters,
        }
        if len(topics) == 1:
            attributes["messaging.destination.name"] = topics[0]
        span = tracer.start_span(
            f"send {topics[0]}" if len(topics) == 1 else "send",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=attributes,
            links=self._links(batch.records),
            start_time=int(batch.submitted_at * 1e9),
        )
        span.end(int(now * 1e9))

    def _links(self, records: list[Record]) -> list[Link]:
        """Links to the spans in which the events were written, as far as their headers name them."""
        step = -(-len(records) // MAX_LINKS)
        links = []
        for record in records[::step]:
            values = {name: _text(value) for name, value in record.headers if name in _PROPAGATED and value}
            if "traceparent" in values:
                found = self._trace.get_current_span(self._propagator.extract(values)).get_span_context()
                if found.is_valid:
                    links.append(self._trace.Link(found, {"messaging.destination.name": record.topic}))
        return links

    def _measuring(self, meter: Meter) -> Callable[[Batch, float, float], None]:
        """Returns the function that adds a batch to the histograms."""
        own = {"pipeline": self._pipeline}
        labels = {**self._common, **own}

        def histogram(name: str, unit: str, bounds: tuple[float, ...]) -> Callable[..., None]:
            return meter.create_histogram(name, unit=unit, explicit_bucket_boundaries_advisory=bounds).record

        sent = histogram("messaging.client.operation.duration", "s", SECONDS)
        latency = histogram("tailrace.outbox_end_to_end_latency_seconds", "s", SECONDS)
        commit = histogram("tailrace.outbox_commit_duration_seconds", "s", SECONDS)
        size = histogram("tailrace.outbox_batch_events", "{event}", SIZES)

        def measure(batch: Batch, commit_seconds: float, now: float) -> None:
            sent(max(0.0, now - batch.submitted_at), labels)
            commit(commit_seconds, own)
            size(len(batch.records), own)
            if batch.rows:
                latency(max(0.0, now - batch.oldest_ms / 1000), own)
                latency(max(0.0, now - batch.newest_ms / 1000), own)

        return measure

    def _values(self) -> otel.Values:
        values = self._metrics.snapshot()["values"]
        return {
            name: {(self._pipeline, label): each for label, each in value.items()}
            if isinstance(value, dict)
            else {(self._pipeline,): value}
            for name, value in values.items()
        }


def _text(value: str | bytes | None) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value or ""
