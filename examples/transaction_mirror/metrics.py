"""The mirror's metrics, named `external_db.…`: as OpenTelemetry instruments, and for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tailrace.api.exposition import buckets
from tailrace.embedded import Drainer, EmbeddedOutbox

PREFIX = "external_db"
LATENCY = "write_latency_seconds"


class MirrorMetrics(Collector):
    """Reads the drainer's and the outbox's own numbers; `deleted` is counted by retention."""

    def __init__(self, outbox: EmbeddedOutbox, drainer: Drainer) -> None:
        stats = drainer.stats
        self.deleted = 0
        self._latency = stats.latency
        self._counters: dict[str, tuple[str, Callable[[], int]]] = {
            "transactions_written": ("Transactions written to the mirror", lambda: stats.written),
            "transactions_deleted": ("Transactions deleted by retention", lambda: self.deleted),
            "mongodb_write_errors": ("Batches that MongoDB did not take", lambda: stats.errors),
            "outbox_write_errors": ("Transactions that could not be captured", lambda: outbox.write_errors),
            "retry_count": ("Retries while MongoDB was away", lambda: stats.retries),
        }
        self._gauges: dict[str, tuple[str, Callable[[], int]]] = {
            "batch_size": ("Transactions in the last batch", lambda: stats.batch_size),
            "outbox_size": ("Transactions in the outbox", lambda: outbox.count),
        }

    def collect(self) -> Iterable[Metric]:
        """Yields the families for Prometheus."""
        for name, (text, read) in self._counters.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=read())
        for name, (text, read) in self._gauges.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=read())
        family = HistogramMetricFamily(f"{PREFIX}_{LATENCY}", "Duration of a batch")
        family.add_metric([], buckets(self._latency.bounds, self._latency.counts), sum_value=self._latency.sum)
        yield family

    def instrument(self, meter: Meter, drainer: Drainer) -> None:
        """Creates the instruments."""
        for name, (text, read) in self._counters.items():
            meter.create_observable_counter(f"{PREFIX}.{name}", [_observed(read)], description=text)
        for name, (text, read) in self._gauges.items():
            meter.create_observable_gauge(f"{PREFIX}.{name}", [_observed(read)], description=text)
        latency = meter.create_histogram(f"{PREFIX}.{LATENCY}", unit="s", description="Duration of a batch")
        drainer.on_batch = lambda seconds, _: latency.record(seconds)


def _observed(read: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(read())]
