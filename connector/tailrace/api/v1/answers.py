"""Answers of the JSON API: results, and errors with their HTTP status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tailrace import errors
from tailrace.api.v1.jobs import Job
from tailrace.api.v1.outcome import Outcome
from tailrace.errors import ConfigError, TailraceError, Unavailable
from tailrace.manager.report import ErrorReport

_STATUS = {
    "PipelineUnknown": 404,
    "JobUnknown": 404,
    "EventUnknown": 404,
    "DeadLetterMissing": 404,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "NotAuthenticated": 401,
    "NotAuthorized": 403,
    "PipelineExists": 409,
    "OutOfReach": 400,
    "SchemaError": 400,
    "SchemaVersionInvalid": 400,
    "ResultTooLarge": 400,
    "Stopped": 409,
    "Killed": 503,
    "WorkerError": 500,
}
CONFLICT = 409
"""Errors that a person must fix first: a lost slot, a missing topic, another instance."""


def status_of(code: str) -> int:
    """Returns the HTTP status of an error, by its code."""
    if code in _STATUS:
        return _STATUS[code]
    found = getattr(errors, code, None)
    if isinstance(found, type) and issubclass(found, ConfigError):
        return 400
    if isinstance(found, type) and issubclass(found, Unavailable):
        return 503
    return CONFLICT if isinstance(found, type) and issubclass(found, TailraceError) else 500


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:  # noqa: ANN401 - any JSON value
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return Response(text, status, dict(headers or {}) | {"cache-control": "no-store"}, "application/json")


def error_json(error: ErrorReport) -> dict[str, str]:
    return {"code": error.code, "what": error.what, "why": error.why, "remedy": error.remedy}


def refusal(error: ErrorReport, headers: Mapping[str, str] | None = None) -> Response:
    return answer(error_json(error), status_of(error.code), headers)


def job_json(job: Job, *, result: bool = True) -> dict[str, Any]:
    """Returns a job; its error as in all other answers."""
    found = job.to_json() if result else job.summary()
    error = found["error"]
    return {**found, "error": None if error is None else error_json(error)}


def result_of(outcome: Outcome) -> Response:
    """Answers with the result of an operation, or its error."""
    if outcome.error is not None:
        return refusal(outcome.error)
    return answer(outcome.result, headers={"tailrace-exit-code": str(outcome.exit_code)})


async def on_tailrace_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, TailraceError):
        raise error
    return refusal(ErrorReport.of(error))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answers for paths and methods that do not exist."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        report = ErrorReport("NotFound", f"there is nothing at {request.url.path}", remedy="See /api/v1/openapi.json.")
    elif error.status_code == 405:
        report = ErrorReport(
            "MethodNotAllowed",
            f"{request.method} is not possible at {request.url.path}",
            remedy="See /api/v1/openapi.json.",
        )
    else:
        report = ErrorReport("BadRequest", str(error.detail), remedy="See /api/v1/openapi.json.")
    return answer(error_json(report), error.status_code, error.headers)


async def on_bug(_: Request, __: Exception) -> Response:
    """Answers for bugs; the server logs them."""
    return refusal(ErrorReport("WorkerError", "the worker has a bug", remedy="See its log, and report it."))
