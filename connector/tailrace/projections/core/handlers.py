"""The handlers of a projection by event type, and the decoding of `event.data`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.projections.core.decoding import Decode, decode_json
from tailrace.projections.core.event import Event

Handler = Callable[[Event, Any], Awaitable[None]]
Model = type[BaseModel]
SHOWN_MISTAKES = 3


@dataclass(frozen=True, slots=True)
class RegisteredHandler:
    """A handler, the model its events are validated with, and whether its event deletes the entity."""

    handler: Handler
    model: Model | None
    deletes: bool


class Handlers:
    """The handlers of one projection by event type; the handler without a type gets all other events."""

    def __init__(self, decode: Decode = decode_json) -> None:
        self._by_type: dict[str | None, RegisteredHandler] = {}
        self._decode = decode

    def add(self, types: tuple[str, ...], registered: RegisteredHandler) -> None:
        """Registers a handler; raises ConfigError if it could never handle an event."""
        _require_handler(registered.handler)
        for name in types or (None,):
            if name in self._by_type:
                what = f"the type {name!r}" if name else "all other types"
                raise ConfigError(f"two handlers for {what}", remedy="Remove one, or call it from the other.")
            self._by_type[name] = registered

    def find(self, event: Event) -> RegisteredHandler | None:
        return self._by_type.get(event.type) or self._by_type.get(None)

    def decode_data(self, event: Event, registered: RegisteredHandler) -> None:
        """Sets `event.data`; raises Rejected if the payload does not match the handler's model."""
        if event.value is None:
            event.data = None
            return
        data = self._decode(event)
        if registered.model is None:
            event.data = data
            return
        try:
            event.data = registered.model.model_validate(data)
        except ValidationError as error:
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"the payload is not a valid {registered.model.__name__}: {_mistakes(error)}",
                remedy="Fix the model or the service; then publish the event again with `tailrace dlq redrive`.",
            ) from None


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Whether its result must be awaited; also for callable objects and functions that wrap another."""
    innermost = inspect.unwrap(function)
    return any(map(inspect.iscoroutinefunction, (function, innermost, getattr(innermost, "__call__", None))))  # noqa: B004


def _require_handler(handler: Handler) -> None:
    name = getattr(handler, "__qualname__", repr(handler))
    if not is_asynchronous(handler):
        raise ConfigError(
            f"the handler {name} is not an `async def` function, or it yields",
            why="Handlers are awaited: every event would fail.",
            remedy="Declare it as `async def handler(event, effects):`, without `yield`.",
        )
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"the handler {name} cannot be called with event and effects: {error}",
            remedy="Declare it as `async def handler(event, effects):`",
        ) from None


def _mistakes(error: ValidationError) -> str:
    """Says where and what was expected. The value is left out: dead letters may be kept without payload."""
    mistakes = [
        f"{'.'.join(map(str, each['loc'])) or '$'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    more = len(mistakes) - SHOWN_MISTAKES
    return "; ".join(mistakes[:SHOWN_MISTAKES]) + (f"; and {more} more" if more > 0 else "")
