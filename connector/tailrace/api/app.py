"""The ASGI app of a worker: joins the routes of all parts of the HTTP edge."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from tailrace.api import health, metrics
from tailrace.api.connect import routes as connect
from tailrace.api.connect.answers import answer_http_error
from tailrace.api.errors import answer_error
from tailrace.api.exposition import DEFAULT_PREFIX
from tailrace.errors import TailraceError
from tailrace.manager.manager import PipelineManager


def create_app(
    manager: PipelineManager, routes: Sequence[BaseRoute] = (), *, metrics_prefix: str = DEFAULT_PREFIX
) -> Starlette:
    """Creates the app. `routes` are those of the caller, before all others."""
    own = [*metrics.routes(manager, metrics_prefix), *health.routes(manager), *connect.routes(manager)]
    handlers = {TailraceError: answer_error, HTTPException: answer_http_error}
    return Starlette(routes=[*routes, *own], exception_handlers=handlers)
