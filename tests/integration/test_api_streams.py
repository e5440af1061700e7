"""The event stream of a worker with hundreds of clients, of which some never read."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from helpers.api import serve
from helpers.shop import Shop
from helpers.worker import Workers, put_pipeline
from tailrace.testkit.stack import wait_until

READERS, SILENT = 450, 50


class StreamClient:
    """A connection that follows the event stream."""

    def __init__(self, port: int, path: str = "/api/v1/stream") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self.text = ""

    def read(self) -> None:
        """Reads what has arrived."""
        while select.select([self.socket], [], [], 0)[0]:
            found = self.socket.recv(65_536)
            if not found:
                return
            self.text += found.decode()

    def states(self, pipeline: str) -> list[str]:
        """Returns the states of a pipeline that were sent as changes."""
        self.read()
        events = [each.split("\n") for each in self.text.replace("\r\n", "\n").split("\n\n")]
        found = []
        for lines in events:
            kinds = [line for line in lines if line.startswith("event: ")]
            data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            if kinds == ["event: pipeline"] and data and json.loads(data[0])["name"] == pipeline:
                found.append(json.loads(data[0])["state"])
        return found


@pytest.fixture
def clients() -> Iterator[list[StreamClient]]:
    found: list[StreamClient] = []
    yield found
    for each in found:
        each.socket.close()


@pytest.mark.slow
def test_500_clients_follow_the_states_of_pipelines(
    workers: Workers, tmp_path: Path, shop: Shop, clients: list[StreamClient]
) -> None:
    folder = tmp_path / "pipelines"
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    api = serve(worker, shop)
    before = psutil.Process(worker.process.pid).num_fds()
    clients += [StreamClient(worker.port) for _ in range(READERS + SILENT)]
    readers = clients[:READERS]
    for each in readers:
        wait_until(lambda client=each: client.read() or "event: pipelines" in client.text, 60, what="the first event")
    assert "text/event-stream" in readers[0].text
    # Everything else still works, and each change reaches every client.
    assert api.get(f"/pipelines/{shop.name}/check", offline="true")["ok"]
    wait_until(lambda: '"operation": "check"' in (readers[0].read() or readers[0].text), 60, what="the events of a job")
    api.post(f"/pipelines/{shop.name}/pause")
    api.is_in(shop.name, "PAUSED")
    for each in readers:
        wait_until(lambda client=each: "PAUSED" in client.states(shop.name), 60, what="the state PAUSED")
    for each in clients:
        each.socket.close()
    wait_until(
        lambda: psutil.Process(worker.process.pid).num_fds() < before + 20, 60, what="the end of all connections"
    )
    api.post(f"/pipelines/{shop.name}/resume")
    api.is_in(shop.name, "RUNNING")
    assert worker.stop() == 0
