"""How much room the disk has that the server's log lies on; known only if the server runs on this machine.

Postgres does not tell. Its processes do, to those who share their machine: each bears its client's address in its
title. So if the process that serves our session is to be seen here, and names the very port that we came from, the
server's data directory is a directory of ours, and the file system can be asked.
"""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.sources.postgres.connection import PgConnection

PROCESSES = Path("/proc")


def log_folder(control: PgConnection, processes: Path = PROCESSES) -> Path | None:
    """Where the server's data is, as a path of this machine; None if it is another machine's, or may not be known."""
    # Roles without pg_read_all_settings do not see where it is: no row, no error.
    process, port, folder = control.query(
        "SELECT pg_backend_pid(), inet_client_port(), (SELECT setting FROM pg_settings WHERE name = 'data_directory')"
    )[0]
    try:
        title = (processes / str(process) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    came_from = f"({port})" if port else "[local]"
    if folder is None or not title.startswith("postgres:") or came_from not in title:
        return None
    return Path(folder)


def free_bytes(folder: Path) -> int | None:
    """What may still be written there by the server; None if it cannot be told."""
    # The log may have been put on a disk of its own. Who may not look inside takes the disk of the data for it.
    for place in (folder / "pg_wal", folder):
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return None
