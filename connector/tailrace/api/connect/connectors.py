"""Connectors of Kafka Connect's REST API: list, create, change, delete."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.audit import add_details
from tailrace.api.connect.answers import ConnectError, empty_answer, invalid_config, json_answer
from tailrace.api.connect.requests import flat_config, read_object
from tailrace.api.connect.states import info_json, shown_config, status_json, tasks_json
from tailrace.config.connector import CheckedConnector, check_connector
from tailrace.config.masking import unmasked
from tailrace.errors import PipelineUnknown
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import PAUSED, RUNNING, STOPPED
from tailrace.worker.logs import StructuredLogger

INITIAL_STATES = (RUNNING, PAUSED, STOPPED)


class Connectors:
    """Handlers of `/connectors` and `/connectors/{name}`."""

    def __init__(self, manager: PipelineManager) -> None:
        self._manager = manager
        self._changing = asyncio.Lock()
        """Changes one after the other, as in Connect: two clients may create the same name or patch the same keys."""
        self._log = StructuredLogger("tailrace.http")

    async def names(self, request: Request) -> Response:
        """Names, or with `expand` an object with what is asked for; unknown values are ignored."""
        wanted = request.query_params.getlist("expand")
        pipelines = self._manager.pipelines
        if not wanted:
            return json_answer(sorted(pipelines))
        return json_answer({name: self._expanded(pipelines[name], wanted) for name in sorted(pipelines)})

    def _expanded(self, pipeline: ManagedPipeline, wanted: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if "status" in wanted:
            found["status"] = status_json(pipeline, self._manager.worker_id)
        if "info" in wanted:
            found["info"] = info_json(pipeline)
        return found

    async def create(self, request: Request) -> Response:
        body = await read_object(request)
        if unknown := sorted(body.keys() - {"name", "config", "initial_state"}):
            raise ConnectError(400, f"{unknown[0]!r} is not a field of a connector: name, config, initial_state")
        name, config = body.get("name"), flat_config(body.get("config"))
        if name is None or isinstance(name, bool) or not isinstance(name, str | int):
            name = config.get("name") or ""
        target = body.get("initial_state")
        if target is not None and (not isinstance(target, str) or target.upper() not in INITIAL_STATES):
            raise ConnectError(400, f"initial_state is not one of {', '.join(INITIAL_STATES)}")
        add_details(request, pipeline=str(name)[:100])
        async with self._changing:
            return await self._create(request, str(name), _named(str(name), config), str(target or RUNNING).upper())

    async def _create(self, request: Request, name: str, config: dict[str, str | None], target: str) -> Response:
        if name not in self._manager.pipelines and self._manager.bootstrap:  # otherwise the manager refuses it
            config = await self._checked(name, config, {})
        pipeline = await self._manager.create(name, _texts(config), target)
        place = f"{request.base_url}connectors/{quote(pipeline.name, safe='')}"
        return json_answer({**info_json(pipeline), "tasks": []}, 201, {"Location": place})  # as Connect answers

    async def show(self, request: Request) -> Response:
        return json_answer(info_json(self._pipeline(request)))

    async def config(self, request: Request) -> Response:
        return json_answer(shown_config(self._pipeline(request)))

    async def put_config(self, request: Request) -> Response:
        """Creates a connector, or replaces the configuration of one."""
        name = request.path_params["name"]
        config = _named(name, flat_config(await read_object(request)))
        async with self._changing:
            pipeline = self._manager.pipelines.get(name)
            if pipeline is None:
                return await self._create(request, name, config, RUNNING)
            return await self._update(pipeline, config)

    async def patch_config(self, request: Request) -> Response:
        """Changes some keys; null deletes a key."""
        self._pipeline(request)
        changes = flat_config(await read_object(request), may_delete=True)
        async with self._changing:
            pipeline = self._pipeline(request)
            merged: dict[str, str | None] = {**shown_config(pipeline), **changes}
            kept = {key: text for key, text in merged.items() if text is not None}
            return await self._update(pipeline, _named(pipeline.name, kept))

    async def _update(self, pipeline: ManagedPipeline, config: dict[str, str | None]) -> Response:
        if pipeline.from_topic:  # otherwise the manager refuses it
            config = await self._checked(pipeline.name, config, pipeline.config)
        updated = await self._manager.update(pipeline.name, _texts(config))
        return json_answer(info_json(updated))

    async def delete(self, request: Request) -> Response:
        async with self._changing:
            await self._manager.delete(self._pipeline(request).name)
        return empty_answer(204)

    async def status(self, request: Request) -> Response:
        return json_answer(status_json(self._pipeline(request), self._manager.worker_id))

    async def tasks(self, request: Request) -> Response:
        return json_answer(tasks_json(self._pipeline(request)))

    async def tasks_config(self, request: Request) -> Response:
        """The configuration of each task by its name, as Connect had it before KIP-970 removed it."""
        found = tasks_json(self._pipeline(request))
        return json_answer({f"{task['id']['connector']}-{task['id']['task']}": task["config"] for task in found})

    def _pipeline(self, request: Request) -> ManagedPipeline:
        return find_pipeline(self._manager, request)

    async def _checked(
        self, name: str, config: dict[str, str | None], stored: Mapping[str, str]
    ) -> dict[str, str | None]:
        """Validates a configuration and logs what is ignored in it; raises ConnectError with all problems."""
        config, hidden = unmasked(config, stored)
        checked: CheckedConnector = await asyncio.to_thread(
            check_connector,
            name,
            config,
            self._manager.base,
            os.environ,
            self._manager.bootstrap,
            self._manager.allowed,
        )
        known = {problem.key for problem in hidden}
        problems = [*hidden, *(problem for problem in checked.problems if problem.key not in known)]
        if problems:
            raise invalid_config(problems)
        for key, why in checked.notes.items():
            self._log.info("key ignored", pipeline=name, key=key[:100], why=why)
        return config


def find_pipeline(manager: PipelineManager, request: Request) -> ManagedPipeline:
    """Returns the pipeline that a request names; raises ConnectError in Connect's words."""
    name = request.path_params["name"]
    try:
        return manager.get(name)
    except PipelineUnknown:
        raise ConnectError(404, f"Connector {name[:100]} not found") from None


def _named(name: str, config: Mapping[str, str | None]) -> dict[str, str | None]:
    inside = config.get("name", name)
    if inside != name:
        raise ConnectError(
            400, f"Connector name configuration ({inside}) doesn't match connector name in the URL ({name})"
        )
    return {**config, "name": name}


def _texts(config: Mapping[str, str | None]) -> dict[str, str]:
    return {key: text for key, text in config.items() if text is not None}
