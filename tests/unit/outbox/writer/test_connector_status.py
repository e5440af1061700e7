"""The worker's answer about a pipeline: read at most once a second, bounded, and never needed."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tailrace.errors import ConfigError
from tailrace.outbox import Outbox, Pressure
from tailrace.outbox.writer import connector_status
from tailrace.outbox.writer.connector_status import ConnectorStatus, StatusReader
from tailrace.outbox.writer.requests import Request, run, run_async

LAG = {"bytes": 5, "seconds": 1.5, "events": 7}
ERROR = {"code": "SlotLost", "what": "the slot is lost", "why": "", "remedy": "Run `tailrace recover`."}


def pipeline(state: str, error: dict[str, str] | None = None) -> bytes:
    return json.dumps({"name": "orders", "state": state, "error": error, "lag": LAG}).encode()


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """A server that gives one answer; yields its address and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def nothing(request: Request) -> None:
    raise AssertionError(request)


@pytest.mark.parametrize(
    ("state", "error", "running", "sentence", "remedy", "lag"),
    [
        ("RUNNING", None, True, "the pipeline orders is RUNNING", None, LAG),
        ("WAITING", None, True, "the pipeline orders is WAITING: another instance runs it", None, {}),
        ("STARTING", None, False, "the pipeline orders is STARTING", None, {}),
        ("RETRYING", ERROR, False, "is RETRYING: the slot is lost", ERROR["remedy"], LAG),
        ("FAILED", ERROR, False, "is FAILED: the slot is lost", ERROR["remedy"], {}),
        ("PAUSED", None, False, "is PAUSED", "/api/v1/pipelines/orders/resume", {}),
        ("STOPPED", None, False, "is STOPPED", "/api/v1/pipelines/orders/resume", {}),
    ],
)
def test_the_states_of_a_pipeline(
    state: str,
    error: dict[str, str] | None,
    running: bool,
    sentence: str,
    remedy: str | None,
    lag: dict[str, float],
) -> None:
    with answering(pipeline(state, error)) as (url, _):
        found = StatusReader(url, "orders").read()
    assert (found.state, found.running, found.lag) == (state, running, lag)
    assert sentence in found.sentence
    assert (remedy or "") in (found.remedy or "")
    assert (found.remedy is None) is (remedy is None)


@pytest.mark.parametrize(
    ("body", "status", "sentence", "remedy"),
    [
        (b"<html>", 200, "does not answer", "Start the worker"),
        (b"[]", 200, "not that of a worker, HTTP 200", "Start the worker"),
        (b"{}", 200, "not that of a worker, HTTP 200", "Start the worker"),
        (b"{}", 401, "says: HTTP 401", ""),
        (b'{"what": "there is no pipeline x", "remedy": "This worker has: y."}', 404, "no pipeline x", "has: y"),
        (b'{"state": "' + b"x" * 2_000_000, 200, "does not answer", "Start the worker"),
    ],
)
def test_answers_that_say_nothing_about_the_pipeline(body: bytes, status: int, sentence: str, remedy: str) -> None:
    with answering(body, status) as (url, _):
        found = StatusReader(url, "orders").read()
    assert (found.state, found.running, found.lag) == (None, None, {})
    assert sentence in found.sentence
    assert remedy in (found.remedy or "")


def test_the_worker_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_status, "FRESH_SECONDS", 3600.0)
    with answering(pipeline("RUNNING")) as (url, asked):
        reader = StatusReader(f"{url}/behind/", "a/b")
        assert {run(reader.steps(), nothing).state for _ in range(3)} == {"RUNNING"}
        assert asked == ["/behind/api/v1/pipelines/a%2Fb"]
        monkeypatch.setattr(connector_status, "FRESH_SECONDS", 0.0)
        monkeypatch.setattr(connector_status, "PATIENCE", 0)
        impatient = StatusReader(url, "orders")
        for _ in range(2):
            run(impatient.steps(), nothing)
        assert len(asked) == 3


def test_a_worker_that_hangs_is_asked_seldom_and_blocks_no_event_loop() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
            reader = StatusReader(f"http://127.0.0.1:{silent.getsockname()[1]}", "orders")
            turns = 0

            async def others() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0.01)

            beside = asyncio.create_task(others())
            began = time.monotonic()
            first = await run_async(reader.steps(), nothing)  # type: ignore[arg-type]
            took = time.monotonic() - began
            assert first.state is None
            assert "does not answer (timed out)" in first.sentence
            assert connector_status.TIMEOUT_SECONDS <= took < 30
            assert turns > 5
            assert await run_async(reader.steps(), nothing) is first  # type: ignore[arg-type]
            beside.cancel()

    asyncio.run(test())


def test_what_the_database_shows_is_kept() -> None:
    status = ConnectorStatus(False, "FAILED", "it failed", "Fix it.", dict(LAG))
    shown = status.added_to(Pressure(True, 1, 2.0, 3, "the connector reads the slot"))
    assert shown == Pressure(True, 1, 2.0, 3, "the connector reads the slot; it failed", "FAILED", "Fix it.")
    filled = status.added_to(Pressure(None, None, None, None, "nothing"))
    assert filled == Pressure(False, 5, 1.5, 7, "nothing; it failed", "FAILED", "Fix it.")


@pytest.mark.parametrize(
    "worker",
    ["127.0.0.1:8083", "ftp://x", "http://", "http://x:none", "http://[::1", "http://u:s3cret@x", "http://x?a=1", ""],
)
def test_addresses_that_are_refused(worker: str) -> None:
    with pytest.raises(ConfigError, match="not the address of a worker") as caught:
        Outbox(worker=worker, pipeline="orders")
    assert "s3cret" not in str(caught.value)


def test_a_worker_needs_a_pipeline() -> None:
    with pytest.raises(ConfigError, match="without a pipeline"):
        Outbox(worker="http://127.0.0.1:8083")
