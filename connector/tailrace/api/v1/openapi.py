"""The OpenAPI 3.1 document of the JSON API, generated from the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace import __version__
from tailrace.api.v1.operation import Operation, schema_of

TRACE = "trace"
DOCTOR = "doctor"
"""Also offered for all pipelines of the worker at once."""
CHANGES = {
    "pause": "Stop publishing, and keep the pipeline's task. It stays paused after a restart of the worker.",
    "resume": "Run a paused or stopped pipeline again.",
    "start": "Run a paused or stopped pipeline again; the same as resume.",
    "stop": "Stop the pipeline. It stays stopped after a restart of the worker.",
    "restart": "End the pipeline's process and start a new one, also if it has failed.",
}
"""What can be done with the process of a pipeline, and what it does."""

_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The name of a pipeline.",
    "schema": {"type": "string", "minLength": 1},
}
_EVENT = {
    "name": "event_id",
    "in": "path",
    "required": True,
    "description": "The id of an event.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 1000},
}
_JOB = {
    "name": "job_id",
    "in": "path",
    "required": True,
    "description": "The id of a job.",
    "schema": {"type": "string", "minLength": 1},
}
_TEXT = {"type": "string"}
_OPTIONAL_TEXT = {"type": ["string", "null"]}
_OPTIONAL_NUMBER = {"type": ["number", "null"]}
_OPTIONAL_INTEGER = {"type": ["integer", "null"]}
_PIPELINES = {
    "type": "object",
    "properties": {
        "pipelines": {"type": "array", "items": {"$ref": "#/components/schemas/Pipeline"}},
        "problems": {
            "type": "array",
            "description": "Files and records with a mistake, so that they are no pipelines.",
            "items": {"$ref": "#/components/schemas/Error"},
        },
    },
}
_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "description": "What happened, why, and what to do. `code` is the name of the error (docs/errors.md).",
        "required": ["code", "what", "why", "remedy"],
        "properties": dict.fromkeys(("code", "what", "why", "remedy"), _TEXT),
    },
    "Pipeline": {
        "type": "object",
        "required": ["name", "state", "target", "error", "position", "lag", "restarts"],
        "properties": {
            "name": _TEXT,
            "state": {
                "enum": [
                    "STARTING", "RUNNING", "WAITING", "RETRYING", "FAILED", "STOPPED", "PAUSED", "RESTARTING",
                ],
            },
            "target": {"enum": ["RUNNING", "PAUSED", "STOPPED"], "description": "The state that a user asked for."},
            "error": {"anyOf": [{"$ref": "#/components/schemas/Error"}, {"type": "null"}]},
            "position": {"type": ["string", "null"], "description": "The stored position."},
            "lag": {
                "type": "object",
                "properties": {"bytes": _OPTIONAL_NUMBER, "seconds": _OPTIONAL_NUMBER, "events": _OPTIONAL_NUMBER},
            },
            "pid": _OPTIONAL_INTEGER,
            "restarts": {"type": "integer", "description": "Automatic restarts since it last ran for a while."},
            "restart_at_ms": _OPTIONAL_INTEGER,
            "reported_ms": _OPTIONAL_INTEGER,
            "from_topic": {"type": "boolean", "description": "Created over HTTP, not from a file."},
        },
    },
    "Job": {
        "type": "object",
        "required": ["id", "operation", "pipeline", "state", "progress", "error"],
        "properties": {
            "id": _TEXT,
            "operation": _TEXT,
            "pipeline": _TEXT,
            "state": {"enum": ["QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"]},
            "created_ms": {"type": "integer"},
            "started_ms": _OPTIONAL_INTEGER,
            "ended_ms": _OPTIONAL_INTEGER,
            "pid": _OPTIONAL_INTEGER,
            "progress": {
                "type": "object",
                "properties": {
                    "share": {"type": ["number", "null"], "description": "From 0 to 1."},
                    "text": _TEXT,
                    "lines": {"type": "integer", "description": "Lines of the result so far."},
                },
            },
            "exit_code": {"type": ["integer", "null"], "description": "1 if a check failed; the result says what."},
            "error": {"anyOf": [{"$ref": "#/components/schemas/Error"}, {"type": "null"}]},
            "result": {"description": "What the command prints with --json."},
        },
    },
}  # fmt: skip


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Returns the whole document."""
    paths: dict[str, Any] = {
        "/api/v1/pipelines": {"get": _get("List the pipelines of this worker.", "pipelines", _PIPELINES)},
        "/api/v1/pipelines/{name}": {"get": _get("Show one pipeline.", "pipeline", _ref("Pipeline"), _NAME)},
        "/api/v1/jobs": {"get": _get("List the jobs, newest first, without their results.", "jobs", _list_of("Job"))},
        "/api/v1/jobs/{job_id}": {
            "get": _get("Show a job, its progress and its result.", "job", _ref("Job"), _JOB),
            "delete": {
                **_get(
                    "Stop a job. It can be started again: nothing is published twice.", "stop job", _ref("Job"), _JOB
                )
            },
        },
        "/api/v1/stream": {"get": _stream()},
        "/api/v1/openapi.json": {"get": _get("Return this document.", "openapi", {"type": "object"})},
    }
    for verb, help_text in CHANGES.items():
        paths[f"/api/v1/pipelines/{{name}}/{verb}"] = {"post": _get(help_text, verb, _ref("Pipeline"), _NAME)}
    for each in operations:
        if each.name == TRACE:
            paths["/api/v1/pipelines/{name}/events/{event_id}"] = {"get": _operation(each, _NAME, _EVENT)}
            summary = "Show what is known of an event, in all pipelines of the worker."
            found = {**_operation(each, _EVENT), "operationId": "trace_everywhere", "summary": summary}
            paths["/api/v1/events/{event_id}"] = {"get": found}
        else:
            paths[f"/api/v1/pipelines/{{name}}/{each.path}"] = {each.method.lower(): _operation(each, _NAME)}
        if each.name == DOCTOR:
            summary = "Check all pipelines of the worker, and what they share."
            found = {**_operation(each), "operationId": "doctor_everywhere", "summary": summary}
            paths["/api/v1/doctor"] = {"post": found}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tailrace",
            "version": __version__,
            "description": "The operations of the `tailrace` command line on the pipelines of a worker.",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


def _operation(operation: Operation, *path: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "array", "items": {"type": "object"}} if operation.lines else {"type": "object"}
    found = _get(operation.summary, operation.name, result, *path)
    found["description"] = operation.description
    in_path = {each["name"] for each in path}
    if operation.method == "GET":
        found["parameters"] += [
            {"name": each.name, "in": "query", "required": each.required, "description": each.help,
             "schema": schema_of(each)}
            for each in operation.parameters
            if each.name not in in_path
        ]  # fmt: skip
    else:
        found["requestBody"] = {"required": _is_body_required(operation), "content": _json(_body(operation))}
    if operation.long:
        found["responses"]["202"] = {
            "description": "The job that was started.",
            "headers": {"Location": {"description": "The path of the job.", "schema": _TEXT}},
            "content": _json(_ref("Job")),
        }
        del found["responses"]["200"]
    else:
        found["responses"]["200"]["headers"] = {
            "Tailrace-Exit-Code": {
                "description": "The exit code of the command: 1 if a check failed.",
                "schema": {"type": "integer"},
            }
        }
    return found


def _body(operation: Operation) -> dict[str, Any]:
    required = [each.name for each in operation.parameters if each.required]
    body: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {each.name: schema_of(each) for each in operation.parameters},
    }
    return {**body, "required": required} if required else body


def _is_body_required(operation: Operation) -> bool:
    return any(each.required for each in operation.parameters)


def _get(summary: str, name: str, schema: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    errors = {"400": "The request is wrong.", "404": "There is no such pipeline, job, event or dead letter.",
              "409": "It is not possible in the present state.", "503": "A server is unavailable, or busy.",
              "500": "A bug."}  # fmt: skip
    responses: dict[str, Any] = {
        "200": {"description": "The result.", "content": _json(schema)},
        **{status: {"description": text, "content": _json(_ref("Error"))} for status, text in errors.items()},
    }
    # The server itself answers a request line of more than 64 kB, or one that is not HTTP.
    responses["400"]["content"]["text/plain"] = {"schema": _TEXT}
    responses["413"] = {"description": "The body is too large.", "content": _json({"type": "object"})}
    return {
        "operationId": name.replace(" ", "_"),
        "summary": summary,
        "parameters": list(parameters),
        "responses": responses,
    }


def _stream() -> dict[str, Any]:
    text = "Follow changes of pipelines and jobs, as server-sent events: pipelines, pipeline, pipeline-deleted, job."
    found = _get(text, "stream", {})
    found["responses"]["200"] = {
        "description": "Events until the client disconnects. A client that does not keep up is disconnected.",
        "content": {"text/event-stream": {"schema": _TEXT}},
    }
    return found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {f"{name.lower()}s": {"type": "array", "items": _ref(name)}}}
