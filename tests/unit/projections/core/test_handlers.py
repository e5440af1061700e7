"""Handlers by event type, and their data."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from pydantic import BaseModel

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.handlers import Handlers, RegisteredHandler
from tailrace.projections.core.store import Partition


class Placed(BaseModel):
    order_id: str
    amount: float


async def nothing(event: Event, effects: Any) -> None:
    """Handles nothing."""


def event(kind: str, value: bytes | None = b"{}") -> Event:
    return read_event(Partition("t", 0), 0, None, value, [("type", kind.encode())], 0)


def test_handlers_are_found_by_type_or_for_all_others() -> None:
    handlers = Handlers()
    placed, others = RegisteredHandler(nothing, None, deletes=False), RegisteredHandler(nothing, None, deletes=True)
    handlers.add(("OrderPlaced", "OrderMoved"), placed)
    assert handlers.find(event("OrderMoved")) is placed
    assert handlers.find(event("OrderGone")) is None
    handlers.add((), others)
    assert handlers.find(event("OrderGone")) is others


def test_two_handlers_for_one_type_are_refused() -> None:
    handlers = Handlers()
    handlers.add(("OrderPlaced",), RegisteredHandler(nothing, None, deletes=False))
    with pytest.raises(ConfigError, match="two handlers for the type 'OrderPlaced'"):
        handlers.add(("OrderPlaced",), RegisteredHandler(nothing, None, deletes=False))


def plain(event: Event, effects: Any) -> None:
    """Not asynchronous."""


async def generator(event: Event, effects: Any) -> AsyncIterator[None]:
    yield


async def of_one(event: Event) -> None:
    """Takes too little."""


async def of_three(event: Event, effects: Any, more: Any) -> None:
    """Takes too much."""


class Waits:
    async def __call__(self, event: Event, effects: Any) -> None:
        """An object that is called."""


class Plain:
    def __call__(self, event: Event, effects: Any) -> None:
        """Not asynchronous."""


@functools.wraps(nothing)
def wrapped(*given: Any) -> Awaitable[None]:
    return nothing(*given)


@pytest.mark.parametrize("handler", [plain, generator, Plain(), functools.partial(plain), lambda event, effects: None])
def test_a_handler_that_is_not_asynchronous_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigError, match="is not an `async def`"):
        Handlers().add((), RegisteredHandler(handler, None, deletes=False))


@pytest.mark.parametrize("handler", [of_one, of_three, functools.partial(nothing, None)])
def test_a_handler_that_cannot_be_called_with_event_and_effects_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigError, match="event and effects"):
        Handlers().add((), RegisteredHandler(handler, None, deletes=False))


@pytest.mark.parametrize("handler", [nothing, Waits(), wrapped, functools.partial(of_three, more=1)])
def test_anything_awaitable_is_a_handler(handler: Any) -> None:
    handlers = Handlers()
    handlers.add(("Known",), RegisteredHandler(handler, None, deletes=False))
    assert handlers.find(event("Known"))


def test_data_is_the_declared_model() -> None:
    decoded = event("OrderPlaced", b'{"order_id": "o-1", "amount": 3}')
    Handlers().decode_data(decoded, RegisteredHandler(nothing, Placed, deletes=False))
    assert decoded.data == Placed(order_id="o-1", amount=3.0)


def test_a_payload_that_is_not_the_model_says_where_but_not_which_value() -> None:
    with pytest.raises(Rejected) as raised:
        Handlers().decode_data(
            event("P", b'{"order_id": "o-1", "amount": "secret"}'), RegisteredHandler(nothing, Placed, deletes=False)
        )
    assert raised.value.reason is Reason.SCHEMA_VALIDATION_FAILED
    assert "amount" in raised.value.explanation
    assert "secret" not in raised.value.explanation


def test_a_tombstone_has_no_data() -> None:
    decoded = event("OrderGone", None)
    Handlers().decode_data(decoded, RegisteredHandler(nothing, Placed, deletes=True))
    assert decoded.data is None


def test_another_format_with_a_custom_decode() -> None:
    decoded = event("P", b"o-1;3")
    handlers = Handlers(
        lambda each: dict(zip(("order_id", "amount"), (each.value or b"").decode().split(";"), strict=True))
    )
    handlers.decode_data(decoded, RegisteredHandler(nothing, Placed, deletes=False))
    assert decoded.data == Placed(order_id="o-1", amount=3.0)
