"""OpenTelemetry for a projection worker: its spans and metrics get the exporters that the environment names."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from tailrace.worker import otel
from tailrace.worker.logs import StructuredLogger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.projections.faust.app import ProjectionApp

CLOSE_SECONDS = 0.5
READ_SECONDS = 2.0


def exporting(app: ProjectionApp, log: StructuredLogger) -> AbstractContextManager[object]:
    """Exports spans and metrics within the context, if OpenTelemetry is installed and configured."""
    found = otel.providers(str(app.conf.id), log)
    return nullcontext() if found is None else _exporting(app, found)


@contextmanager
def _exporting(app: ProjectionApp, found: otel.Providers) -> Iterator[None]:
    from opentelemetry import trace

    from tailrace.projections.core.metrics import METRICS
    from tailrace.projections.faust.metric_values import in_loop, metric_values

    if found.tracers is not None and found.tracers is not trace.get_tracer_provider():
        trace.set_tracer_provider(found.tracers)  # `projections/core/tracing.py` and the app's own code use it
    if found.meters is not None:
        own = [metric for metric in METRICS if not metric.name.startswith("external_db_")]
        meter = found.meters.get_meter("tailrace")
        otel.observe(meter, own, lambda: in_loop(app, lambda: metric_values(app)).result(READ_SECONDS))
    try:
        yield
    finally:
        found.close(CLOSE_SECONDS)
