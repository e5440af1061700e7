"""States that Kafka Connect answers for a connector and its tasks, and what counts as stopped."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tailrace.debezium_import.connect_status import require_stopped
from tailrace.errors import DebeziumRunning


class ConnectAnswers:
    """A server with the answers of Kafka Connect: the next one for each request, the last one again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def connect() -> Iterator[ConnectAnswers]:
    answers = ConnectAnswers()
    threading.Thread(target=answers.server.serve_forever, args=(0.05,), daemon=True).start()
    yield answers
    answers.server.shutdown()
    answers.server.server_close()


def status(state: str, *tasks: str) -> tuple[int, Any]:
    states = [{"id": number, "state": task, "worker_id": "w:1"} for number, task in enumerate(tasks)]
    return 200, {"name": "shop", "connector": {"state": state, "worker_id": "w:1"}, "tasks": states, "type": "source"}


def test_a_stopped_connector(connect: ConnectAnswers) -> None:
    connect.answers = [status("STOPPED")]
    require_stopped(connect.url, "shop")


def test_the_end_of_its_tasks_is_waited_for(connect: ConnectAnswers) -> None:
    connect.answers = [status("STOPPED", "RUNNING"), status("STOPPED")]
    require_stopped(connect.url, "shop", 10.0)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (status("STOPPED", "RUNNING"), "is STOPPED, its task 0 is RUNNING"),
        (status("RUNNING", "RUNNING", "FAILED"), "is RUNNING, its task 0 is RUNNING, its task 1 is FAILED"),
        (status("PAUSED"), "is PAUSED"),
        (status("FAILED"), "is FAILED"),
        ((404, {"error_code": 404, "message": "No status found for connector shop"}), "has no connector shop"),
        ((500, {}), "does not say"),
        ((200, {"connector": {"state": "STOPPED"}}), "does not say"),
        ((200, []), "does not say"),
    ],
)
def test_anything_else_is_refused(connect: ConnectAnswers, answer: tuple[int, Any], what: str) -> None:
    connect.answers = [answer]
    with pytest.raises(DebeziumRunning, match=what) as refused:
        require_stopped(connect.url, "shop")
    assert refused.value.remedy


def test_no_answer_is_refused() -> None:
    with pytest.raises(DebeziumRunning, match="does not say"):
        require_stopped("http://127.0.0.1:1", "shop")
