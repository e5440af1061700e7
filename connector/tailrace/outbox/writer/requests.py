"""Requests of the writer to a driver. Steps are generators that yield these requests, so that one implementation serves
blocking and asyncio drivers alike; `run` and `run_async` execute them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

PARAMETER = "\0"
"""Marks a parameter in SQL: no name and no literal can contain it. Each driver replaces it by its own placeholder."""


class Query(NamedTuple):
    """SQL that reads; the answer is its rows as tuples."""

    sql: str
    parameters: tuple[Any, ...] = ()


class InsertRows(NamedTuple):
    """An SQL INSERT; the answer is how many rows it has inserted."""

    sql: str
    parameters: Sequence[Any] = ()


class InsertDocuments(NamedTuple):
    """Insert documents with one command. With `key`, those that exist already by that field are left as they are; the
    answer is then how many were inserted."""

    collection: str
    documents: list[dict[str, Any]]
    key: str | None = None


class Find(NamedTuple):
    """Find one document; the answer has the given fields, or is None."""

    collection: str
    filter: dict[str, Any]
    fields: list[str]


class CollectionExists(NamedTuple):
    """Ask, outside of the transaction, for the collection; the answer has its name, or is empty."""

    collection: str


class Count(NamedTuple):
    """Count documents up to a limit; the answer is the count and the lowest time in `field`, in Unix seconds."""

    collection: str
    filter: dict[str, Any]
    field: str
    limit: int


class Sleep(NamedTuple):
    seconds: float


class Call(NamedTuple):
    """Call a function that blocks; with an asyncio driver, in another thread."""

    function: Callable[[], Any]


Handle = Any
"""A connection, session or other object of a driver, which is not imported here."""
Answer = Any
"""A driver's answer to a request."""
Request = Query | InsertRows | InsertDocuments | Find | CollectionExists | Count | Sleep | Call
Value = TypeVar("Value")
Steps = Generator[Request, Any, Value]
_WITHOUT_DRIVER = frozenset({Sleep, Call})


def run(steps: Steps[Value], execute: Callable[[Request], Answer]) -> Value:
    """Executes steps with a blocking driver."""
    try:
        request = next(steps)
        while True:
            try:
                answer = _perform(request) if type(request) in _WITHOUT_DRIVER else execute(request)
            except Exception as error:  # noqa: BLE001 - the steps decide
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        value: Value = end.value
        return value


async def run_async(steps: Steps[Value], execute: Callable[[Request], Awaitable[Any]]) -> Value:
    """Executes steps with an asyncio driver."""
    try:
        request = next(steps)
        while True:
            try:
                answer = await (_perform_async(request) if type(request) in _WITHOUT_DRIVER else execute(request))
            except Exception as error:  # noqa: BLE001 - the steps decide
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        value: Value = end.value
        return value


def _perform(request: Request) -> Answer:
    if type(request) is Call:
        return request.function()
    assert type(request) is Sleep  # noqa: S101 - the only other one
    return time.sleep(request.seconds)


def _perform_async(request: Request) -> Awaitable[Answer]:
    import asyncio  # only here: a third of the time to import the writer

    if type(request) is Call:
        return asyncio.to_thread(request.function)
    assert type(request) is Sleep  # noqa: S101 - the only other one
    return asyncio.sleep(request.seconds)
