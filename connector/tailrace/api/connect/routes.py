"""The routes of Kafka Connect's REST API, and what each of them takes and answers.

Every path answers every method: with its handler, with 405 and `Allow`, or, for OPTIONS, with `Allow` alone. A path may
end with a slash.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tailrace.api.connect.answers import ConnectError, answer_of, error_answer, http_error, json_answer
from tailrace.api.connect.connectors import Connectors
from tailrace.api.connect.lifecycle import Lifecycle
from tailrace.api.connect.offsets import Offsets
from tailrace.api.connect.openapi import OPENAPI_PATH, document
from tailrace.api.connect.plugins import Plugins
from tailrace.errors import TailraceError
from tailrace.manager.manager import PipelineManager
from tailrace.worker.logs import StructuredLogger

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Dispatches one path by method. Implements ASGI, so that Starlette passes every method on."""

    handlers: dict[str, Handler]
    log: StructuredLogger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.answer(Request(scope, receive))
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        handler = self.handlers.get(method)
        if handler is None:
            allowed = [*self.handlers, *(["HEAD"] if "GET" in self.handlers else []), "OPTIONS"]
            return Response(status_code=200, headers={"Allow": ",".join(allowed)}) if method == "OPTIONS" else (
                http_error(405, allowed)
            )  # fmt: skip
        try:
            return await handler(request)
        except (ConnectError, TailraceError) as error:
            return answer_of(error)
        except (ClientDisconnect, HTTPException):
            raise
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not look like one of Connect
            where = f"{request.method} {request.url.path[:200]}"
            self.log.error("request failed", request=where, trace=traceback.format_exc()[-4000:])  # noqa: TRY400
            return error_answer(500, f"internal error ({type(error).__name__}). See the log of the worker.")


def routes(manager: PipelineManager) -> list[BaseRoute]:
    """Returns the routes of Connect's REST API for the pipelines of a worker."""
    log = StructuredLogger("tailrace.http")
    found: list[BaseRoute] = []
    for path, handlers in _handlers(manager).items():
        endpoint = Endpoint(handlers, log)
        found.append(Route(path, endpoint))
        if path != "/":
            found.append(Route(f"{path}/", endpoint))
    return found


def _handlers(manager: PipelineManager) -> dict[str, dict[str, Handler]]:
    connectors, lifecycle = Connectors(manager), Lifecycle(manager)
    offsets, plugins = Offsets(manager), Plugins(manager)
    one = "/connectors/{name}"
    return {
        "/": {"GET": lifecycle.worker},
        "/connectors": {"GET": connectors.names, "POST": connectors.create},
        one: {"GET": connectors.show, "DELETE": connectors.delete},
        f"{one}/config": {
            "GET": connectors.config, "PUT": connectors.put_config, "PATCH": connectors.patch_config
        },
        f"{one}/status": {"GET": connectors.status},
        f"{one}/restart": {"POST": lifecycle.restart},
        f"{one}/pause": {"PUT": lifecycle.pause},
        f"{one}/resume": {"PUT": lifecycle.resume},
        f"{one}/stop": {"PUT": lifecycle.stop},
        f"{one}/tasks": {"GET": connectors.tasks},
        f"{one}/tasks-config": {"GET": connectors.tasks_config},
        f"{one}/tasks/{{task}}/status": {"GET": lifecycle.task_status},
        f"{one}/tasks/{{task}}/restart": {"POST": lifecycle.restart_task},
        f"{one}/topics": {"GET": offsets.topics},
        f"{one}/topics/reset": {"PUT": offsets.reset_topics},
        f"{one}/offsets": {"GET": offsets.show, "PATCH": offsets.alter, "DELETE": offsets.reset},
        "/connector-plugins": {"GET": plugins.classes},
        "/connector-plugins/{plugin}/config": {"GET": plugins.definitions},
        "/connector-plugins/{plugin}/config/validate": {"PUT": plugins.validate},
        "/admin/loggers": {"GET": lifecycle.loggers},
        "/admin/loggers/{logger}": {"GET": lifecycle.logger, "PUT": lifecycle.set_logger},
        OPENAPI_PATH: {"GET": _document},
    }  # fmt: skip


async def _document(_: Request) -> Response:
    return json_answer(document())
