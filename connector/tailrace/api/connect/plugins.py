"""Connector classes: their list, their config definitions, and the validation of configurations."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace import __version__
from tailrace.api.connect.answers import ConnectError, json_answer
from tailrace.api.connect.definitions import Definition, common, free_key, of_class, recommended
from tailrace.api.connect.requests import flat_config, is_true, read_object
from tailrace.config.connector import KINDS, check_connector, class_name
from tailrace.config.masking import masked_value, unmasked
from tailrace.config.translation import KeyProblem
from tailrace.manager.manager import PipelineManager


class Plugins:
    """Handlers of `/connector-plugins`."""

    def __init__(self, manager: PipelineManager) -> None:
        self._manager = manager

    async def classes(self, request: Request) -> Response:
        """The classes. There are no other plugins, so `connectorsOnly` changes nothing."""
        is_true(request, "connectorsOnly", default=True)
        return json_answer([{"class": name, "type": "source", "version": __version__} for name in KINDS])

    async def definitions(self, request: Request) -> Response:
        name = self._class(request)
        return json_answer([*of_class(name, self._manager.bootstrap), *common()])

    async def validate(self, request: Request) -> Response:
        """200 with the errors of each key; 400 if the class is not the one of the path."""
        name = self._class(request)
        config = flat_config(await read_object(request, may_be_text=True), may_delete=True)
        given = config.get("connector.class") or name
        if class_name(given) != name:
            wanted = request.path_params["plugin"]
            raise ConnectError(400, f"Included connector type {given[:200]} does not match request type {wanted[:200]}")
        config["connector.class"] = given
        problems = await self._problems(config)
        return json_answer(validation_json(name, config, problems, self._manager.bootstrap))

    async def _problems(self, config: dict[str, str | None]) -> list[KeyProblem]:
        name = config.get("name")
        existing = self._manager.pipelines.get(name or "")
        config, hidden = unmasked(config, existing.config if existing is not None else {})
        checked = await asyncio.to_thread(
            check_connector,
            name or "unnamed",
            config,
            self._manager.base,
            os.environ,
            self._manager.bootstrap,
            self._manager.allowed,
        )
        known = {problem.key for problem in hidden}
        problems = [*hidden, *(problem for problem in checked.problems if problem.key not in known)]
        if not name:
            problems.append(KeyProblem("name", "is missing", "give the connector a name"))
        return problems

    def _class(self, request: Request) -> str:
        given = request.path_params["plugin"]
        name = class_name(given)
        if name is None:
            raise ConnectError(404, f"Unknown plugin {given[:200]}.")
        return name


def validation_json(
    name: str, config: Mapping[str, str | None], problems: list[KeyProblem], bootstrap: str = ""
) -> dict[str, Any]:
    """Returns Connect's ConfigInfos: every key with its definition, its value without secrets, and its errors."""
    defined: list[Definition] = [*common(), *of_class(name, bootstrap)]
    names = {each["name"] for each in defined}
    further = sorted({*config, *(problem.key for problem in problems)} - names)
    defined += map(free_key, further)
    errors: dict[str, list[str]] = {}
    for problem in problems:
        errors.setdefault(problem.key, []).append(problem.text)
    groups = list(dict.fromkeys(each["group"] for each in defined))
    return {
        "name": config.get("connector.class") or name,
        "error_count": len(problems),
        "groups": groups,
        "configs": [{"definition": each, "value": _value(each, config, errors)} for each in defined],
    }


def _value(defined: Definition, config: Mapping[str, str | None], errors: Mapping[str, list[str]]) -> dict[str, Any]:
    name = defined["name"]
    text = config.get(name)
    return {
        "name": name,
        "value": defined["default_value"] if text is None else masked_value(name, text),
        "recommended_values": recommended(name),
        "errors": errors.get(name, []),
        "visible": True,
    }
