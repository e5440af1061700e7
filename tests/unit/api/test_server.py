"""The HTTP server: bounds on size and time, connections, the port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tailrace.api import server
from tailrace.api.server import HttpServer, is_loopback, listen, parse_address
from tailrace.errors import AddressInUse, ConfigError


async def size(request: Request) -> Response:
    return JSONResponse({"size": len(await request.body())})


async def flood(_: Request) -> Response:
    async def parts():  # type: ignore[no-untyped-def] # noqa: ANN202
        while True:
            yield b"x" * 65536

    return StreamingResponse(parts())


APP = Starlette(routes=[Route("/size", size, methods=["GET", "POST"]), Route("/flood", flood)])


def served(client: Callable[[int], Awaitable[None]]) -> None:
    """Runs a client against the server."""

    async def main() -> None:
        opened = listen("127.0.0.1", 0)
        running = HttpServer(APP, opened)
        running.start()
        try:
            await asyncio.wait_for(client(opened.getsockname()[1]), 60)
        finally:
            await running.close()

    asyncio.run(main())


async def exchange(port: int, request: bytes) -> bytes:
    """Sends bytes, and returns everything that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def post(body: bytes, headers: str = "") -> bytes:
    head = f"POST /size HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def test_bodies_up_to_the_limit_are_accepted() -> None:
    async def client(port: int) -> None:
        answer = await exchange(port, post(b"x" * server.BODY_BYTES))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'{"size":1048576}' in answer

    served(client)


@pytest.mark.parametrize("bytes_", [server.BODY_BYTES + 1, 100_000_000])
def test_a_body_that_is_too_large_gets_a_clear_answer(bytes_: int) -> None:
    """Also for clients that read the answer only after they have sent everything."""

    async def client(port: int) -> None:
        answer = await exchange(port, post(b"x" * bytes_))
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"message": "the body is larger than 1048576 bytes"' in answer

    served(client)


def test_a_body_in_chunks_is_bounded_too() -> None:
    async def client(port: int) -> None:
        head = b"POST /size HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"80000\r\n" + b"x" * 0x80000 + b"\r\n"
        answer = await exchange(port, head + chunk * 5 + b"0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413")

    served(client)


@pytest.mark.parametrize("sent", [b"", b"GET /size HT", b"GET /size HTTP/1.1\r\nHost: h\r\n"])
def test_a_client_that_sends_no_complete_request_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.3)

    async def client(port: int) -> None:
        assert await exchange(port, sent) == b""

    served(client)


def test_a_second_request_that_never_ends_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 1)

    async def client(port: int) -> None:
        answer = await exchange(port, b"GET /size HTTP/1.1\r\nHost: h\r\n\r\nGET /si")
        assert answer.count(b"HTTP/1.1 200") == 1

    served(client)


def test_a_body_that_does_not_arrive_gets_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.3)

    async def client(port: int) -> None:
        answer = await exchange(port, b"POST /size HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc")
        assert answer.startswith(b"HTTP/1.1 408")

    served(client)


def test_a_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SEND_SECONDS", 0.3)

    async def main() -> None:
        opened = listen("127.0.0.1", 0)
        running = HttpServer(APP, opened)
        running.start()
        _, writer = await asyncio.open_connection("127.0.0.1", opened.getsockname()[1], limit=1024)
        writer.write(b"GET /flood HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(30):
            for open_connections in (1, 0):
                while running.connections != open_connections:
                    await asyncio.sleep(0.01)
        writer.close()
        await running.close()

    asyncio.run(main())


def test_more_connections_than_allowed_get_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 5)

    async def client(port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        answer = await exchange(port, b"GET /size HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503")
        for _, writer in held:
            writer.close()

    served(client)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00", b"nonsense\r\n\r\n"])
def test_something_else_than_http_gets_400(sent: bytes) -> None:
    async def client(port: int) -> None:
        assert (await exchange(port, sent + b"\r\n\r\n")).startswith(b"HTTP/1.1 400")

    served(client)


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=str(port)) as caught:
            listen("127.0.0.1", port)
    assert "--http" in caught.value.remedy


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(ConfigError):
        listen(host, 0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8083", ("127.0.0.1", 8083)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_reads_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "1.2.3.4:", ":80:", "1.2.3.4:99999", "-1", "::1"])
def test_refuses_other_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(text)


def test_knows_which_addresses_only_this_machine_can_reach() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.com")
