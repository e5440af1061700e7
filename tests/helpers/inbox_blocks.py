"""Blocks of the inbox with blocking and asyncio drivers alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tailrace.inbox import Inbox


@asynccontextmanager
async def once(
    inbox: Inbox, is_async: bool, handle: Any, event: Any, group: Any = "g", **given: Any
) -> AsyncIterator[bool]:
    block = inbox.once(handle, event, group, **given)
    if is_async:
        async with block as first:
            yield first
    else:
        with block as first:
            yield first
