"""Restart, pause, resume and stop connectors; their task; topics; loggers; the worker itself."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace import __version__
from tailrace.api.connect.answers import ConnectError, empty_answer, json_answer
from tailrace.api.connect.connectors import find_pipeline
from tailrace.api.connect.requests import is_true, read_object
from tailrace.api.connect.states import has_task, status_json
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import PAUSED, RUNNING, STOPPED
from tailrace.worker.logs import LEVELS

CONNECT_VERSION = "4.1.0-tailrace"
"""The version of Connect whose API this is: clients use what that version has."""


class Lifecycle:
    """Handlers that change or show how a connector runs."""

    def __init__(self, manager: PipelineManager) -> None:
        self._manager = manager

    async def worker(self, _: Request) -> Response:
        cluster = await self._manager.cluster_id()
        return json_answer({"version": CONNECT_VERSION, "commit": __version__, "kafka_cluster_id": cluster})

    async def restart(self, request: Request) -> Response:
        """204 without parameters; 202 with the status for `includeTasks` or `onlyFailed`."""
        pipeline = find_pipeline(self._manager, request)
        include, only_failed = is_true(request, "includeTasks"), is_true(request, "onlyFailed")
        restarted = await self._manager.restart(pipeline.name, only_failed=only_failed)
        if not include and not only_failed:
            return empty_answer(204)
        return json_answer(status_json(pipeline, self._manager.worker_id, restarting=restarted), 202)

    async def pause(self, request: Request) -> Response:
        return await self._set_target(request, PAUSED, 202)

    async def resume(self, request: Request) -> Response:
        return await self._set_target(request, RUNNING, 202)

    async def stop(self, request: Request) -> Response:
        return await self._set_target(request, STOPPED, 204)

    async def _set_target(self, request: Request, target: str, status: int) -> Response:
        await self._manager.set_target(find_pipeline(self._manager, request).name, target)
        return empty_answer(status)

    async def task_status(self, request: Request) -> Response:
        pipeline = self._with_task(request, "No status found for task {}")
        [task] = status_json(pipeline, self._manager.worker_id)["tasks"]
        return json_answer(task)

    async def restart_task(self, request: Request) -> Response:
        pipeline = self._with_task(request, "Unknown task: {}")
        await self._manager.restart(pipeline.name)
        return empty_answer(204)

    def _with_task(self, request: Request, message: str) -> ManagedPipeline:
        pipeline, task = find_pipeline(self._manager, request), request.path_params["task"]
        if task != "0" or not has_task(pipeline):
            raise ConnectError(404, message.format(f"{pipeline.name}-{task[:20]}"))
        return pipeline

    async def loggers(self, _: Request) -> Response:
        found = self._manager.levels()
        return json_answer({name: _logger_json(*level) for name, level in found.items()})

    async def logger(self, request: Request) -> Response:
        name = request.path_params["logger"]
        found = self._manager.levels().get(name)
        if found is None:
            raise ConnectError(404, f"Logger {name[:100]} not found.")
        return json_answer(_logger_json(*found))

    async def set_logger(self, request: Request) -> Response:
        """Sets a level. A worker is its whole cluster, so `scope` decides only about the answer, as in Connect."""
        level = (await read_object(request)).get("level")
        if level is None:
            raise ConnectError(400, "Desired 'level' parameter was not specified in request.")
        if not isinstance(level, str) or level.upper() not in LEVELS:
            raise ConnectError(404, f"invalid log level {str(level)[:20]!r}. Give one of: {', '.join(LEVELS)}.")
        names = await self._manager.set_level(request.path_params["logger"], level.upper())
        if request.query_params.get("scope", "").lower() == "cluster":
            return empty_answer(204)
        return json_answer(names)


def _logger_json(level: str, changed_ms: int | None) -> dict[str, object]:
    return {"level": level, "last_modified": changed_ms}
