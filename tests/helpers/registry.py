"""Fake and proxied schema registries for tests of failures.

`ProxiedRegistry` is the real registry behind a proxy that can cut and delay connections. `FakeRegistry` is an HTTP
server for responses that the real one cannot be made to give.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tailrace.errors import Action, RegistryUnavailable
from tailrace.event import OutboxEvent
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.schemas.registry.client import FetchedSchema, RegistryClient, RegistryOptions
from tailrace.testkit.stack import RegistryServer
from tailrace.testkit.tcp_proxy import TcpProxy

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
SECRET = "hunter2-xyz"
SLACK = 15.0
"""Seconds that a loaded machine may add to a timeout."""
JSON = "application/vnd.schemaregistry.v1+json"
Respond = Callable[[BaseHTTPRequestHandler], None]


class CountingClient(RegistryClient):
    """Counts its fetches, to observe a refresh that changes nothing."""

    fetches = 0

    def fetch(self, subject: str, number: int | None = None) -> FetchedSchema | None:
        self.fetches += 1
        return super().fetch(subject, number)


class ProxiedRegistry:
    """The real registry behind a proxy."""

    def __init__(self, proxy: TcpProxy, path: str) -> None:
        self.proxy = proxy
        self.path = path

    def disconnect(self) -> None:
        """Acts as if the registry had been killed: ends connections and refuses new ones."""
        self.proxy.refuse()
        self.proxy.cut()

    def client(self, timeout: float = 20.0) -> CountingClient:
        return CountingClient(RegistryOptions(f"http://{self.proxy.address}{self.path}", timeout=timeout))


@contextmanager
def proxied_registry(registry: RegistryServer) -> Iterator[ProxiedRegistry]:
    parts = urlsplit(registry.url)
    assert parts.hostname
    with TcpProxy((parts.hostname, parts.port or 80)) as proxy:
        yield ProxiedRegistry(proxy, parts.path)


def compile_fetched(fetched: FetchedSchema) -> CompiledSchema:
    return CompiledJsonSchema.compile(fetched.subject, fetched.version, fetched.document, fetched.place)


def event(type_name: str, version: str | None = None) -> OutboxEvent:
    return OutboxEvent("e", type_name, "order", b"k", b'{"id": 1}', version, "0/1:0", 1, [])


def fails_within(seconds: float, request: Callable[[], object]) -> RegistryUnavailable:
    """Returns the RegistryUnavailable that a request must raise in time."""
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable) as failed:
        request()
    assert time.monotonic() - began < seconds
    assert failed.value.action is Action.RETRY
    return failed.value


class FakeRegistry:
    """An HTTP server that responds to every request in the same way and records the requests."""

    def __init__(self, answer: Respond, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                self.rfile.read(length)
                registry.requests.append((self.path, dict(self.headers)))
                try:
                    answer(self)
                except OSError:
                    pass  # the client hung up, as it should
                self.close_connection = True

            do_POST = do_GET  # noqa: N815 - the names that http.server requires

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a handshake that the client refused

        self.server = Server(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if context is not None:
            self.scheme = "https"
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.server_port}"

    def client(self, settings: dict[str, str] | None = None, timeout: float = 10.0) -> RegistryClient:
        return RegistryClient(RegistryOptions(self.url, settings or {}, timeout))


@contextmanager
def fake_registry(answer: Respond, context: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    one = FakeRegistry(answer, context)
    thread = threading.Thread(target=one.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()
        thread.join()


def respond(status: int, body: bytes = b"[]", headers: dict[str, str] | None = None) -> Respond:
    """Returns a function that sends this response."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in {"Content-Type": JSON, "Content-Length": str(len(body)), **(headers or {})}.items():
            to.send_header(name, value)
        to.end_headers()
        to.wfile.write(body)

    return answer


def endless_header(over: threading.Event) -> Respond:
    """Sends a header one byte at a time, until `over` is set."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        to.wfile.write(b"HTTP/1.1 200 OK\r\nX-Endless: ")
        while not over.wait(0.02):
            to.wfile.write(b"x")

    return answer


def first_of(responses: list[Respond]) -> Respond:
    """Responds as the first item of the list does at that moment, so that a test can replace it."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        responses[0](to)

    return answer
