"""`PostgresServer`: a real Postgres for the demo, the tests and the benchmark.

A context manager. A server from wheels (`server.local`) can also be killed, stopped, started again on the
same data and port, and paused: that is what the fault tests live on. It listens on the loopback address only,
and its superuser has a random password. It is ready when it answers a query, not before.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.testkit.stack import containers, postgres_local
from tailrace.testkit.stack.cache import Progress, quiet
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.paths import new_run_dir, unprivileged
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import StackServer
from tailrace.testkit.stack.server_choice import ServerChoice, choose

VARIABLE = "TAILRACE_STACK_POSTGRES"
CONNECT_TIMEOUT = 5


class PostgresServer(StackServer):
    """Postgres `version`, with `settings` on top of ours; started on entering."""

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
        """As `server_version_num` says it: 160014 for 16.14."""
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
        """A connection string; the superuser's unless a user is named."""
        login = {} if user is None else {"user": user, "password": password}
        return make_conninfo("", **{**self._parameters, "dbname": dbname, **login, **parameters})

    def connect(self, dbname: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A superuser's connection in autocommit mode."""
        return psycopg.connect(self.dsn(dbname, connect_timeout=CONNECT_TIMEOUT), autocommit=True)

    def create_database(self, name: str, *, encoding: str = "") -> str:
        """A new, empty database; its connection string."""
        options = sql.SQL(" ENCODING {} LOCALE 'C' TEMPLATE template0").format(encoding) if encoding else sql.SQL("")
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + options)
        return self.dsn(name)

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, a checkpoint is written."""
        super().stop()

    def close(self) -> None:
        """End it and remove all it wrote. A server named by its address is left alone."""
        if self._process is not None and not self._process.running:
            postgres_local.clear_crash(self.data_dir)
        super().close()

    def _use_address(self) -> None:
        self._parameters = {k: v for k, v in conninfo_to_dict(self._address).items() if v is not None}

    def _create(self) -> None:
        user = unprivileged()
        self.bin_dir = postgres_local.programs(self.version, user, self._progress)
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
        postgres_local.init(self._process, self.bin_dir, self.data_dir, password, user)

    def _settle(self) -> Sequence[int]:
        self._parameters["port"] = port = free_port()
        postgres_local.configure(self.data_dir, port, self.settings, unprivileged())
        return [port]

    def _launch(self) -> None:
        if self.bin_dir is None:
            raise StackError("this Postgres was never created")
        if not self.running:
            postgres_local.clear_crash(self.data_dir)
        self.process.launch([self.bin_dir / "postgres", "-D", self.data_dir], dict(postgres_local.ENVIRONMENT))

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

    def _silence(self) -> str | None:
        try:
            with self.connect() as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError as exc:
            return str(exc)
        return None
