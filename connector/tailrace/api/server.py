"""The HTTP server of a worker: one port, with bounds on what clients may send, and how slowly.

Headers and bodies must arrive within some seconds, answers must be read within some seconds, bodies are at most 1 MB,
and there are at most some hundred connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tailrace.api.guard import CERTIFICATE, PEER
from tailrace.errors import AddressInUse, ConfigError

DEFAULT_ADDRESS = "127.0.0.1:8083"
HEADER_SECONDS = 10.0
BODY_SECONDS = 30.0
SEND_SECONDS = 30.0
"""How long a client may take to read a part of an answer."""
BODY_BYTES = 1 << 20
DISCARD_BYTES = 512 << 20
"""Of a body that is too large, so much is read and thrown away."""
HEADER_BYTES = 64 * 1024
CONNECTIONS = 1000
"""Further ones are answered with 503."""
KEEP_ALIVE_SECONDS = 15
CLOSE_SECONDS = 1


def parse_address(text: str) -> tuple[str, int]:
    """`8083` or `0.0.0.0:8083` or `[::1]:8083` as host and port; raises ConfigError."""
    found = re.fullmatch(r"(?:(?P<host>[^:\[\]]+|\[[0-9a-fA-F:.]+\]):)?(?P<port>\d{1,5})", text.strip())
    if found is None or int(found["port"]) > 65535:
        raise ConfigError(
            f"--http {text[:60]} is not an address",
            remedy="Write a port, such as 8083, or host:port, such as 0.0.0.0:8083.",
        )
    return (found["host"] or "127.0.0.1").strip("[]"), int(found["port"])


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Opens the port; raises AddressInUse, or ConfigError if the address is none of this machine."""
    shown = f"{f'[{host}]' if ':' in host else host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"the host {host} of --http is not known: {error.strerror}", remedy="Correct it, or give an IP address."
        ) from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(512)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"another process listens on {shown}",
                why="A port has one listener. Perhaps another worker runs already.",
                remedy=f"Stop it, or choose another port: --http {port + 1 if port < 65535 else 8083}.",
            ) from None
        raise ConfigError(
            f"the worker cannot listen on {shown}: {error.strerror}",
            why="The address is none of this machine, or this user may not use the port.",
            remedy="Give an address of this machine and a port above 1023 with --http.",
        ) from None
    return opened


class BoundedProtocol(H11Protocol):
    """Closes connections whose request line and headers do not arrive in time, or whose client does not read."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        self.app = _with_peer(
            self.app, self.client[0] if self.client else "", connection.getpeercert() if connection else None
        )
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_request()
        else:
            self._cancel_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Not closed: that would wait until the client has read what is buffered.
        self._unread = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_unread()
        super().resume_writing()

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_unread()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._close_slow)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_slow(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def _with_peer(app: ASGIApp, peer: str, certificate: object) -> ASGIApp:
    """Adds the other end of the connection to the state of its requests. Headers cannot change it."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] |= {PEER: peer, CERTIFICATE: certificate}
        await app(scope, receive, send)

    return run


class Bounds:
    """ASGI middleware: refuses bodies that are too large (413) or too slow (408)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _BoundedRequest(self._app, scope, receive, send).run()
        else:
            await self._app(scope, receive, send)


class _BoundedRequest:
    """One request, with its deadlines."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._app, self._scope, self._receive, self._send = app, scope, receive, send
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        self._size = 0
        self._complete = False
        self._answered = False
        self._refused: HTTPException | None = None

    async def run(self) -> None:
        lengths = [value for name, value in self._scope["headers"] if name == b"content-length"]
        try:
            if any(value.isdigit() and int(value) > BODY_BYTES for value in lengths):
                raise self._refuse(413, f"the body is larger than {BODY_BYTES} bytes")
            await self._app(self._scope, self.receive, self.send)
        except Exception:
            if self._refused is None:
                raise
        if self._refused is not None and not self._answered:
            await self._answer(self._refused)

    def _refuse(self, status: int, what: str) -> HTTPException:
        """Returns an error for the app. What the app answers to it is not sent."""
        self._refused = HTTPException(status, what)
        return self._refused

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()  # waits for the end of the connection
        message = await self._next()
        if message is None:
            raise self._refuse(408, f"the body did not arrive within {BODY_SECONDS:.0f} s")
        if self._size > BODY_BYTES:
            raise self._refuse(413, f"the body is larger than {BODY_BYTES} bytes")
        return message

    async def _next(self) -> Message | None:
        """Returns the next part of the body; None after the deadline."""
        left = self._deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, left))
        except TimeoutError:
            return None
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if self._refused is not None and not self._answered:
            return
        self._answered = True
        await self._send(message)
        if message.get("more_body"):
            # Sending to a client that is gone returns at once: an endless answer would never be interrupted.
            await asyncio.sleep(0)

    async def _answer(self, refused: HTTPException) -> None:
        body = json.dumps({"error_code": refused.status_code, "message": refused.detail}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        self._answered = True
        await self.send({"type": "http.response.start", "status": refused.status_code, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        # Clients that send everything before they read would see a reset instead of the answer.
        while not self._complete and self._size < DISCARD_BYTES and await self._next() is not None:
            pass
        await self.send({"type": "http.response.body", "body": b""})


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers, which the worker has itself, and with a time limit for TLS handshakes."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        config, loop = self.config, asyncio.get_running_loop()
        has_tls = config.ssl is not None
        self.servers = [
            await loop.create_server(
                lambda: BoundedProtocol(config, self.server_state, self.lifespan.state),
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=HEADER_SECONDS if has_tls else None,
                ssl_shutdown_timeout=CLOSE_SECONDS if has_tls else None,
            )
            for each in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves an app on an open port, in the running event loop; with `tls`, over TLS."""

    def __init__(self, app: ASGIApp, opened: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config: dict[str, Any] = {
            "http": BoundedProtocol,
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "limit_concurrency": CONNECTIONS,
            "timeout_keep_alive": KEEP_ALIVE_SECONDS,
            "timeout_graceful_shutdown": CLOSE_SECONDS,
            "h11_max_incomplete_event_size": HEADER_BYTES,
        }
        if tls is not None:
            config["ssl_context_factory"] = lambda *_: tls
        self._server = _QuietServer(uvicorn.Config(Bounds(app), **config))
        self._socket = opened
        self._task: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.server_state.connections)

    def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def close(self) -> None:
        """Answers running requests for a moment, then closes everything."""
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.wait_for(self._task, CLOSE_SECONDS + 1)
