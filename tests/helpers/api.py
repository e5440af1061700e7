"""`Api`: a client of a worker's JSON API for tests, and services whose pipelines a worker runs."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from helpers.service import Service
from helpers.worker import WorkerProcess
from tailrace.cli import main
from tailrace.testkit.stack import wait_until

VOLATILE = {
    "seconds", "lag_bytes", "lag_seconds", "clock_ahead_seconds", "at_ms", "noted_ms", "position", "stored", "offsets",
    "slot", "oplog", "found", "passed",
}  # fmt: skip
"""Fields that change from one call to the next."""


class Api:
    """Calls the JSON API of a worker."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.url = f"{worker.url}/api/v1"

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> httpx2.Response:
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        return httpx2.request(method, f"{self.url}{path}", content=content, params=query, timeout=90)

    def get(self, path: str, *, status: int = 200, **query: Any) -> Any:
        found = self.call("GET", path, **query)
        assert found.status_code == status, found.text
        return found.json()

    def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        found = self.call("POST", path, body)
        assert found.status_code == status, found.text
        return found.json()

    def job(self, path: str, body: Any = None, *, state: str = "SUCCEEDED") -> Any:
        """Starts a job, waits for its end, and returns it."""
        started = self.call("POST", path, body)
        assert started.status_code == 202, started.text
        assert started.headers["location"] == f"/api/v1/jobs/{started.json()['id']}"
        found = self.ended(started.json()["id"])
        assert found["state"] == state, found
        return found

    def ended(self, job_id: str) -> Any:
        last: dict[str, Any] = {}

        def is_over() -> bool:
            last.update(self.get(f"/jobs/{job_id}"))
            return last["state"] not in ("QUEUED", "RUNNING")

        wait_until(is_over, 120, what=f"the end of the job {job_id}")
        return last

    def is_in(self, pipeline: str, state: str) -> None:
        """Waits for a state of a pipeline."""
        wait_until(
            lambda: self.get(f"/pipelines/{pipeline}")["state"] == state,
            90,
            what=f"{pipeline} {state}, not {self.get(f'/pipelines/{pipeline}')}",
        )


def serve(worker: WorkerProcess, *services: Service) -> Api:
    """Waits until the worker serves HTTP and the pipelines run."""
    api = Api(worker)
    for each in services:
        worker.says("running", each.name)
        api.is_in(each.name, "RUNNING")
    return api


def run_locally(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Runs a command in this process; returns its exit code and what it printed."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    code = caught.value.code
    return (code if isinstance(code, int) else 1), printed.out, printed.err


def stable(value: Any) -> Any:
    """Returns JSON without what changes from one call to the next."""
    if isinstance(value, dict):
        return {name: stable(each) for name, each in value.items() if name not in VOLATILE}
    return [stable(each) for each in value] if isinstance(value, list) else value


def parsed(out: str, *, lines: bool) -> Any:
    return [json.loads(line) for line in out.splitlines()] if lines else json.loads(out)
