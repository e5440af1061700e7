"""Free ports on the loopback address, drawn from below the ephemeral range.

The kernel gives ephemeral ports to outgoing connections. A server that is killed and restarted on such a port may find
it taken, and a client that retries against the dead port can even be given that port and connect to itself. Somebody
else may still take a port between the draw and the server's bind: `StackServer` then retries with another port.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from tailrace.testkit.stack.waiting import StackError

HOST = "127.0.0.1"
LOWEST = 10240
ATTEMPTS = 200

_drawn: set[int] = set()


def _first_ephemeral() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    # Some machines use nearly all ports as ephemeral ones. There is no safe range then.
    return first if first > LOWEST + 1000 else 32768


def can_bind(port: int) -> bool:
    """Returns whether a server could listen on this port now; closed connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Returns a free port, a different one on each call."""
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
