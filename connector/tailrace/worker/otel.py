"""Set-up of OpenTelemetry from its standard environment variables: which exporters, which providers, which instruments.

A provider that the process has already is used as it is (`opentelemetry-instrument`, or a user's own code). Nothing of
OpenTelemetry is imported before a function here is called that needs it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.worker.logs import StructuredLogger

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

FRESH_SECONDS = 0.5
"""All instruments of one export read the same values."""
DISABLED, ENDPOINT = "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
UNITS = {"_seconds": "s", "_bytes": "By", "_events": "{event}"}
OFF = "telemetry is off"

Values = Mapping[str, Mapping[tuple[str, ...], object]]
"""Values by the name of the metric, then by the values of its labels."""


class MetricInfo(Protocol):
    """A metric of `metric_table.py` or of projections."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Providers:
    """The providers to use; None where nothing is exported."""

    tracers: TracerProvider | None
    meters: MeterProvider | None

    def close(self, seconds: float) -> None:
        """Exports what is left. A collector that does not answer must not delay the end of the process."""
        ending = threading.Thread(target=self._shut_down, name="telemetry", daemon=True)
        ending.start()
        ending.join(seconds)

    def _shut_down(self) -> None:
        from opentelemetry import metrics, trace

        present = (trace.get_tracer_provider(), metrics.get_meter_provider())
        provider: Any
        for provider in (self.tracers, self.meters):
            if provider is not None:
                provider.force_flush() if provider in present else provider.shutdown()


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


def providers(name: str, log: StructuredLogger) -> Providers | None:
    """Returns the providers for a pipeline or an app; None if OpenTelemetry is not installed or not configured.

    Never raises: what cannot be set up is logged.
    """
    wanted = "opentelemetry.sdk" in sys.modules or configured("TRACES") or configured("METRICS")
    if not wanted or os.environ.get(DISABLED, "").lower() == "true":
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        log.warning(OFF, what="OpenTelemetry is configured, but its SDK is not installed")
        return None
    try:
        found = Providers(_tracer_provider(name, log), _meter_provider(name, log))
    except Exception as error:  # noqa: BLE001 - see the docstring
        log.warning(OFF, what="OpenTelemetry cannot be set up", error=f"{type(error).__name__}: {error}")
        return None
    return None if found == Providers(None, None) else found


def observe(meter: Meter, table: Iterable[MetricInfo], read: Callable[[], Values]) -> None:
    """Exports the counters and gauges of a table. `read` returns their values, in the thread of the exporter."""
    fresh = _Fresh(read)
    for metric in table:
        if metric.kind != "histogram":
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            callback = partial(_observations, metric, fresh)
            make(otel_name(metric.name), [callback], unit=_unit(metric.name), description=metric.help)


def otel_name(name: str) -> str:
    """Returns the name of a metric in OpenTelemetry. A collector that exports it to Prometheus makes the same name."""
    return f"tailrace.{name.removesuffix('_total')}"


class _Fresh:
    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read
        self._taken_at = float("-inf")
        self._values: Values = {}

    def __call__(self) -> Values:
        if time.monotonic() - self._taken_at > FRESH_SECONDS:
            self._values = self._read()
            self._taken_at = time.monotonic()
        return self._values


def _observations(metric: MetricInfo, read: Callable[[], Values], _: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    found = read().get(metric.name, {})
    return [
        Observation(value, dict(zip(metric.labels, labels, strict=True)))
        for labels, value in found.items()
        if isinstance(value, int | float)
    ]


def _unit(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.removesuffix("_total").endswith(ending)), "1")


def _tracer_provider(name: str, log: StructuredLogger) -> TracerProvider | None:
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
    provider = SdkProvider(resource=_resource(name), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _meter_provider(name: str, log: StructuredLogger) -> MeterProvider | None:
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
    return SdkProvider([PeriodicExportingMetricReader(exporter)], resource=_resource(name), shutdown_on_exit=False)


def _exporter(signal: str, log: StructuredLogger) -> Any | None:  # noqa: ANN401 - an exporter of any package
    name = configured(signal)
    if not name:
        return None
    for entry in entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=name):
        return entry.load()()
    log.warning(
        OFF,
        what=f"no installed package has the OpenTelemetry exporter {name!r} for {signal.lower()}",
        remedy="Install it, such as opentelemetry-exporter-otlp-proto-http.",
    )
    return None


def _resource(name: str) -> Any:  # noqa: ANN401 - a type of the SDK
    from opentelemetry.sdk.resources import Resource

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes = {} if named else {"service.name": "tailrace"}
    return Resource.create({**attributes, "tailrace.name": name})
