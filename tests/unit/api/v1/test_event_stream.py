"""The event stream: every client gets every change, and a slow client is dropped without delaying others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tailrace.api.v1 import event_stream
from tailrace.api.v1.event_stream import QUEUED, EventStream, EventStreamResponse
from tailrace.errors import WorkerBusy


class Client:
    """A client of the stream, which reads at its own pace."""

    def __init__(self, stream: EventStream) -> None:
        self.received: list[bytes] = []
        self.status = 0
        self.reads = asyncio.Event()
        self.reads.set()
        self.gone = asyncio.Event()
        self.complete = False
        self.task = asyncio.create_task(EventStreamResponse(stream)({}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.received.append(message["body"])
            self.complete = not message.get("more_body", False)

    def events(self) -> list[tuple[str, Any]]:
        found = b"".join(self.received).decode().split("\n\n")
        parts = [each.split("\n") for each in found if each and not each.startswith(":")]
        return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in parts]


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_clients_get_the_state_first_and_then_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "LOOK_SECONDS", 0.01)

    async def run() -> None:
        pipelines = {"orders": {"name": "orders", "state": "STARTING"}}
        stream = EventStream(lambda: pipelines)
        client = Client(stream)
        await until(lambda: client.received)
        pipelines["orders"] = {"name": "orders", "state": "RUNNING"}
        await until(lambda: len(client.events()) == 2)
        stream.publish("job", {"id": "1"})
        del pipelines["orders"]
        await until(lambda: len(client.events()) == 4)
        assert client.status == 200
        assert client.events() == [
            ("pipelines", {"pipelines": [{"name": "orders", "state": "STARTING"}]}),
            ("pipeline", {"name": "orders", "state": "RUNNING"}),
            ("job", {"id": "1"}),
            ("pipeline-deleted", {"name": "orders"}),
        ]
        client.gone.set()
        await client.task
        assert stream.clients == 0
        await stream.close()

    asyncio.run(run())


def test_a_client_that_does_not_read_is_dropped_and_others_go_on() -> None:
    async def run() -> None:
        stream = EventStream(dict)
        slow, quick = Client(stream), Client(stream)
        slow.reads.clear()
        await until(lambda: stream.clients == 2 and quick.received)
        for number in range(QUEUED + 10):
            stream.publish("job", {"number": number})
            await asyncio.sleep(0)
        await until(lambda: len(quick.events()) == QUEUED + 11)
        assert stream.clients == 1
        slow.reads.set()
        await slow.task
        assert not quick.task.done()
        await stream.close()
        quick.task.cancel()

    asyncio.run(run())


def test_there_is_a_bound_on_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MOST_CLIENTS", 1)

    async def run() -> None:
        stream = EventStream(dict)
        first = Client(stream)
        with pytest.raises(WorkerBusy):
            EventStreamResponse(stream)
        first.gone.set()
        await first.task
        await stream.close()

    asyncio.run(run())
