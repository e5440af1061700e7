"""A drill's connector cuts its own connections: those to one server, and no others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.testkit.drill.connector import Address, cut_connections, plain_host
from tailrace.testkit.stack.ports import HOST


@pytest.fixture
def servers() -> Iterator[list[socket.socket]]:
    made = [socket.create_server((HOST, 0)) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def address(server: socket.socket) -> Address:
    host, port = server.getsockname()
    return host, port


def test_only_connections_to_the_wanted_server_are_cut(servers: list[socket.socket]) -> None:
    clients = [socket.create_connection(address(server)) for server in (*servers, servers[0])]
    accepted = [servers[0].accept()[0], servers[0].accept()[0], servers[1].accept()[0]]
    try:
        assert cut_connections(lambda peer: peer == address(servers[0])) == 2
        for client in (clients[0], clients[2]):
            assert client.recv(1) == b""
        for server_side in accepted[:2]:
            assert server_side.recv(1) == b""
        clients[1].sendall(b"x")
        assert accepted[2].recv(1) == b"x"
    finally:
        for each in (*clients, *accepted):
            each.close()


def test_listening_and_unconnected_sockets_are_left_alone(servers: list[socket.socket]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, socket.socket() as unconnected:
        datagrams.connect(address(servers[0]))
        assert cut_connections(lambda peer: peer == address(servers[0])) == 0
        assert unconnected.fileno() > 0


def test_no_descriptor_is_left_open(servers: list[socket.socket], tmp_path: Path) -> None:
    with (tmp_path / "file").open("w"), socket.create_connection(address(servers[0])):
        before = len(list(Path("/proc/self/fd").iterdir()))
        cut_connections(lambda peer: peer == address(servers[0]))
        assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("host", "plain"), [("::ffff:10.0.0.7", "10.0.0.7"), ("10.0.0.7", "10.0.0.7"), ("::1", "::1")])
def test_an_address_has_one_form(host: str, plain: str) -> None:
    assert plain_host(host) == plain
