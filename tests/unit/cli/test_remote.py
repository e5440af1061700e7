"""`--worker URL` on the command line: when it applies, what is sent, and how answers of others are reported."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.commands import run_command
from tailrace.cli.remote import find_target
from tailrace.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "url", "rest"),
    [
        (["status", "orders", "--worker", "http://x"], "http://x", ["status", "orders"]),
        (["status", "--worker=http://x", "orders"], "http://x", ["status", "orders"]),
        (["--worker", "x:1", "status", "orders"], "x:1", ["status", "orders"]),
        (["status", "orders"], None, ["status", "orders"]),
        (["dlq", "show", "orders", "--", "--worker"], None, ["dlq", "show", "orders", "--", "--worker"]),
    ],
)
def test_where_a_command_runs(words: list[str], url: str | None, rest: list[str]) -> None:
    assert find_target(words) == (url, rest)


def test_the_variable_applies_only_to_commands_that_a_worker_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_WORKER", "http://y")
    assert find_target(["status", "orders"]).url == "http://y"
    assert find_target(["status", "orders", "--worker", "http://x"]).url == "http://x"
    assert find_target(["run", "orders.yaml"]).url is None
    assert find_target(["dlq", "watch", "orders.yaml"]).url is None
    assert find_target(["status", "--help"]).url is None


def test_an_option_without_a_value() -> None:
    with pytest.raises(ConfigError, match="no value"):
        find_target(["status", "orders", "--worker"])


class Server:
    """A server with one fixed answer; notes the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.status, self.lines = 200, [{"stdout": "fine\n"}, {"stderr": "hm\n"}, {"exit_code": 1}]
        self.body: bytes | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                server.requests.append((self.path, json.loads(content)))
                body = server.body
                if body is None:
                    body = b"".join(json.dumps(line).encode() + b"\n" for line in server.lines)
                self.send_response(server.status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/prefix/"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.http.shutdown()
    found.http.server_close()
    found.thread.join()


def test_what_is_sent_and_printed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dlq", "list", "orders", "--type", "A", "--type", "B", "--limit", "5", "--all", "--json"]
    assert run_command([*words, "--worker", server.url]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("fine\n", "hm\n")
    ((path, sent),) = server.requests
    assert path == "/prefix/api/v1/pipelines/orders/command"
    assert (sent["command"], sent["json"], sent["contents"]) == ("dlq list", True, {})
    given = {name: value for name, value in sent["parameters"].items() if value not in ([], "", False)}
    assert given == {"type": ["A", "B"], "limit": 5, "all": True}
    assert "bootstrap" not in sent["parameters"]


def test_files_are_sent_and_written(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text('{"pipeline": "orders"}')
    server.lines = [{"file": "made.json", "content": "{}"}, {"exit_code": 0}]
    assert run_command(["replay", "apply", "plan.json", "--worker", server.url]) == 0
    assert server.requests[0][0].endswith("/pipelines/orders/command")
    assert server.requests[0][1]["contents"]["plan"]["name"] == "plan.json"
    assert Path("made.json").read_text() == "{}"
    assert Path("made.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("status", "body", "code", "expected"),
    [
        (200, b'{"stdout": "half"}\n', 3, "ended before the command did"),
        (200, b"not json\n", 3, "does not answer"),
        (404, b"<html>", 3, "is not a worker of this version"),
        (
            404,
            b'{"code": "PipelineUnknown", "what": "no such", "why": "", "remedy": "R."}',
            2,
            "PipelineUnknown: no such",
        ),
        (503, b'{"code": "WorkerBusy", "what": "busy", "why": "", "remedy": "R."}', 3, "WorkerBusy: busy"),
        (500, b'{"code": "Odd", "what": "odd", "why": "", "remedy": "R."}', 3, "WorkerUnavailable: odd"),
    ],
)
def test_answers_that_are_no_result(
    server: Server, capsys: pytest.CaptureFixture[str], status: int, body: bytes, code: int, expected: str
) -> None:
    server.status, server.body = status, body
    assert run_command(["status", "orders", "--worker", server.url]) == code
    assert expected in capsys.readouterr().err
