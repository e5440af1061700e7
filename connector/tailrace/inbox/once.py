"""The block that `Inbox.once` opens."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType

from tailrace.errors import ConfigError
from tailrace.inbox.marker import ProcessedEvent
from tailrace.inbox.mongo import MongoInbox
from tailrace.inbox.postgres import PostgresInbox
from tailrace.outbox.writer.drivers.base import Driver
from tailrace.outbox.writer.requests import Handle


class Once:
    """`with` or, with an asyncio connection, `async with`: gives whether the event is new to its consumer group."""

    _block: AbstractContextManager[bool]
    _async_block: AbstractAsyncContextManager[bool]

    def __init__(
        self, target: PostgresInbox | MongoInbox, driver: Driver, connection: Handle, marker: ProcessedEvent
    ) -> None:
        self._target = target
        self._driver = driver
        self._connection = connection
        self._marker = marker

    def __enter__(self) -> bool:
        self._require(is_async=False, word="with")
        self._block = self._target.once(self._driver, self._connection, self._marker)
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, traceback)

    async def __aenter__(self) -> bool:
        self._require(is_async=True, word="async with")
        self._async_block = self._target.once_async(self._driver, self._connection, self._marker)
        return await self._async_block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._async_block.__aexit__(kind, error, traceback)

    def _require(self, *, is_async: bool, word: str) -> None:
        if self._driver.is_async is not is_async:
            right = "async with" if self._driver.is_async else "with"
            raise ConfigError(
                f"`{word}` does not fit the connection",
                why=f"It is {'an asyncio' if self._driver.is_async else 'a blocking'} one.",
                remedy=f"Write `{right} inbox.once(…) as first:`.",
            )
