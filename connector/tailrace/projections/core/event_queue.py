"""The queue of a partition worker, which pauses its partition while it is full."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tailrace.projections.core.event import Event

QUEUED_BATCHES = 4
QUEUED_BYTES = 32 * 1024 * 1024
"""A queue with more batches or bytes pauses its partition, and resumes it below half of that."""


class EventQueue:
    """Events in the order of their partition. `events` and `within` limit a batch, as in `Settings`.

    It has room for some batches, or for `room` events if that is more.
    """

    def __init__(
        self, events: int, within: float, pause: Callable[[], None], resume: Callable[[], None], *, room: int = 0
    ) -> None:
        self._least_room = room
        self.limit(events, within)
        self._pause = pause
        self._resume = resume
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._paused = False

    def limit(self, events: int, within: float) -> None:
        """Changes the limits of a batch."""
        self._max_events = events
        self._within = within
        self._room = max(QUEUED_BATCHES * events, self._least_room)

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """Appends an event; never blocks, but may pause the partition."""
        self._events.append(event)
        self._bytes += len(event.value or b"")
        if not self._arrived.is_set():
            self._arrived.set()
        if not self._paused and self._holds_more_than(1):
            self._paused = True
            self._pause()

    async def next_batch(self, timeout: float) -> list[Event]:
        """Returns events once there are enough or `within` has passed; [] if none arrives within `timeout` seconds."""
        if not self._events:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        if len(self._events) < self._max_events and self._within:
            await asyncio.sleep(self._within)
        batch = [self._events.popleft() for _ in range(min(len(self._events), self._max_events))]
        self._bytes -= sum(len(event.value or b"") for event in batch)
        if self._paused and not self._holds_more_than(0.5):
            self._paused = False
            self._resume()
        return batch

    def _holds_more_than(self, share: float) -> bool:
        """Whether the queue exceeds this share of its limit."""
        return len(self._events) > share * self._room or self._bytes > share * QUEUED_BYTES
