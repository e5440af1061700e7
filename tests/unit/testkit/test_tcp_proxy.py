"""The TCP proxy in front of a real echo server: the effect of each fault on both ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.stack.ports import HOST
from tailrace.testkit.tcp_proxy import Direction, TcpProxy

SILENCE = 0.15  # after this time without a byte, nothing is expected to arrive


class Echo:
    """A server that sends back and records what it receives."""

    def __init__(self) -> None:
        self.received = bytearray()
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            thread = threading.Thread(target=self._echo, args=[client])
            self._threads.append(thread)
            thread.start()

    def _echo(self, client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(65536):
                    self.received += data
                    client.sendall(data)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._sockets:
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy((HOST, echo.port)) as made:
        yield made


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with connect(proxy) as made:
        assert ask(made, b"hello") == b"hello"
        yield made


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=10)


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def receive(client: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (more := client.recv(size - len(got))):
        got += more
    return got


def silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE)
    try:
        return not client.recv(1) and False
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)


def test_it_forwards_large_amounts_in_both_directions(proxy: TcpProxy, client: socket.socket) -> None:
    data = bytes(range(256)) * 20_000
    sender = threading.Thread(target=client.sendall, args=[data])
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()
    total = len(data) + len(b"hello")
    # The proxy counts after sending: the last bytes may arrive before they are counted.
    wait_until(lambda: [proxy.moved(way) for way in Direction] == [total, total], what="the count")


def test_the_end_of_a_stream_is_forwarded_after_the_last_byte(client: socket.socket, proxy: TcpProxy) -> None:
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert receive(client, 100) == b"last words"
    wait_until(lambda: proxy.connections == 0)


def test_cut_resets_open_connections_and_accepts_new_ones(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert (proxy.cuts, proxy.connections) == (1, 0)
    with connect(proxy) as again:
        assert ask(again, b"still there") == b"still there"


def test_refuse_keeps_open_connections_and_accept_listens_on_the_same_port(
    proxy: TcpProxy, client: socket.socket
) -> None:
    port = proxy.port
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    assert ask(client, b"old friend") == b"old friend"
    proxy.accept()
    assert proxy.port == port
    with connect(proxy) as again:
        assert ask(again, b"back") == b"back"


def test_a_blackhole_delays_bytes_and_loses_none(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    proxy.blackhole()
    client.sendall(b"anyone?")
    assert silent(client)
    assert bytes(echo.received) == b"hello"
    proxy.restore()
    assert receive(client, 7) == b"anyone?"


def test_a_blackhole_of_one_direction_does_not_affect_the_other(
    proxy: TcpProxy, client: socket.socket, echo: Echo
) -> None:
    proxy.blackhole(Direction.TO_CLIENT)
    client.sendall(b"lost answer")
    wait_until(lambda: bytes(echo.received) == b"hellolost answer", what="the bytes at the server")
    assert silent(client)
    proxy.restore()
    assert receive(client, 11) == b"lost answer"


def test_a_blackhole_hides_the_end_of_a_stream(proxy: TcpProxy, echo: Echo, client: socket.socket) -> None:
    proxy.blackhole()
    echo._sockets[0].shutdown(socket.SHUT_RDWR)
    assert silent(client)
    proxy.restore()
    assert client.recv(1) == b""


def test_held_bytes_are_delivered_in_order_after_release(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    proxy.hold(Direction.TO_SERVER)
    for word in (b"one ", b"two ", b"three"):
        client.sendall(word)
    assert silent(client)
    assert bytes(echo.received) == b"hello"
    proxy.release()
    assert receive(client, 13) == b"one two three"


def test_the_held_end_of_a_stream_comes_after_release(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.hold(Direction.TO_SERVER)
    client.shutdown(socket.SHUT_WR)
    assert silent(client)
    proxy.release()
    assert client.recv(1) == b""


@pytest.mark.parametrize("size", [0, 1, 5, 100_000])
def test_cut_after_delivers_exactly_this_many_bytes(
    proxy: TcpProxy, client: socket.socket, echo: Echo, size: int
) -> None:
    proxy.cut_after(size, Direction.TO_SERVER)
    try:
        client.sendall(b"x" * (size + 50_000))
    except OSError:
        pass  # the cut may come while we are still sending
    wait_until(lambda: proxy.cuts == 1, what="the cut")
    wait_until(lambda: not echo._threads[1].is_alive(), what="the end at the server")
    assert len(echo.received) == len(b"hello") + size
    with connect(proxy) as again:
        assert ask(again, b"once only") == b"once only"


def test_throttle_slows_down_until_it_is_removed(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.throttle(100_000)
    begun = time.monotonic()
    assert ask(client, b"x" * 30_000) == b"x" * 30_000
    assert time.monotonic() - begun > 0.2
    proxy.throttle(None)
    begun = time.monotonic()
    for _ in range(20):  # 12 s if it were still slow
        assert len(ask(client, b"x" * 60_000)) == 60_000
    assert time.monotonic() - begun < 6


def test_without_a_target_clients_are_closed_until_one_is_set(echo: Echo) -> None:
    with TcpProxy() as proxy:
        with connect(proxy) as client:
            assert client.recv(1) == b""
        proxy.point_at(HOST, echo.port)
        with connect(proxy) as client:
            assert ask(client, b"found") == b"found"


def test_a_refused_connection_to_the_target_resets_the_client(proxy: TcpProxy, echo: Echo) -> None:
    with socket.create_server((HOST, 0)) as listener:
        closed_port = listener.getsockname()[1]
    proxy.point_at(HOST, closed_port)
    # The reset may arrive before our own connect has returned.
    with pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


def test_a_port_in_use_is_an_error(echo: Echo) -> None:
    proxy = TcpProxy((HOST, 1), port=echo.port)
    with pytest.raises(StackError, match=f"cannot listen on port {echo.port}"):
        proxy.__enter__()
    proxy.__exit__()
