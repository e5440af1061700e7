"""`PostgresServer`: a real Postgres for the demo, the tests and the benchmark.

A context manager. A server from wheels (`server.local`) can also be killed, stopped, started again on the
same data and port, and paused: that is what the fault tests live on. It listens on the loopback address only,
and its superuser has a random password. It is ready when it answers a query, not before.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.stack import containers, postgres_local
from tailrace.stack.cache import Progress, quiet
from tailrace.stack.errors import StackError
from tailrace.stack.places import new_run_dir, unprivileged
from tailrace.stack.ports import HOST, can_bind, free_port
from tailrace.stack.process import LocalProcess
from tailrace.stack.source import Source, choose
from tailrace.stack.waiting import wait_until

VARIABLE = "TAILRACE_STACK_POSTGRES"
START_TIMEOUT = 60.0  # recovery after kill -9 of a busy server takes seconds; a machine under load, more
PORT_ATTEMPTS = 5
CONNECT_TIMEOUT = 5


class PostgresServer:
    """Postgres `version`, with `settings` on top of ours; started on entering."""

    def __init__(
        self,
        version: str = "16",
        *,
        settings: Mapping[str, str] | None = None,
        source: Source = Source.AUTO,
        progress: Progress = quiet,
    ) -> None:
        self.version = version
        self.settings = dict(settings or {})
        self.source, self._address = choose(source, VARIABLE)
        self.bin_dir: Path | None = None
        self._progress = progress
        self._parameters: dict[str, Any] = {}
        self._process: LocalProcess | None = None
        self._container: containers.Running | None = None
        self._version_num = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def local(self) -> bool:
        """Whether it is a process of ours, to be killed and paused at will."""
        return self.source is Source.LOCAL

    @property
    def host(self) -> str:
        return str(self._parameters["host"])

    @property
    def port(self) -> int:
        return int(self._parameters["port"])

    @property
    def process(self) -> LocalProcess:
        """The process behind a local server."""
        if self._process is None:
            raise StackError(
                "this Postgres is not a local one, or not started",
                remedy="start it with source=Source.LOCAL to get at its process",
            )
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        return self.process.pids

    @property
    def running(self) -> bool:
        return self.process.running

    @property
    def data_dir(self) -> Path:
        return self.process.run_dir / "data"

    @property
    def log(self) -> Path:
        return self.process.log

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

    def create_database(self, name: str) -> str:
        """A new, empty database; its connection string."""
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def start(self) -> None:
        """Start, or start again after `stop` or `kill`: same data, same port. Returns when it answers."""
        if self.source is Source.ADDRESS:
            self._parameters = {k: v for k, v in conninfo_to_dict(self._address).items() if v is not None}
        elif self.source is Source.DOCKER:
            self._start_container()
        elif self._process is None:
            self._create()
            self._start_somewhere()
        else:
            postgres_local.clear_crash(self.data_dir)
            self._start_process()
        self._await_answer()

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, a checkpoint is written."""
        self.process.stop()

    def kill(self) -> None:
        """kill -9 of the postmaster; returns when all its children are gone too."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP: every process freezes, connections stay open."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def close(self) -> None:
        """End it and remove all it wrote. A server named by its address is left alone."""
        if self._process is not None:
            if not self._process.running:
                postgres_local.clear_crash(self.data_dir)
            self._process.close()
            self._process = None
        if self._container is not None:
            self._container.close()
            self._container = None

    def let_go(self) -> None:
        """Let it live on when this process ends; `process.guardian_pid` is then who to ask to end it."""
        self.process.let_go()

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

    def _start_somewhere(self) -> None:
        """First start: the port is ours only once the server has bound it; another may have to be tried."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._parameters["port"] = port = free_port()
            postgres_local.configure(self.data_dir, port, self.settings, unprivileged())
            self._start_process()
            try:
                self._await_answer()
            except StackError:
                if self.running or can_bind(port) or attempt == PORT_ATTEMPTS:
                    raise
            else:
                return

    def _start_process(self) -> None:
        if self.bin_dir is None:
            raise StackError("this Postgres was never created")
        self.process.launch([self.bin_dir / "postgres", "-D", self.data_dir], dict(postgres_local.ENVIRONMENT))

    def _start_container(self) -> None:
        if self._container is not None:
            raise StackError("this Postgres in Docker is already running")
        password = secrets.token_urlsafe(16)
        settings = {
            "wal_level": "logical",
            "max_replication_slots": "50",
            "max_wal_senders": "50",
            **self.settings,
        }
        self._progress(f"starting Postgres {self.version} in Docker")
        self._container = running = containers.start_postgres(self.version, password, settings)
        self._parameters = {
            "host": running.host,
            "port": running.port,
            "user": "postgres",
            "password": password,
        }

    def _await_answer(self) -> None:
        last = ""

        def answers() -> bool:
            nonlocal last
            if self._process is not None and not self._process.running:
                raise self._process.failure(
                    f"Postgres ended while it was starting (exit code {self._process.exit_code})",
                    remedy="the log says which setting or file it stumbled over",
                )
            try:
                with self.connect() as connection:
                    connection.execute("SELECT 1")
            except psycopg.OperationalError as exc:
                last = str(exc)
                return False
            return True

        timeout = CONNECT_TIMEOUT if self.source is Source.ADDRESS else START_TIMEOUT
        try:
            wait_until(answers, timeout, what="an answer from Postgres")
        except StackError as exc:
            exc.why = exc.why or last
            exc.remedy = exc.remedy or f"see that it runs and that {VARIABLE} names it"
            raise
