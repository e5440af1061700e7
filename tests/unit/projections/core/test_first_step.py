"""A call that has run up to where it waits, and what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from tailrace.projections.core.first_step import first_step


async def complete(call: Awaitable[None]) -> None:
    rest = first_step(call)
    if rest is not None:
        await rest


def test_a_call_that_never_waits_is_done_at_once() -> None:
    seen: list[str] = []

    async def call() -> None:
        seen.append("ran")

    assert first_step(call()) is None
    assert seen == ["ran"]


def test_a_call_that_waits_is_finished_by_awaiting_the_rest() -> None:
    seen: list[object] = []

    async def call() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            value = group.create_task(asyncio.sleep(0.001, "value"))
        seen.append(value.result())
        seen.append(asyncio.current_task())

    async def main() -> None:
        await complete(call())
        assert seen == [asyncio.current_task(), "value", asyncio.current_task()]

    asyncio.run(main())


def test_an_error_before_and_after_the_call_waits() -> None:
    async def call(*, waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise KeyError("of the call")

    for waits in (False, True):
        with pytest.raises(KeyError, match="of the call"):
            asyncio.run(complete(call(waits=waits)))


def test_a_timeout_around_the_rest_ends_the_call() -> None:
    seen: list[str] = []

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    async def main() -> None:
        rest = first_step(call())
        assert rest is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await rest

    asyncio.run(main())
    assert seen == ["cancelled", "cleaned up"]


def test_an_error_that_the_call_catches_while_it_waits() -> None:
    async def main() -> None:
        failing = asyncio.get_running_loop().create_future()
        seen: list[str] = []

        async def call() -> None:
            try:
                await failing
            except KeyError:
                seen.append("caught")
            await asyncio.sleep(0)

        rest = first_step(call())
        assert rest is not None
        failing.set_exception(KeyError())
        await rest
        assert seen == ["caught"]

    asyncio.run(main())
