"""Reads the parameters of a request: from the query of a GET, from the JSON body of a POST."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request

from tailrace.api.v1.operation import Operation, Value
from tailrace.errors import ConfigError


class OperationCall(NamedTuple):
    """The parameters of an operation, and the contents of files that it reads."""

    values: dict[str, Value]
    contents: dict[str, bytes]


def from_query(request: Request, operation: Operation, path: Mapping[str, str] | None = None) -> OperationCall:
    """Reads query parameters; `path` are those that are part of the path."""
    given: dict[str, list[str]] = {name: [value] for name, value in (path or {}).items()}
    for name, value in request.query_params.multi_items():
        if path and name in path:
            raise ConfigError(f"{name} is part of the path", remedy="Leave the parameter out.")
        given.setdefault(name, []).append(value)
    operation.require_all(given)
    return OperationCall({name: operation.parameter(name).parsed(texts) for name, texts in given.items()}, {})


async def from_body(request: Request, operation: Operation) -> OperationCall:
    """Reads a JSON object. Contents keep their exact text: 1.10 must not become 1.1."""
    if request.query_params:
        raise ConfigError(
            f"{next(iter(request.query_params))!r} is given as a query parameter",
            remedy="Give the parameters as a JSON object in the body.",
        )
    given = await read_object(request)
    operation.require_all({name: value for name, value in given.items() if bytes(value) != b"null"})
    values: dict[str, Value] = {}
    contents: dict[str, bytes] = {}
    for name, raw in given.items():
        parameter = operation.parameter(name)
        if bytes(raw) == b"null":
            continue
        if parameter.kind == "content":
            contents[name] = bytes(raw)
        else:
            values[name] = parameter.checked(parsed(raw))
    return OperationCall(values, contents)


async def read_object(request: Request) -> dict[str, msgspec.Raw]:
    """Returns the fields of a JSON object; an empty body has none."""
    body = await request.body()
    if not body.strip():
        return {}
    try:
        body.decode()
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the body is not a JSON object: {error}", remedy="Send a JSON object with the parameters."
        ) from None


def parsed(raw: msgspec.Raw) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(bytes(raw))
    except (ValueError, RecursionError):
        raise ConfigError("a parameter is not valid JSON", remedy="Send valid JSON.") from None
