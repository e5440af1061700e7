"""Errors as answers of the HTTP edge: the status for each error, and its JSON."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tailrace.config.secrets import mask
from tailrace.errors import (
    Action,
    ConfigError,
    ConfigsReadOnly,
    DeadLetterMissing,
    Fenced,
    NotAuthorized,
    OutOfReach,
    PipelineExists,
    PipelineUnknown,
    TailraceError,
)


def status_of(error: TailraceError) -> int:
    """Returns the HTTP status for an error."""
    if isinstance(error, ConfigsReadOnly):
        return 409 if error.from_file else 403
    if isinstance(error, NotAuthorized):
        return 403
    if isinstance(error, PipelineUnknown | DeadLetterMissing):
        return 404
    if isinstance(error, PipelineExists | Fenced):
        return 409
    if isinstance(error, ConfigError | OutOfReach):
        return 400
    return 503 if error.action is Action.RETRY else 500


def error_body(error: TailraceError) -> dict[str, Any]:
    """Returns an error as a command prints it with `--json`."""
    return {
        "error": error.code,
        "what": mask(error.what),
        "why": mask(error.why),
        "remedy": mask(error.remedy),
        "exit_code": error.exit_code,
    }


async def answer_error(_: Request, error: Exception) -> Response:
    """An exception handler of Starlette for TailraceError."""
    if not isinstance(error, TailraceError):
        raise error
    return JSONResponse(error_body(error), status_of(error))
