"""Receipt: the id of an added event, and a way to wait until consumers can see it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, cast

from tailrace.errors import ConfigError
from tailrace.outbox.writer.drivers.base import Driver, Reader, driver_for
from tailrace.outbox.writer.evidence import DeliveryEvidence
from tailrace.outbox.writer.mongo import MongoOutbox
from tailrace.outbox.writer.postgres import PostgresOutbox
from tailrace.outbox.writer.requests import Handle, Steps, run, run_async


class Receipt:
    """The result of `Outbox.add`. `created` is False if the outbox had the event already (layout `document`)."""

    __slots__ = ("_evidence", "_outbox", "_reader", "created", "id")

    def __init__(
        self,
        event_id: str,
        created: bool,
        reader: Reader,
        outbox: PostgresOutbox | MongoOutbox,
        evidence: DeliveryEvidence,
    ) -> None:
        self.id = event_id
        self.created = created
        self._reader = reader
        self._outbox = outbox
        self._evidence = evidence

    def __repr__(self) -> str:
        return f"Receipt({self.id!r})"

    def _wait_steps(self, timeout: float | None) -> Steps[None]:
        return self._outbox.wait(self.id, self._evidence, timeout=timeout)

    def wait(self, timeout: float | None = None, *, connection: Handle = None) -> Receipt:
        """Waits, after the commit, until consumers can see the event (or it is dead-lettered).

        Reads with a separate, short connection (psycopg), a connection of the engine (SQLAlchemy) or the thread's
        connection (Django), unless one is given. Raises NotPublishedYet after `timeout` seconds, NotCommitted if the
        event is not committed, ReceiptUnavailable if nothing shows whether it is published.
        """
        steps = self._wait_steps(timeout)
        if connection is not None:
            driver = driver_for(connection)
            if driver.is_async:
                raise _needs_await()
            run(steps, driver.execute)
        elif self._reader.is_async:
            raise _needs_await()
        else:
            with cast("AbstractContextManager[Driver]", self._reader.open()) as driver:
                run(steps, driver.execute)
        return self

    async def wait_async(self, timeout: float | None = None, *, connection: Handle = None) -> Receipt:
        """Waits as `wait` does, without blocking the event loop. Also `await receipt`."""
        import asyncio  # a service that waits has imported it

        if connection is not None:
            driver = driver_for(connection)
            if not driver.is_async:
                return await asyncio.to_thread(self.wait, timeout, connection=connection)
            await run_async(self._wait_steps(timeout), driver.execute)
        elif not self._reader.is_async:
            return await asyncio.to_thread(self.wait, timeout)
        else:
            async with cast("AbstractAsyncContextManager[Driver]", self._reader.open()) as driver:
                await run_async(self._wait_steps(timeout), driver.execute)
        return self

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self.wait_async().__await__()


def _needs_await() -> ConfigError:
    return ConfigError(
        "wait() cannot use an asyncio connection",
        why="It would block the event loop that the connection needs.",
        remedy="Use `await receipt.wait_async(timeout=…)`.",
    )
