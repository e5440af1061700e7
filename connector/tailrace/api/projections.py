"""The HTTP edge of a projection worker: `/metrics`, `/livez` and `/readyz`.

It runs in a thread with an event loop of its own, so that it answers even if a handler blocks the app's loop. What it
shows is read in the app's loop.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import asdict
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.api.server import HttpServer, listen
from tailrace.errors import ConfigError, Reason
from tailrace.projections.core.metrics import DUPLICATE, METRICS, STATES, Histogram, Metric
from tailrace.projections.core.store import EventOutcome
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.faust.health import ProjectionHealth, health
from tailrace.projections.projection import Projection
from tailrace.worker.logs import StructuredLogger

T = TypeVar("T")
DEFAULT_PREFIX = "tailrace"
ANSWER_SECONDS = 2.0
"""How long the app's event loop may take to answer; then it is read from outside."""
BEAT_SECONDS = 1.0
BLOCKED_SECONDS = 20.0
"""The worker is not alive if its event loop has been blocked for longer."""
OUTCOMES = (*(each.value for each in EventOutcome), DUPLICATE)


class ProjectionEdge:
    """Serves one address until `close`. Raises AddressInUse or ConfigError at once if that is not possible."""

    def __init__(self, app: ProjectionApp, host: str, port: int, prefix: str = DEFAULT_PREFIX) -> None:
        require_prefix(prefix)
        self._app = app
        self._prefix = prefix
        self._process = ProcessCollector(registry=None)
        self._socket = listen(host, port)
        self._beat_at = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        found: int = self._socket.getsockname()[1]
        return found

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(3)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        routes = [Route("/metrics", self._metrics), Route("/livez", self._livez), Route("/readyz", self._readyz)]
        server = HttpServer(Starlette(routes=routes, exception_handlers={Exception: _answer_bug}), self._socket)
        server.start()
        while not self._closing.is_set():
            self._ask_for_beat()
            try:
                await asyncio.wait_for(self._closing.wait(), BEAT_SECONDS)
            except TimeoutError:
                pass
        await server.close()

    def _ask_for_beat(self) -> None:
        loop = self._app.event_loop
        if loop is None or not loop.is_running():
            self._beat_at = time.monotonic()  # it has not begun, or ends
        else:
            loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        self._beat_at = time.monotonic()

    async def _livez(self, _: Request) -> Response:
        blocked = time.monotonic() - self._beat_at
        if blocked <= BLOCKED_SECONDS:
            return JSONResponse({"status": "ok"})
        answer = {
            "status": "failed",
            "what": f"the event loop has been blocked for {blocked:.0f} s",
            "why": "A handler blocks it: it computes, or waits without `await`.",
            "remedy": "Use an asynchronous client in handlers, or `await asyncio.to_thread(…)`.",
        }
        return JSONResponse(answer, 503)

    async def _readyz(self, _: Request) -> Response:
        states = await self._in_loop(lambda: health(self._app))
        ready = all(each.is_ready for each in states)
        answer = {"status": "ok" if ready else "failed", "projections": [_shown(each) for each in states]}
        return JSONResponse(answer, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        found = await self._in_loop(lambda: families(self._app, self._prefix))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        scrape = CollectorRegistry()
        scrape.register(_Once([*found, *self._process.collect()]))
        return Response(encode(scrape), media_type=None, headers={"content-type": content_type})

    async def _in_loop(self, function: Callable[[], T]) -> T:
        """Calls a function in the app's event loop. If that is blocked, it changes nothing and is read from here."""
        loop = self._app.event_loop
        if loop is None or not loop.is_running():
            return function()
        answer: Future[T] = Future()

        def call() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(function())
                except Exception as error:  # noqa: BLE001 - raised where it is awaited
                    answer.set_exception(error)

        loop.call_soon_threadsafe(call)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_SECONDS)
        except TimeoutError:
            return function()


class _Once(Collector):
    """A collector of families that are made already."""

    def __init__(self, found: list[Family]) -> None:
        self._found = found

    def collect(self) -> Iterable[Family]:
        return self._found

    def describe(self) -> Iterable[Family]:
        return ()


async def _answer_bug(request: Request, error: Exception) -> Response:
    StructuredLogger("tailrace.http").error("failed", path=request.url.path, error=type(error).__name__)
    return JSONResponse({"status": "failed", "what": "a bug in Tailrace; the worker's log names it"}, 500)


def require_prefix(prefix: str) -> None:
    """Raises ConfigError if names of metrics cannot begin like this."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", prefix):
        raise ConfigError(
            f"--metrics-prefix {prefix[:40]!r} cannot begin the name of a metric",
            remedy="Use letters, digits and underscores, such as tailrace.",
        )


def families(app: ProjectionApp, prefix: str = DEFAULT_PREFIX) -> list[Family]:
    """Returns the metrics of all projections of an app, for prometheus-client."""
    made = {metric.name: _family(metric, prefix) for metric in METRICS}
    for projection, state in zip(app.projections, health(app), strict=True):
        _add(made, projection, state)
    return list(made.values())


def _family(metric: Metric, prefix: str) -> Family:
    name = f"{prefix}_{metric.name}"
    if metric.kind == "counter":
        return CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=metric.labels)
    if metric.kind == "gauge":
        return GaugeMetricFamily(name, metric.help, labels=metric.labels)
    return HistogramMetricFamily(name, metric.help, labels=metric.labels)


def _add(made: dict[str, Family], projection: Projection, state: ProjectionHealth) -> None:
    metrics, name = projection.metrics, projection.name

    def add(metric: str, value: float, *labels: str) -> None:
        family = made[metric]
        family.add_metric([name, *labels], value)  # type: ignore[attr-defined]

    def add_histogram(metric: str, histogram: Histogram) -> None:
        family = made[metric]
        assert isinstance(family, HistogramMetricFamily)  # noqa: S101 - for mypy
        family.add_metric([name], _buckets(histogram), histogram.sum)

    for topic in projection.topics:
        for outcome in OUTCOMES:
            add("projection_events_total", metrics.events[topic, outcome], topic, outcome)
        if topic in state.lag:
            add("projection_lag_events", state.lag[topic], topic)
        if topic in metrics.last_event_ms:
            age = max(0.0, time.time() - metrics.last_event_ms[topic] / 1000)
            add("projection_last_event_age_seconds", age, topic)
    for cause in ("store", "event"):
        add("projection_retries_total", metrics.retries[cause], cause)
    for reason in Reason:
        add("projection_dead_letters_total", metrics.dead_letters[reason.value], reason.value)
    for each in STATES:
        add("projection_state", float(each == state.state), each)
    if metrics.last_commit is not None:
        add("projection_last_commit_timestamp_seconds", metrics.last_commit)
    add("projection_batches_total", sum(metrics.batches.counts))
    add("projection_partitions", state.partitions)
    add("projection_queued_events", state.queued)
    add("projection_stalled_seconds", state.stalled_seconds)
    add_histogram("projection_batch_events", metrics.batches)
    add_histogram("projection_apply_duration_seconds", metrics.apply_seconds)
    add_histogram("projection_event_latency_seconds", metrics.latency_seconds)
    add("external_db_transactions_written_total", metrics.outcomes["applied"] - metrics.deleted)
    add("external_db_transactions_deleted_total", metrics.deleted)
    add("external_db_mongodb_write_errors_total", metrics.retries["store"])
    add("external_db_retry_count_total", sum(metrics.retries.values()))
    add_histogram("external_db_write_latency_seconds", metrics.apply_seconds)
    add_histogram("external_db_batch_size", metrics.batches)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _shown(state: ProjectionHealth) -> dict[str, object]:
    return {name: value for name, value in asdict(state).items() if value != ""}
