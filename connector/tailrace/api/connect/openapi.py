"""The OpenAPI document of Kafka Connect's REST API as this worker serves it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from tailrace import __version__
from tailrace.worker.logs import LEVELS

OPENAPI_PATH = "/api/connect/openapi.json"

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_CONFIG: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_PATCH: Schema = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
_OBJECT: Schema = {"type": "object"}
_STATES = ["RUNNING", "FAILED", "PAUSED", "UNASSIGNED", "RESTARTING", "STOPPED"]


def _object(*, more: bool = True, optional: tuple[str, ...] = (), **fields: Schema) -> Schema:
    needed = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": more}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TASK_ID = _object(connector=_TEXT, task={"type": "integer"})
SCHEMAS: dict[str, Schema] = {
    "Error": _object(error_code={"type": "integer"}, message=_TEXT),
    "Message": _object(message=_TEXT),
    "Worker": _object(version=_TEXT, commit=_TEXT, kafka_cluster_id=_TEXT),
    "ConnectorInfo": _object(name=_TEXT, config=_CONFIG, tasks=_list(_TASK_ID), type={"enum": ["source"]}),
    "ConnectorStatus": _object(
        name=_TEXT,
        connector=_object(state={"enum": _STATES}, worker_id=_TEXT, version=_TEXT, trace=_TEXT, optional=("trace",)),
        tasks=_list(_ref("TaskStatus")),
        type={"enum": ["source"]},
    ),
    "TaskStatus": _object(
        id={"type": "integer"}, state={"enum": _STATES[:-1]}, worker_id=_TEXT, version=_TEXT, trace=_TEXT,
        optional=("trace",),
    ),
    "TaskInfo": _object(id=_TASK_ID, config=_CONFIG),
    "CreateConnector": _object(
        name=_TEXT, config=_CONFIG, initial_state={"enum": ["RUNNING", "PAUSED", "STOPPED"]},
        optional=("initial_state",), more=False,
    ),
    "Offsets": _object(offsets=_list(_object(partition=_OBJECT, offset={"type": ["object", "null"]}))),
    "Plugin": {"type": "object", "properties": {"class": _TEXT, "type": {"enum": ["source"]}, "version": _TEXT}},
    "Definition": _object(
        name=_TEXT,
        type={"enum": ["BOOLEAN", "CLASS", "DOUBLE", "INT", "LIST", "LONG", "PASSWORD", "SHORT", "STRING"]},
        required={"type": "boolean"},
        default_value={"type": ["string", "null"]},
        importance={"enum": ["LOW", "MEDIUM", "HIGH"]},
        documentation=_TEXT,
        group={"type": ["string", "null"]},
        width={"enum": ["SHORT", "MEDIUM", "LONG", "NONE"]},
        display_name=_TEXT,
        dependents=_list(_TEXT),
        order={"type": "integer"},
    ),
    "ConfigValue": _object(
        name=_TEXT, value={"type": ["string", "null"]}, recommended_values=_list(_TEXT), errors=_list(_TEXT),
        visible={"type": "boolean"},
    ),
    "Validation": _object(
        name=_TEXT, error_count={"type": "integer"}, groups=_list(_TEXT),
        configs=_list(_object(definition=_ref("Definition"), value=_ref("ConfigValue"))),
    ),
    "Logger": _object(level={"enum": list(LEVELS)}, last_modified={"type": ["integer", "null"]}),
    "LoggerLevel": _object(level=_TEXT),
}  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Kafka Connect's REST API, served by Tailrace",
            "version": __version__,
            "description": "A pipeline is a connector with one task. docs/connect_api.md lists what differs.",
        },
        "paths": {path: {**methods, **_parameters(path)} for path, methods in _paths().items()},
        "components": {"schemas": SCHEMAS},
    }


def _parameters(path: str) -> dict[str, Any]:
    """Returns the parameters of a path, if it has any."""
    names = re.findall(r"\{(\w+)\}", path)
    found = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    return {"parameters": found} if found else {}


def _paths() -> dict[str, Any]:
    one, plugin = "/connectors/{name}", "/connector-plugins/{plugin}"
    info, status = {200: _ref("ConnectorInfo")}, {200: _ref("ConnectorStatus")}
    change = (400, 403, 404, 409, 415)
    return {
        "/": {"get": _operation("The worker.", {200: _ref("Worker")})},
        "/connectors": {
            "get": _operation(
                "Names of connectors, or more with `expand`.",
                {200: {"anyOf": [_list(_TEXT), _OBJECT]}},
                query={"expand": {"type": "array", "items": {"enum": ["status", "info"]}}},
            ),
            "post": _operation(
                "Create a connector.", {201: _ref("ConnectorInfo")}, body=_ref("CreateConnector"),
                errors=(400, 403, 409, 415),
            ),
        },
        one: {
            "get": _operation("A connector.", info, errors=(404,)),
            "delete": _operation("Delete a connector.", {204: None}, errors=(403, 404, 409)),
        },
        f"{one}/config": {
            "get": _operation("The configuration, without secrets.", {200: _CONFIG}, errors=(404,)),
            "put": _operation(
                "Create a connector, or replace its configuration.", {**info, 201: _ref("ConnectorInfo")},
                body=_CONFIG, errors=(400, 403, 409, 415),
            ),
            "patch": _operation("Change keys; null deletes one.", info, body=_PATCH, errors=change),
        },
        f"{one}/status": {"get": _operation("State of a connector.", status, errors=(404,))},
        f"{one}/restart": {
            "post": _operation(
                "Restart a connector.", {202: _ref("ConnectorStatus"), 204: None}, errors=(404,),
                query={"includeTasks": {"type": "boolean"}, "onlyFailed": {"type": "boolean"}},
            )
        },
        f"{one}/pause": {"put": _operation("Pause.", {202: None}, errors=(400, 404))},
        f"{one}/resume": {"put": _operation("Resume.", {202: None}, errors=(400, 404))},
        f"{one}/stop": {"put": _operation("Stop.", {204: None}, errors=(400, 404))},
        f"{one}/tasks": {"get": _operation("Tasks.", {200: _list(_ref("TaskInfo"))}, errors=(404,))},
        f"{one}/tasks-config": {"get": _operation("Configurations of tasks.", {200: _OBJECT}, errors=(404,))},
        f"{one}/tasks/{{task}}/status": {
            "get": _operation("State of a task.", {200: _ref("TaskStatus")}, errors=(404,))
        },
        f"{one}/tasks/{{task}}/restart": {"post": _operation("Restart a task.", {204: None}, errors=(404,))},
        f"{one}/topics": {"get": _operation("Topics.", {200: _OBJECT}, errors=(400, 404))},
        f"{one}/topics/reset": {"put": _operation("Accepted, without effect.", {202: None}, errors=(404,))},
        f"{one}/offsets": {
            "get": _operation("The stored position.", {200: _ref("Offsets")}, errors=(400, 404)),
            "patch": _operation(
                "Move the position of a stopped pipeline back.", {200: _ref("Message")}, body=_ref("Offsets"),
                errors=(400, 404, 409, 415),
            ),
            "delete": _operation(
                "Move the position back as far as the log reaches.", {200: _ref("Message")}, errors=(400, 404, 409)
            ),
        },
        "/connector-plugins": {
            "get": _operation(
                "Connector classes.", {200: _list(_ref("Plugin"))}, query={"connectorsOnly": {"type": "boolean"}}
            )
        },
        f"{plugin}/config": {
            "get": _operation("Config definitions.", {200: _list(_ref("Definition"))}, errors=(404,))
        },
        f"{plugin}/config/validate": {
            "put": _operation("Validate.", {200: _ref("Validation")}, body=_PATCH, errors=(400, 404, 415))
        },
        "/admin/loggers": {
            "get": _operation("Loggers.", {200: {"type": "object", "additionalProperties": _ref("Logger")}})
        },
        "/admin/loggers/{logger}": {
            "get": _operation("A logger.", {200: _ref("Logger")}, errors=(404,)),
            "put": _operation(
                "Set the level of a logger.", {200: _list(_TEXT), 204: None}, body=_ref("LoggerLevel"),
                query={"scope": {"enum": ["worker", "cluster"]}}, errors=(400, 404, 415),
            ),
        },
    }  # fmt: skip


def _operation(
    summary: str,
    answers: Mapping[int, Schema | None],
    *,
    body: Schema | None = None,
    query: dict[str, Schema] | None = None,
    errors: tuple[int, ...] = (),
) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": summary, "responses": {}}
    if query:
        found["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in query.items()
        ]
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    for status, schema in answers.items():
        found["responses"][str(status)] = {"description": summary} | (
            {"content": {"application/json": {"schema": schema}}} if schema is not None else {}
        )
    for status in errors:
        found["responses"][str(status)] = {
            "description": "An error.",
            "content": {"application/json": {"schema": _ref("Error")}},
        }
    return found
