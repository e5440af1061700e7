"""`WorkerProcess`: a `tailrace worker` process for tests, and the pipelines that it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from helpers import warm_processes as warm
from helpers.service import Service
from helpers.shop import Shop
from tailrace.testkit.oracle import OracleVerdict, check_delivery
from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.topic_reader import RecordReader, consumed_records

ORDER = '{"order": "1", "revision": 1, "amount": 1, "currency": "EUR"}'
"""A valid payload of a shop."""


class WorkerProcess:
    """One `tailrace worker` process, its log in a file."""

    def __init__(self, log: Path, *arguments: object, command: str = "worker", http: str = "", **environ: str) -> None:
        self.log_file = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        words = [command, *map(str, arguments), "--http", http or str(self.port), "--log-json"]
        self.process = warm.Process([*warm.TAILRACE, *words], output=log, env={**os.environ, **environ})

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def events(self, event: str, pipeline: str = "") -> list[dict[str, Any]]:
        """Returns the log lines of an event."""
        return [
            line
            for line in self.lines
            if line.get("event") == event and (not pipeline or line.get("pipeline") == pipeline)
        ]

    def says(self, event: str, pipeline: str = "", *, times: int = 1, timeout: float = 120) -> dict[str, Any]:
        """Waits until its log has the event, and returns the last line of it."""
        try:
            wait_until(lambda: len(self.events(event, pipeline)) >= times or not self.running, timeout)
        except StackError:
            pytest.fail(f"the worker did not log {event} of {pipeline or 'any'} within {timeout} s:\n{self.log}")
        found = self.events(event, pipeline)
        assert len(found) >= times, f"the worker ended with {self.process.returncode}:\n{self.log}"
        return found[-1]

    def pids(self) -> dict[str, int]:
        """Returns the last process of each pipeline, by its log."""
        return {line["pipeline"]: line["pid"] for line in self.events("process started")}

    def pid_of(self, pipeline: str) -> int:
        return int(self.says("process started", pipeline)["pid"])

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def get(self, path: str) -> Any:
        return httpx2.get(f"{self.url}{path}", timeout=30).json()

    def pipeline(self, name: str) -> Any:
        return self.get(f"/api/v1/pipelines/{name}")

    def change(self, name: str, verb: str) -> None:
        """`pause`, `resume`, `stop` or `restart`."""
        answer = httpx2.post(f"{self.url}/api/v1/pipelines/{name}/{verb}", timeout=60)
        assert answer.is_success, answer.text

    def is_in(self, name: str, state: str, timeout: float = 120) -> None:
        """Waits until a pipeline is in a state."""
        last: Any = None

        def reached() -> bool:
            nonlocal last
            try:
                last = self.pipeline(name)
            except httpx2.TransportError as error:
                last = repr(error)
            return (isinstance(last, dict) and last.get("state") == state) or not self.running

        try:
            wait_until(reached, timeout)
        except StackError:
            pytest.fail(f"{name} was not {state} within {timeout} s: {last}\n{self.log}")
        assert self.running, f"the worker ended with {self.process.returncode}:\n{self.log}"

    def stop(self, timeout: float = 60) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(timeout)

    def ended(self, timeout: float = 120) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker did not end within {timeout} s:\n{self.log}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Workers:
    """Starts workers, and ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: list[WorkerProcess] = []

    def start(self, *arguments: object, **options: Any) -> WorkerProcess:
        self.folder.mkdir(exist_ok=True)
        log = self.folder / f"worker-{len(self._all)}.log"
        self._all.append(WorkerProcess(log, *arguments, **options))
        return self._all[-1]

    def close(self) -> None:
        for each in self._all:
            if each.running:
                each.kill()


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    """The folder of a worker, empty."""
    found = tmp_path / "pipelines"
    found.mkdir()
    return found


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    found = Workers(tmp_path / "worker-logs")
    yield found
    found.close()


def put_pipeline(folder: Path, shop: Service, **sections: Mapping[str, Any]) -> Path:
    """Writes the pipeline of a service into a worker's folder, with absolute paths."""
    folder.mkdir(exist_ok=True)
    settings = json.loads(shop.file.read_text())
    for name in ("schemas", "topics"):
        settings[name]["folder"] = str(shop.folder / name)
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section}
    file = folder / f"{shop.name}.yaml"
    new = folder / f".{shop.name}.new"
    new.write_text(json.dumps(settings))
    new.replace(file)
    return file


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Stops a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def caught_up(shop: Shop, timeout: float = 120) -> OracleVerdict:
    """Stops the writers, waits until nothing committed is missing, and returns the oracle's verdict."""
    for writer in shop.writers:
        writer.stop()
    written = [event for writer in shop.writers for event in writer.written]
    with (
        RecordReader(shop.kafka.bootstrap, [shop.topic]) as events,
        RecordReader(shop.kafka.bootstrap, [shop.letters]) as letters,
    ):
        wait_until(
            lambda: (
                not check_delivery(
                    written,
                    consumed_records(events.more()),
                    consumed_records(letters.more()),
                    in_table=shop.in_outbox(),
                ).missing
            ),
            timeout,
            what=f"all events of {shop.name}",
        )
    return shop.verdict()


def published(shop: Shop, event: str, timeout: float = 120) -> None:
    """Waits until an event is published, and checks that all are published once."""
    wait_until(lambda: event in {each.id for each in shop.published()}, timeout, what=f"the event {event}")
    ids = [each.id for each in shop.published()]
    assert len(ids) == len(set(ids))


@contextmanager
def writing(shop: Shop) -> Iterator[None]:
    """Writes transactions meanwhile."""
    writer = shop.writer()
    writer.start(rate=100)
    try:
        yield
    finally:
        writer.stop()
