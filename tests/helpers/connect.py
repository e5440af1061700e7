"""A worker with Kafka Connect's REST API, connectors on it, and a real worker of Kafka Connect to compare with."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from helpers.shop import Shop
from helpers.worker import WorkerProcess, Workers
from tailrace.testkit.stack import KafkaBroker, StackError, wait_until

POSTGRES = "tailrace.PostgresOutbox"
ORDER = '{"order": "1", "revision": 1, "amount": 1, "currency": "EUR"}'


class ConnectClient:
    """Raw requests to a worker with Connect's REST API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        if body is not None:
            options["json"] = body
        return httpx2.request(method, f"{self.url}{path}", timeout=90, **options)

    def get(self, path: str) -> Any:
        answer = self("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def state(self, name: str) -> str:
        return str(self.get(f"/connectors/{name}/status")["connector"]["state"])

    def is_in(self, name: str, state: str, timeout: float = 120) -> Any:
        """Waits until a connector is in a state; returns its status."""
        last: Any = None

        def reached() -> bool:
            nonlocal last
            last = self("GET", f"/connectors/{name}/status").json()
            return bool(last.get("connector", {}).get("state") == state)

        try:
            wait_until(reached, timeout)
        except StackError:
            pytest.fail(f"{name} was not {state} within {timeout} s: {last}")
        return last


class ConnectWorker:
    """A Tailrace worker that keeps configurations on a topic of its own."""

    def __init__(self, process: WorkerProcess, config_topic: str) -> None:
        self.process = process
        self.config_topic = config_topic
        self.request = ConnectClient(process.url)


def start_connect_worker(workers: Workers, kafka: KafkaBroker, *arguments: object) -> ConnectWorker:
    topic = f"configs-{uuid.uuid4().hex[:8]}"
    process = workers.start("--bootstrap", kafka.bootstrap, "--config-topic", topic, *arguments)
    process.says("listening")
    return ConnectWorker(process, topic)


@pytest.fixture
def connect(workers: Workers, kafka: KafkaBroker) -> ConnectWorker:
    """A worker without a folder: connectors come from Kafka Connect's REST API."""
    return start_connect_worker(workers, kafka)


def config_of(shop: Shop, **more: str) -> dict[str, str]:
    """The configuration of a shop's pipeline as a connector; `kafka.bootstrap` is the worker's."""
    return {
        "connector.class": POSTGRES,
        "tasks.max": "1",
        "source.postgres": shop.dsn,
        "source.table": "public.outbox",
        "outbox.columns.timestamp": "created_at",
        "schemas.folder": str(shop.folder / "schemas"),
        "topics.folder": str(shop.folder / "topics"),
        "kafka.dead_letter_topic": shop.letters,
        **more,
    }


def publishes(shop: Shop) -> None:
    """Waits until an event that is written now is published."""
    event = shop.insert(ORDER)
    wait_until(lambda: event in {each.id for each in shop.published()}, 120, what=f"the event {event}")


def write_json(file: Path, content: Mapping[str, Any]) -> Path:
    file.write_text(json.dumps(content))
    return file


@contextmanager
def deleted(connect: ConnectWorker, *names: str) -> Iterator[None]:
    """Deletes connectors at the end, so that none reads a database that is dropped."""
    try:
        yield
    finally:
        for name in names:
            connect.request("DELETE", f"/connectors/{name}")
