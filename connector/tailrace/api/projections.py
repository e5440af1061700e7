"""The HTTP edge of a projection worker: `/metrics`, `/livez` and `/readyz`.

It runs in a thread with an event loop of its own, so that it answers even if a handler blocks the app's loop. What it
shows is read in the app's loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from prometheus_client import ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.api.exposition import DEFAULT_PREFIX, answer, buckets, family, require_prefix
from tailrace.api.guard import AccessGuard
from tailrace.api.port import PortProtection
from tailrace.api.server import HttpServer, listen
from tailrace.histogram import Histogram
from tailrace.projections.core.metrics import METRICS
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.faust.health import ProjectionHealth, health
from tailrace.projections.faust.metric_values import Values, in_loop, metric_values
from tailrace.worker.logs import StructuredLogger

T = TypeVar("T")
ANSWER_SECONDS = 2.0
"""How long the app's event loop may take to answer; then it is read from outside."""
BEAT_SECONDS = 1.0
BLOCKED_SECONDS = 20.0
"""The worker is not alive if its event loop has been blocked for longer."""


class ProjectionEdge:
    """Serves one address until `close`. Raises AddressInUse or ConfigError at once if that is not possible."""

    def __init__(
        self,
        app: ProjectionApp,
        host: str,
        port: int,
        prefix: str = DEFAULT_PREFIX,
        protection: PortProtection | None = None,
    ) -> None:
        require_prefix(prefix)
        self._host, self._port = host, port
        self._protection = protection or PortProtection(None)
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
        protection = self._protection
        app = Starlette(routes=routes, exception_handlers={Exception: _answer_bug})
        server = HttpServer(AccessGuard(app, lambda: protection.settings), self._socket, protection.context)
        server.start()
        following = asyncio.create_task(protection.follow(self._host, self._port))
        while not self._closing.is_set():
            self._ask_for_beat()
            try:
                await asyncio.wait_for(self._closing.wait(), BEAT_SECONDS)
            except TimeoutError:
                pass
        following.cancel()
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
        failed = {
            "status": "failed",
            "what": f"the event loop has been blocked for {blocked:.0f} s",
            "why": "A handler blocks it: it computes, or waits without `await`.",
            "remedy": "Use an asynchronous client in handlers, or `await asyncio.to_thread(…)`.",
        }
        return JSONResponse(failed, 503)

    async def _readyz(self, _: Request) -> Response:
        states = await self._read(lambda: health(self._app))
        ready = all(each.is_ready for each in states)
        shown = {"status": "ok" if ready else "failed", "projections": [_shown(each) for each in states]}
        return JSONResponse(shown, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        values = await self._read(lambda: metric_values(self._app))
        return answer(request, [*families(values, self._prefix), *self._process.collect()])

    async def _read(self, function: Callable[[], T]) -> T:
        """Calls a function in the app's event loop. If that is blocked, it changes nothing and is read from here."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(in_loop(self._app, function)), ANSWER_SECONDS)
        except TimeoutError:
            return function()


def families(values: Values, prefix: str = DEFAULT_PREFIX) -> list[Family]:
    """Returns the metrics of projections for prometheus-client."""
    found = []
    for metric in METRICS:
        made = family(f"{prefix}_{metric.name}", metric.kind, metric.help, metric.labels)
        for labels, value in values[metric.name].items():
            if isinstance(value, Histogram):
                assert isinstance(made, HistogramMetricFamily)  # noqa: S101 - for mypy
                made.add_metric(labels, buckets(value.bounds, value.counts), value.sum)
            else:
                made.add_metric(labels, value)  # type: ignore[attr-defined]
        found.append(made)
    return found


async def _answer_bug(request: Request, error: Exception) -> Response:
    StructuredLogger("tailrace.http").error("failed", path=request.url.path, error=type(error).__name__)
    return JSONResponse({"status": "failed", "what": "a bug in Tailrace; the worker's log names it"}, 500)


def _shown(state: ProjectionHealth) -> dict[str, object]:
    return {name: value for name, value in asdict(state).items() if value != ""}
