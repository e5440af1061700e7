"""`ProxiedConnection`: the two sockets of one connection through the proxy, and the bytes between them.

It has no threads and does not wait. It says which events of its sockets to poll for, given the flow of each direction,
and moves bytes when a socket is ready. A direction that is SILENT is not read: its bytes and its end stay in the
kernel, as behind a dropped route, and arrive when the route is back.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections.abc import Mapping
from enum import Enum

CHUNK = 65536
HIGH_WATER = 4 * CHUNK  # enough for a fast connection, little enough for backpressure to reach the sender
RESET = struct.pack("ii", 1, 0)


class Direction(Enum):
    TO_SERVER = "to_server"
    TO_CLIENT = "to_client"


class Flow(Enum):
    FORWARD = "forward"
    HOLD = "hold"
    SILENT = "silent"


class ProxiedConnection:
    """The client's socket, the server's socket, and the bytes between them."""

    def __init__(self, client: socket.socket, target: tuple[str, int]) -> None:
        self.client = client
        self.server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.connecting = True
        self._buffers = {way: bytearray() for way in Direction}
        self._ended: set[Direction] = set()
        self._passed_end: set[Direction] = set()
        for sock in (client, self.server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.connect_ex(target)

    def interest(self, modes: Mapping[Direction, Flow], rested: Mapping[Direction, bool]) -> dict[socket.socket, int]:
        """Returns the events to poll each socket for; `rested` says which directions may send by the rate limit."""
        if self.connecting:
            return {self.server: selectors.EVENT_WRITE, self.client: 0}
        wanted = {self.client: 0, self.server: 0}
        for way, mode in modes.items():
            buffer = self._buffers[way]
            room = mode is Flow.HOLD or (mode is Flow.FORWARD and len(buffer) < HIGH_WATER)
            if room and way not in self._ended:
                wanted[self._from(way)] |= selectors.EVENT_READ
            if mode is Flow.FORWARD and buffer and rested[way]:
                wanted[self._to(way)] |= selectors.EVENT_WRITE
        return wanted

    def pending(self, way: Direction) -> bool:
        return bool(self._buffers[way])

    def connected(self) -> None:
        """Handles the result of connecting to the server; raises OSError if it was refused."""
        error = self.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        self.connecting = False

    def read(self, sock: socket.socket) -> None:
        way = Direction.TO_SERVER if sock is self.client else Direction.TO_CLIENT
        try:
            data = sock.recv(CHUNK)
        except BlockingIOError:
            return
        if data:
            self._buffers[way] += data
        else:
            self._ended.add(way)

    def write(self, way: Direction, limit: int | None) -> int:
        """Sends at most `limit` waiting bytes in this direction; returns how many were sent."""
        buffer = self._buffers[way]
        portion = bytes(buffer[: CHUNK if limit is None else min(limit, CHUNK)])
        try:
            sent = self._to(way).send(portion)
        except BlockingIOError:
            return 0
        del buffer[:sent]
        return sent

    def finished(self, modes: Mapping[Direction, Flow]) -> bool:
        """Forwards the end of a direction after its last byte; returns whether both directions have ended."""
        for way in self._ended - self._passed_end:
            if modes[way] is Flow.FORWARD and not self._buffers[way]:
                self._passed_end.add(way)
                self._to(way).shutdown(socket.SHUT_WR)
        return len(self._passed_end) == len(Direction)

    def close(self, reset: bool) -> None:
        for sock in (self.client, self.server):
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()

    def way_to(self, sock: socket.socket) -> Direction:
        return Direction.TO_SERVER if sock is self.server else Direction.TO_CLIENT

    def _from(self, way: Direction) -> socket.socket:
        return self.client if way is Direction.TO_SERVER else self.server

    def _to(self, way: Direction) -> socket.socket:
        return self.server if way is Direction.TO_SERVER else self.client
