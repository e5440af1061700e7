"""The event stream: changes of pipelines and jobs as server-sent events, for any number of clients.

Each client has a bounded queue. A client that does not keep up is disconnected, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.types import Receive, Scope, Send

from tailrace.errors import WorkerBusy

QUEUED = 200
"""Events that wait for one client."""
MOST_CLIENTS = 2000
LOOK_SECONDS = 0.5
"""How often the pipelines are compared with their last known state."""
KEEPALIVE_SECONDS = 15.0

logger = logging.getLogger(__name__)
Snapshot = Callable[[], Mapping[str, dict[str, Any]]]
"""Returns what is shown of each pipeline."""


class EventStream:
    """Distributes events to all clients."""

    def __init__(self, pipelines: Snapshot) -> None:
        self._pipelines = pipelines
        self._known: dict[str, dict[str, Any]] = {}
        self._clients: dict[asyncio.Queue[bytes], asyncio.Task[Any] | None] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def clients(self) -> int:
        return len(self._clients)

    def publish(self, kind: str, data: Mapping[str, Any]) -> None:
        """Sends an event to all clients. Never waits."""
        if not self._clients:
            return
        event = encoded(kind, data)
        for queue, task in list(self._clients.items()):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                # Without the missed event its picture would be wrong: it must connect again.
                self._clients.pop(queue, None)
                if task is not None:
                    task.cancel()

    def subscribe(self) -> asyncio.Queue[bytes]:
        """Adds a client; raises WorkerBusy if there are too many. The first event is the state of all pipelines."""
        if len(self._clients) >= MOST_CLIENTS:
            raise WorkerBusy(f"{MOST_CLIENTS} event streams are open", remedy="Close some, or try again later.")
        queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUED)
        queue.put_nowait(encoded("pipelines", {"pipelines": list(self._pipelines().values())}))
        if not self._clients:
            self._known = dict(self._pipelines())
        self._clients[queue] = None
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="event stream")
        return queue

    def unsubscribe(self, queue: asyncio.Queue[bytes]) -> None:
        self._clients.pop(queue, None)

    def attach(self, queue: asyncio.Queue[bytes], task: asyncio.Task[Any]) -> None:
        """Notes the task that sends to a client; it is cancelled if the client is too slow."""
        if queue in self._clients:
            self._clients[queue] = task

    async def close(self) -> None:
        for task in self._clients.values():
            if task is not None:
                task.cancel()
        self._clients.clear()
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        """Publishes changes of pipelines while there are clients."""
        while self._clients:
            await asyncio.sleep(LOOK_SECONDS)
            now = dict(self._pipelines())
            for name, shown in now.items():
                if self._known.get(name) != shown:
                    self.publish("pipeline", shown)
            for name in self._known.keys() - now.keys():
                self.publish("pipeline-deleted", {"name": name})
            self._known = now


class EventStreamResponse:
    """The response with which one client receives events, until it disconnects or is too slow."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._queue = stream.subscribe()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        self._stream.attach(self._queue, sending)
        waiting = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait({sending, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stream.unsubscribe(self._queue)
            for task in (sending, waiting):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task
        if not waiting.cancelled():
            return
        # The end of the response tells the client to connect again. One that reads nothing does not get it.
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            try:
                # Not wait_for, which may swallow a cancellation.
                async with asyncio.timeout(KEEPALIVE_SECONDS):
                    event = await self._queue.get()
            except TimeoutError:
                event = b": keep-alive\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})


async def disconnected(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def encoded(kind: str, data: Mapping[str, Any]) -> bytes:
    """Returns a server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode(errors="replace")
