"""Answers in the form of Kafka Connect: JSON, empty bodies, and errors as `{"error_code": …, "message": …}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tailrace.api.errors import status_of
from tailrace.config.secrets import mask
from tailrace.config.translation import KeyProblem
from tailrace.errors import TailraceError
from tailrace.manager.report import ErrorReport


class ConnectError(Exception):
    """An error of the request, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def invalid_config(problems: Sequence[KeyProblem]) -> ConnectError:
    """The error for an invalid configuration, in Connect's words around ours."""
    listed = "\n".join(problem.text for problem in problems)
    return ConnectError(
        400,
        f"Connector configuration is invalid and contains the following {len(problems)} error(s):\n{listed}\n"
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`",
    )


def error_answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error_code": status, "message": mask(message)}, status, headers)


def answer_of(error: ConnectError | TailraceError) -> Response:
    if isinstance(error, ConnectError):
        return error_answer(error.status, error.message)
    return error_answer(status_of(error), ErrorReport.of(error).text())


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:  # noqa: ANN401
    return JSONResponse(content, status, headers)


def empty_answer(status: int) -> Response:
    return Response(status_code=status)


async def answer_http_error(_: Request, error: Exception) -> Response:
    """An exception handler of Starlette: unknown paths and methods of all paths that have no handler of their own."""
    if not isinstance(error, HTTPException):
        raise error
    return error_answer(error.status_code, f"HTTP {error.status_code} {error.detail}", error.headers)


def http_error(status: int, allowed: Sequence[str] = ()) -> Response:
    """An error of HTTP itself, such as an unknown path or a wrong method."""
    headers = {"Allow": ",".join(allowed)} if allowed else None
    return error_answer(status, f"HTTP {status} {HTTPStatus(status).phrase}", headers)
