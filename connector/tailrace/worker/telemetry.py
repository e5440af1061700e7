"""OpenTelemetry for a pipeline: a span for each batch, and its metrics.

It is on if the SDK is installed and its standard environment variables name an exporter, or if the process has an SDK
provider already (`opentelemetry-instrument`). Otherwise nothing of OpenTelemetry is imported.

Spans follow the conventions for messaging. The trace context in an event's headers stays as its service wrote it: the
span of a batch only links to it. Nothing here can end a pipeline: an error is logged, and then telemetry is off.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tailrace.event import Record
from tailrace.pipeline.batch import Batch
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.metric_table import METRICS, SECONDS, SIZES, Metric
from tailrace.worker.metrics import PipelineMetrics

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Link, TracerProvider

MAX_LINKS = 64
"""Events of a batch whose trace contexts are linked. Of larger batches, so many are chosen evenly."""
FRESH_SECONDS = 0.5
"""All instruments of one export read the same snapshot."""
DISABLED, ENDPOINT = "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
UNITS = {"_seconds": "s", "_bytes": "By", "_events": "{event}"}
HISTOGRAMS = {
    "end_to_end_latency_seconds": ("s", SECONDS),
    "commit_duration_seconds": ("s", SECONDS),
    "batch_events": ("{event}", SIZES),
}
_PROPAGATED = ("traceparent", "tracestate")


def configured(signal: str, environ: Mapping[str, str] | None = None) -> str:
    """Returns the exporter that the environment names for `signal` (TRACES, METRICS); empty if it names none."""
    given = os.environ if environ is None else environ
    if given.get(DISABLED, "").lower() == "true":
        return ""
    has_endpoint = given.get(ENDPOINT) or given.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    name = given.get(f"OTEL_{signal}_EXPORTER", "").strip() or ("otlp" if has_endpoint else "none")
    if name == "none":
        return ""
    if name != "otlp":
        return name
    chosen = given.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or given.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return PROTOCOLS.get(chosen or "http/protobuf", "otlp")


class Telemetry:
    """Exports spans and metrics of one pipeline. Made by `start`; the base class exports nothing."""

    def close(self, seconds: float) -> None:
        """Exports what is left, for at most `seconds`."""


def start(pipeline: str, metrics: PipelineMetrics, log: StructuredLogger | None = None) -> Telemetry:
    """Starts to export spans and metrics, if OpenTelemetry is installed and configured."""
    wanted = "opentelemetry.sdk" in sys.modules or configured("TRACES") or configured("METRICS")
    if not wanted or os.environ.get(DISABLED, "").lower() == "true":
        return Telemetry()
    log = log or StructuredLogger(pipeline=pipeline)
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        log.warning("telemetry is off", what="OpenTelemetry is configured, but its SDK is not installed")
        return Telemetry()
    try:
        tracers, meters = _tracer_provider(pipeline, log), _meter_provider(pipeline, log)
        if tracers is not None or meters is not None:
            return PipelineTelemetry(pipeline, metrics, log, tracers, meters)
    except Exception as error:  # noqa: BLE001 - see the module's docstring
        log.warning("telemetry is off", what="OpenTelemetry cannot be set up", error=f"{type(error).__name__}: {error}")
    return Telemetry()


class PipelineTelemetry(Telemetry):
    """Makes spans and measurements of each committed batch; a provider that is None is not used."""

    def __init__(
        self,
        pipeline: str,
        metrics: PipelineMetrics,
        log: StructuredLogger,
        tracers: TracerProvider | None,
        meters: MeterProvider | None,
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._pipeline = pipeline
        self._metrics = metrics
        self._log = log
        self._providers: list[Any] = [each for each in (tracers, meters) if each is not None]
        self._tracer = tracers.get_tracer("tailrace") if tracers is not None else None
        self._common: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.client.id": f"tailrace-{pipeline}",
        }
        self._snapshot: tuple[float, dict[str, Any]] = (0.0, {})
        self._record: Callable[[Batch, float, float], None] = lambda *_: None
        if meters is not None:
            self._add_instruments(meters)
        metrics.observers.append(self.committed)

    def committed(self, batch: Batch, commit_seconds: float) -> None:
        """Called by the publisher's thread after each commit."""
        if not batch.records:
            return
        try:
            now = time.time()
            self._record(batch, commit_seconds, now)
            if self._tracer is not None:
                self._add_span(batch, now)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self._metrics.observers.remove(self.committed)
            self._log.warning("telemetry is off", error=f"{type(error).__name__}: {error}")

    def _add_span(self, batch: Batch, now: float) -> None:
        assert self._tracer is not None  # noqa: S101 - for mypy
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
        span = self._tracer.start_span(
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

    def _add_instruments(self, meters: MeterProvider) -> None:
        meter = meters.get_meter("tailrace")
        own = {"tailrace.pipeline": self._pipeline}
        for metric in METRICS:
            if metric.origin == "worker" or metric.name.startswith("external_db_") or metric.kind == "histogram":
                continue
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            make(otel_name(metric.name), [self._reader(metric)], unit=_unit(metric.name), description=metric.help)
        sent = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Publishing one batch.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        latency, commit, size = (
            meter.create_histogram(f"tailrace.outbox_{name}", unit=unit, explicit_bucket_boundaries_advisory=bounds)
            for name, (unit, bounds) in HISTOGRAMS.items()
        )
        labels = {**self._common, **own}

        def record(batch: Batch, commit_seconds: float, now: float) -> None:
            sent.record(max(0.0, now - batch.submitted_at), labels)
            commit.record(commit_seconds, own)
            size.record(len(batch.records), own)
            if batch.rows:
                for each in (batch.oldest_ms, batch.newest_ms):
                    latency.record(max(0.0, now - each / 1000), own)

        self._record = record

    def _reader(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        own = {"tailrace.pipeline": self._pipeline}

        def read(_: CallbackOptions) -> Iterable[Observation]:
            value = self._values().get(metric.name)
            if isinstance(value, dict):
                label = next(each for each in metric.labels if each != "pipeline")
                return [Observation(count, {**own, label: name}) for name, count in value.items()]
            return [] if value is None else [Observation(value, own)]

        return read

    def _values(self) -> dict[str, Any]:
        taken, values = self._snapshot
        if time.monotonic() - taken > FRESH_SECONDS:
            values = self._metrics.snapshot()["values"]
            self._snapshot = (time.monotonic(), values)
        return values

    def close(self, seconds: float) -> None:
        if self.committed in self._metrics.observers:
            self._metrics.observers.remove(self.committed)
        # A collector that does not answer must not delay the end of the process.
        ending = threading.Thread(target=self._shut_down, name="telemetry", daemon=True)
        ending.start()
        ending.join(seconds)

    def _shut_down(self) -> None:
        from opentelemetry import metrics

        for provider in self._providers:
            if provider in (self._trace.get_tracer_provider(), metrics.get_meter_provider()):
                provider.force_flush()  # not ours
            else:
                provider.shutdown()


def otel_name(name: str) -> str:
    """Returns the name of a metric in OpenTelemetry. A collector that exports it to Prometheus makes the same name."""
    return f"tailrace.{name.removesuffix('_total')}"


def _unit(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.removesuffix("_total").endswith(ending)), "1")


def _text(value: str | bytes | None) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value or ""


def _tracer_provider(pipeline: str, log: StructuredLogger) -> TracerProvider | None:
    """Returns the provider that the process has, or a new one as the environment configures it, or None."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    present = trace.get_tracer_provider()
    if isinstance(present, SdkProvider):
        return present
    exporter = _exporter("TRACES", log)
    if exporter is None:
        return None
    provider = SdkProvider(resource=_resource(pipeline), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _meter_provider(pipeline: str, log: StructuredLogger) -> MeterProvider | None:
    """The same for metrics."""
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider as SdkProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    present = metrics.get_meter_provider()
    if isinstance(present, SdkProvider):
        return present
    exporter = _exporter("METRICS", log)
    if exporter is None:
        return None
    reader = PeriodicExportingMetricReader(exporter)
    return SdkProvider([reader], resource=_resource(pipeline), shutdown_on_exit=False)


def _exporter(signal: str, log: StructuredLogger) -> Any | None:  # noqa: ANN401 - an exporter of any package
    name = configured(signal)
    if not name:
        return None
    for entry in entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=name):
        return entry.load()()
    log.warning(
        "telemetry is off",
        what=f"no installed package has the OpenTelemetry exporter {name!r} for {signal.lower()}",
        remedy="Install it, such as opentelemetry-exporter-otlp-proto-http.",
    )
    return None


def _resource(pipeline: str) -> Any:  # noqa: ANN401 - a type of the SDK
    from opentelemetry.sdk.resources import Resource

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes = {} if named else {"service.name": "tailrace"}
    return Resource.create({**attributes, "tailrace.pipeline": pipeline})
