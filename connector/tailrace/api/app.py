"""The ASGI app of a worker: joins the routes of all parts of the HTTP edge."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from tailrace.api.errors import answer_error
from tailrace.errors import TailraceError
from tailrace.manager.manager import PipelineManager


def create_app(manager: PipelineManager, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Creates the app. `routes` are those of the caller, before all others."""
    return Starlette(routes=[*routes], exception_handlers={TailraceError: answer_error})
