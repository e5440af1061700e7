"""Runs a coroutine up to where it first waits.

Most handlers never wait: their writes are deferred. A timeout cannot end a handler before it waits, since the event
loop does not run until then. So only a handler that waits needs one, and creating one costs more than many handlers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any


class RestOfCall:
    """The rest of a call that waits for `pending`. Awaited once, in the task that has started it."""

    def __init__(self, steps: Generator[Any, Any, None], pending: object) -> None:
        self._steps = steps
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            thrown: BaseException | None = None
            try:
                yield self._pending
            except BaseException as error:  # noqa: BLE001 - cancellation too: the call decides what it does with it
                thrown = error
            try:
                self._pending = next(self._steps) if thrown is None else self._steps.throw(thrown)
            except StopIteration:
                return


def first_step(call: Awaitable[None]) -> RestOfCall | None:
    """Runs the call until it waits for something; returns what is left of it, None if it has returned."""
    steps = call.__await__()
    try:
        pending = next(steps)
    except StopIteration:
        return None
    return RestOfCall(steps, pending)
