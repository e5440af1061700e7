"""Ports on the loopback address that stay free while a server is down.

The kernel gives ports of its ephemeral range to every outgoing connection. A server that is killed and
started again on such a port may find it taken, and worse: a client that retries against the dead port can be
given that very port as its own and connect to itself. So ports are drawn at random from below that range.
Between the draw and the server's bind somebody else may be quicker: whoever starts a server retries with
another port.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from tailrace.testkit.stack.errors import StackError

HOST = "127.0.0.1"
LOWEST = 10240
ATTEMPTS = 200

_drawn: set[int] = set()


def _first_ephemeral() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    # A machine may be set to use nearly all ports as ephemeral ones; then there is no safe range, only luck.
    return first if first > LOWEST + 1000 else 32768


def can_bind(port: int) -> bool:
    """Whether a server could listen on this port now; lingering closed connections do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port nobody listens on, never drawn before by this process."""
    chance = random.SystemRandom()
    first_ephemeral = _first_ephemeral()
    for _ in range(ATTEMPTS):
        port = chance.randrange(LOWEST, first_ephemeral)
        if port not in _drawn and can_bind(port):
            _drawn.add(port)
            return port
    raise StackError(
        f"no free port on {HOST} between {LOWEST} and {first_ephemeral}",
        remedy="stop some servers, or restart this process",
    )
