"""Runs the inbox's steps with blocking and asyncio drivers alike."""

from __future__ import annotations

from typing import Any, TypeVar

from tailrace.outbox.writer.drivers.base import Driver
from tailrace.outbox.writer.requests import Answer, Call, Request, Steps, run, run_async

Value = TypeVar("Value")


class DriverCall(Call):
    """A call of the driver, in the caller's thread. With an asyncio driver its answer is awaited."""


def perform(driver: Driver, steps: Steps[Value]) -> Any:  # noqa: ANN401 - the value, or an awaitable of it
    """Runs steps that consist of DriverCalls."""
    return run_async(steps, _call) if driver.is_async else run(steps, _call)


def _call(request: Request) -> Answer:
    assert isinstance(request, DriverCall)  # noqa: S101 - the only request of the inbox
    return request.function()
