"""The text formats of Prometheus for metrics that are kept elsewhere: families, buckets, and the answer to a scrape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from tailrace.errors import ConfigError

DEFAULT_PREFIX = "tailrace"


def require_prefix(prefix: str) -> None:
    """Raises ConfigError if names of metrics cannot begin like this."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", prefix):
        raise ConfigError(
            f"--metrics-prefix {prefix[:40]!r} cannot begin the name of a metric",
            remedy="Use letters, digits and underscores, such as tailrace.",
        )


def family(name: str, kind: str, text: str, labels: Sequence[str]) -> Family:
    """Returns an empty family; `kind` is counter, gauge or histogram."""
    if kind == "counter":
        return CounterMetricFamily(name.removesuffix("_total"), text, labels=labels)
    if kind == "gauge":
        return GaugeMetricFamily(name, text, labels=labels)
    return HistogramMetricFamily(name, text, labels=labels)


def buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Returns cumulated buckets; `counts` has one number per bound, and one for the rest."""
    found, total = [], 0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found


def answer(request: Request, families: Iterable[Family]) -> Response:
    """Answers a scrape in the format that the client accepts: text, or OpenMetrics."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    scrape = CollectorRegistry()
    scrape.register(_Once(list(families)))
    return Response(encode(scrape), media_type=None, headers={"content-type": content_type})


class _Once(Collector):
    """A collector of families that are made already."""

    def __init__(self, found: list[Family]) -> None:
        self._found = found

    def collect(self) -> Iterable[Family]:
        return self._found

    def describe(self) -> Iterable[Family]:
        return ()
