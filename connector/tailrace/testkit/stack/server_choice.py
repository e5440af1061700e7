"""Which server to use: one named in the environment, one in Docker, or one of our own from wheels and jars.

In that order, because an address is a wish somebody expressed, Docker gives the official builds, and wheels
and jars work everywhere. Asking for Docker must cost next to nothing where no engine runs, and say nothing.
"""

from __future__ import annotations

import os
import socket
from enum import Enum
from functools import cache
from pathlib import Path

PING_TIMEOUT = 2


class ServerChoice(Enum):
    """Where a server comes from."""

    AUTO = "auto"
    ADDRESS = "address"
    DOCKER = "docker"
    LOCAL = "local"


def choose(wished: ServerChoice, variable: str) -> tuple[ServerChoice, str]:
    """The source to use, and the address when it is one."""
    address = os.environ.get(variable, "").strip()
    if wished is ServerChoice.ADDRESS or (wished is ServerChoice.AUTO and address):
        return ServerChoice.ADDRESS, address
    if wished is ServerChoice.DOCKER or (wished is ServerChoice.AUTO and engine_answers()):
        return ServerChoice.DOCKER, ""
    return ServerChoice.LOCAL, ""


@cache
def engine_answers() -> bool:
    """Whether a Docker engine can be used; asked once per process."""
    # The library leaks a socket when nobody listens on the engine's: ask that first, by hand. Names that are
    # not files (tcp, ssh) are left to the library.
    named = os.environ.get("DOCKER_HOST", "")
    if not named or named.startswith("unix://"):
        usual = ["/var/run/docker.sock", f"{Path.home()}/.docker/run/docker.sock"]
        candidates = [named.removeprefix("unix://")] if named else usual
        if not any(_listens(path) for path in candidates):
            return False
    try:
        import docker  # type: ignore[import-untyped,unused-ignore]

        client = docker.from_env(timeout=PING_TIMEOUT)
    except Exception:  # noqa: BLE001 - no library, no engine, no rights: all mean that Docker is not for us
        return False
    try:
        return bool(client.ping())
    except Exception:  # noqa: BLE001 - as above
        return False
    finally:
        client.close()


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PING_TIMEOUT)
        return probe.connect_ex(path) == 0
