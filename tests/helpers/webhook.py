"""A local webhook, a clock that the test controls, and certificates."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tailrace.testkit.stack import wait_until
from tailrace.worker.alerts import Alerts

INVALID, POISON = "schema_validation_failed", "poison_message"
SECRET = "Bearer hunter2-xyz"
SLACK = 15.0  # what a busy machine may add to a limit
A, B = (INVALID, "A"), (INVALID, "B")


class HandClock:
    """A clock that only the test moves. A waiting thread reads it again and again, so that it misses no move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.looks = 0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000 + self.now

    def wait(self, changed: threading.Condition, _seconds: float | None) -> None:
        self.looks += 1
        changed.wait(0.005)

    def move(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    def settle(self) -> None:
        """Returns when the thread has nothing left to do: it waits only then, and one wait may have begun before."""
        seen = self.looks
        wait_until(lambda: self.looks >= seen + 2, what="nothing left to do")


Answering = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


class Hook:
    """A webhook that records the calls and answers as the test wants."""

    def __init__(self, clock: HandClock, *, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Answering = status(204)
        self.released = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.times.append(clock.monotonic() - 1000)
                hook.paths.append(self.path)
                hook.headers.append(dict(self.headers))
                hook.calls.append(body)
                hook.answer(self, body)

            def do_GET(self) -> None:
                hook.paths.append(self.path)  # where a redirect that is followed would arrive

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # callers hang up on a server that takes too long

        self._server = Server(("127.0.0.1", port), Handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def counts(self, type_name: str = "A") -> list[int]:
        return [call["count"] for call in self.calls if call["type"] == type_name]


def status(code: int, **headers: str) -> Answering:
    def answer(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def raw(data: bytes) -> Answering:
    return lambda handler, _: handler.wfile.write(data) and None


def hang(hook: Hook) -> Answering:
    return lambda _handler, _told: hook.released.wait(60) and None


def drip(hook: Hook) -> Answering:
    """Sends a byte now and then: no single read ever takes long."""

    def answer(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not hook.released.wait(0.02):
            handler.wfile.write(b"x")

    return answer


Start = Callable[..., Alerts]


def lines(caplog: pytest.LogCaptureFixture, event: str = "dead-lettered") -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.getMessage() == event]


def certificate(folder: Path, address: str) -> Path:
    """Creates a key and a self-signed certificate for an address, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hook")])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "hook.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return file
