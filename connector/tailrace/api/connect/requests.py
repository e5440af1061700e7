"""Reads requests as Kafka Connect does: JSON bodies, flat configurations, and booleans of the query."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from tailrace.api.connect.answers import ConnectError


async def read_json(request: Request) -> Any:  # noqa: ANN401
    """Returns the body; raises ConnectError if it is not JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise ConnectError(415, "HTTP 415 Unsupported Media Type: send Content-Type: application/json")
    return _parsed(await request.body())


def _parsed(text: bytes) -> Any:  # noqa: ANN401
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConnectError(400, f"the body is not valid JSON: {error.msg}, line {error.lineno}") from None


async def read_object(request: Request, *, may_be_text: bool = False) -> dict[str, Any]:
    """Returns a body that is an object. `may_be_text`: also a text with one, as kafka-connect-py sends it."""
    found = await read_json(request)
    if may_be_text and isinstance(found, str):
        found = _parsed(found.encode())
    if not isinstance(found, dict):
        raise ConnectError(400, "the body is not a JSON object")
    return found


def flat_config(found: object, *, may_delete: bool = False) -> dict[str, str | None]:
    """Returns a configuration of strings. Numbers and booleans become strings, as in Connect.

    Null deletes a key if `may_delete`, and is refused otherwise.
    """
    if not isinstance(found, dict):
        raise ConnectError(400, "the configuration is missing, or not a JSON object of strings")
    config: dict[str, str | None] = {}
    for key, value in found.items():
        if value is None:
            if not may_delete:
                raise ConnectError(400, f"Null value can not be supplied as the configuration value. Remove {key!r}.")
            config[key] = None
        elif isinstance(value, bool):
            config[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            config[key] = str(value)
        else:
            raise ConnectError(400, f"the value of {key!r} is not a string. Write lists with commas.")
    return config


def is_true(request: Request, name: str, *, default: bool = False) -> bool:
    """Reads a boolean of the query; like Java, everything except `true` is false."""
    given = request.query_params.get(name)
    return default if given is None else given.lower() == "true"
