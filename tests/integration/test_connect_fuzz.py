"""Anything that a client may send to the Connect API: an answer of the contract, never a 500, never a hang."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.connect import ConnectWorker, config_of
from helpers.fetched import api_tools
from helpers.shop import Shop

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "unsupported_method",
)  # fmt: skip
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "15"))


@pytest.mark.slow
def test_schemathesis_finds_no_500_and_no_hang(connect: ConnectWorker, shop: Shop, tmp_path: Path) -> None:
    request, name = connect.request, shop.name
    created = request("POST", "/connectors", {"name": name, "config": config_of(shop), "initial_state": "STOPPED"})
    assert created.status_code == 201, created.text
    document = request.get("/api/connect/openapi.json")
    for path, methods in document["paths"].items():
        # Half of the requests are for something that exists.
        known = {"name": name, "task": "0", "plugin": "tailrace.PostgresOutbox", "logger": "tailrace.kafka"}
        for parameter in methods.get("parameters", []):
            text = {"type": "string", "minLength": 1, "maxLength": 60}
            parameter["schema"] = {"anyOf": [{"enum": [known[parameter["name"]]]}, text]}
        if path == "/connectors/{name}":
            # The connector must stay for the others.
            missing = {"name": "name", "in": "path", "required": True, "schema": {"enum": ["missing"]}}
            methods["delete"]["parameters"] = [missing]
    file = tmp_path / "connect.json"
    file.write_text(json.dumps(document))
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", connect.process.url,
        "--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES), "--request-timeout", "60",
        "--phases", "examples,coverage,fuzzing", "--generation-deterministic", "--workers", "2",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(api_tools()), "COLUMNS": "160"}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert not connect.process.events("request failed"), connect.process.log
    assert name in request.get("/connectors")


def test_bad_requests_get_an_answer_of_connect(connect: ConnectWorker, shop: Shop) -> None:
    port = connect.process.port

    def send(method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                **headers,
            }.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    for status, method, path, body in (
        (413, "POST", "/connectors", b" " * (2 << 20)),
        (400, "POST", "/connectors", b'{"name": "a", "config": ' + b"[" * 200_000),
        (400, "POST", "/connectors", json.dumps({"name": "a", "config": {"x" * 100_000: "y"}}).encode()),
        (400, "POST", "/connectors", json.dumps({"name": "\u00fc", "config": config_of(shop)}).encode()),
        (400, "POST", "/connectors", json.dumps({"name": "a" * 49, "config": config_of(shop)}).encode()),
        (400, "PUT", "/connectors/%C3%BC/config", json.dumps(config_of(shop)).encode()),
        (404, "GET", "/connectors/%2e%2e%2f%2e%2e%2fetc%2fpasswd", b""),
        (404, "GET", "/connectors/%FF%FE/status", b""),
        (404, "GET", "/connectors/a%00b/status", b""),
        (404, "GET", f"/connectors/{'x' * 20_000}/status", b""),
        (404, "GET", "/connectors//status", b""),
        (405, "TRACE", "/connectors", b""),
        (405, "NONSENSE", "/connectors", b""),
    ):
        found, answer = send(method, path, body)
        assert found == status, (method, path[:60], found, answer)
        assert answer["error_code"] == status
        assert answer["message"]
    assert send("GET", "/connectors?expand=" + "x" * 10_000) == (200, {})
    assert send("GET", "/connectors", X="y" * 10_000)[0] == 200
    assert connect.request.get("/connectors") == []


def test_a_client_that_hangs_up_or_sends_half_a_body(connect: ConnectWorker) -> None:
    address = ("127.0.0.1", connect.process.port)
    for part in (
        b"POST /connectors HTTP/1.1\r\n",
        b"POST /connectors HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{",
    ):
        for _ in range(20):
            with socket.create_connection(address, 30) as client:
                client.sendall(part)
    assert connect.request.get("/connectors") == []
    assert not connect.process.events("request failed"), connect.process.log
