"""Which function handles which event, and what it is given as the event's data."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.projections.core.decoding import Decode, parsed
from tailrace.projections.core.event import Event

Handler = Callable[[Event, Any], Awaitable[None]]
Model = type[BaseModel]
SHOWN_MISTAKES = 3


@dataclass(frozen=True, slots=True)
class RegisteredHandler:
    """A handler, the model its events are read into, and whether its event deletes the entity."""

    handler: Handler
    model: Model | None
    deletes: bool


class Handlers:
    """The handlers of one projection, by type of event; the one without a type takes all others."""

    def __init__(self, decode: Decode = parsed) -> None:
        self._by_type: dict[str | None, RegisteredHandler] = {}
        self._decode = decode

    def add(self, types: tuple[str, ...], handling: RegisteredHandler) -> None:
        """Registers a handler; ConfigError if it could never handle an event."""
        _require_handler(handling.handler)
        for name in types or (None,):
            if name in self._by_type:
                what = f"the type {name!r}" if name else "all other types"
                raise ConfigError(f"two handlers for {what}", remedy="Remove one, or call it from the other.")
            self._by_type[name] = handling

    def find(self, event: Event) -> RegisteredHandler | None:
        return self._by_type.get(event.type) or self._by_type.get(None)

    def read(self, event: Event, handling: RegisteredHandler) -> None:
        """Fills in `event.data`; Rejected if the payload is not what the handler was promised."""
        if event.value is None:
            event.data = None
            return
        data = self._decode(event)
        if handling.model is None:
            event.data = data
            return
        try:
            event.data = handling.model.model_validate(data)
        except ValidationError as error:
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"the payload is no {handling.model.__name__}: {_mistakes(error)}",
                remedy="Correct the model or the service; then `tailrace dlq redrive` puts the event back.",
            ) from None


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Whether what it returns is to be awaited; also of objects, and of plain functions that wrap another one."""
    innermost = inspect.unwrap(function)
    return any(map(inspect.iscoroutinefunction, (function, innermost, getattr(innermost, "__call__", None))))  # noqa: B004


def _require_handler(handler: Handler) -> None:
    name = getattr(handler, "__qualname__", repr(handler))
    if not is_asynchronous(handler):
        raise ConfigError(
            f"the handler {name} is no `async def` function, or it yields",
            why="Handlers are awaited: each event would fail.",
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
    """Where, and what was expected; the value itself is left out, since letters may be kept without payload."""
    told = [
        f"{'.'.join(map(str, each['loc'])) or '$'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    more = len(told) - SHOWN_MISTAKES
    return "; ".join(told[:SHOWN_MISTAKES]) + (f"; and {more} more" if more > 0 else "")
