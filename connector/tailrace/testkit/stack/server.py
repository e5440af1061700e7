"""`StackServer`: the base class of all servers, wherever they come from: an address, Docker, or wheels and jars.

An address in the environment wins, because the user chose it. Docker comes next, because it has the official builds.
Wheels and jars work everywhere. Looking for Docker is quick and silent where no engine runs.

A subclass says how a new server is created (`_create`), which ports it gets (`_assign_ports`), how it is launched
(`_launch`) and when it is ready (`_not_ready`). Another process may take a port before a new server binds it, so a
server that ended while one of its ports is taken is started again with other ports.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from enum import Enum
from functools import cache
from pathlib import Path
from typing import ClassVar, Self

from tailrace.testkit.stack.containers import RunningContainer
from tailrace.testkit.stack.paths import Progress
from tailrace.testkit.stack.ports import can_bind
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.waiting import StackError, wait_until

START_TIMEOUT = 90.0  # recovery after kill -9 takes seconds; on a loaded machine, much longer
ADDRESS_TIMEOUT = 5.0  # a server named by its address already runs
PING_TIMEOUT = 2
PORT_ATTEMPTS = 5


class ServerChoice(Enum):
    """Where a server comes from."""

    AUTO = "auto"
    ADDRESS = "address"
    DOCKER = "docker"
    LOCAL = "local"


def choose(wanted: ServerChoice, variable: str) -> tuple[ServerChoice, str]:
    """Resolves AUTO; returns the choice, and the address if it is one."""
    address = os.environ.get(variable, "").strip()
    if wanted is ServerChoice.ADDRESS or (wanted is ServerChoice.AUTO and address):
        return ServerChoice.ADDRESS, address
    if wanted is ServerChoice.DOCKER or (wanted is ServerChoice.AUTO and engine_answers()):
        return ServerChoice.DOCKER, ""
    return ServerChoice.LOCAL, ""


@cache
def engine_answers() -> bool:
    """Returns whether a Docker engine can be used; asked once per process."""
    # The library leaks a socket if nobody listens on the engine's, so connect to it first. tcp:// and ssh:// are left
    # to the library.
    named = os.environ.get("DOCKER_HOST", "")
    if not named or named.startswith("unix://"):
        usual = ["/var/run/docker.sock", f"{Path.home()}/.docker/run/docker.sock"]
        candidates = [named.removeprefix("unix://")] if named else usual
        if not any(_listens(path) for path in candidates):
            return False
    try:
        import docker  # type: ignore[import-untyped,unused-ignore]

        client = docker.from_env(timeout=PING_TIMEOUT)
    except Exception:  # noqa: BLE001 - no library, no engine or no permission: Docker cannot be used
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


class StackServer(ABC):
    """A server that is started on entering the context."""

    NAME: ClassVar[str]
    VARIABLE: ClassVar[str]
    START_TIMEOUT: ClassVar[float] = START_TIMEOUT

    def __init__(self, choice: ServerChoice, address: str, progress: Progress) -> None:
        self.choice = choice
        self._address = address
        self._progress = progress
        self._process: LocalProcess | None = None
        self._container: RunningContainer | None = None

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
        """Whether it is a process of ours, which can be killed and paused."""
        return self.choice is ServerChoice.LOCAL

    @property
    def process(self) -> LocalProcess:
        """The process of a local server."""
        if self._process is None:
            raise StackError(
                f"{self.NAME} is not local, or not started",
                remedy="start it with choice=ServerChoice.LOCAL to control its process",
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

    def start(self) -> None:
        """Starts it, also again after `stop` or `kill` on the same data and ports. Returns when it is ready."""
        if self.local and self._process is None:
            self.prepare()
            self._create()
            self._start_on_free_ports()
            return
        if self.choice is ServerChoice.ADDRESS:
            self._use_address()
        elif self.choice is ServerChoice.DOCKER:
            if self._container is not None:
                raise StackError(f"{self.NAME} in Docker is already running")
            self._progress(f"starting {self.NAME} in Docker")
            self._container = self._start_container()
        else:
            self._launch()
        self._await_ready()

    def prepare(self) -> None:  # noqa: B027 - most servers have nothing to fetch
        """Fetches what a local server needs into the cache, if it is not there yet."""

    def stop(self) -> None:
        """Shuts it down in order."""
        self.process.stop()

    def kill(self) -> None:
        """Sends SIGKILL; returns when the process and all its children are gone."""
        self.process.kill()

    def pause(self) -> None:
        """Sends SIGSTOP: connections stay open, nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """Sends SIGCONT; returns when it is ready again, which takes a moment after a long pause."""
        self.process.resume()
        self._await_ready()

    def close(self) -> None:
        """Ends it and removes all it wrote. A server named by its address keeps running."""
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._container is not None:
            self._container.close()
            self._container = None

    def detach(self) -> None:
        """Lets it outlive this process; SIGTERM to `process.reaper_pid` ends it."""
        self.process.detach()

    @abstractmethod
    def _create(self) -> None:
        """Sets `_process`, and creates what a new local server needs before it has ports."""

    @abstractmethod
    def _assign_ports(self) -> Sequence[int]:
        """Draws ports, configures them on unused data, and returns those that must be free."""

    @abstractmethod
    def _launch(self) -> None:
        """Starts the process on its data and ports."""

    @abstractmethod
    def _not_ready(self) -> str | None:
        """Sends a request in the server's protocol; returns why it is not ready, or None if it is."""

    def _start_container(self) -> RunningContainer:
        """Starts it in Docker, if it can come from there."""
        raise StackError(f"{self.NAME} does not come from Docker here", remedy=f"set {self.VARIABLE}")

    def _use_address(self) -> None:  # noqa: B027 - most use the address as it is
        """Parses the address."""

    def _start_on_free_ports(self) -> None:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            ports = self._assign_ports()
            self._launch()
            try:
                self._await_ready()
            except StackError:
                if attempt == PORT_ATTEMPTS or self.running or all(map(can_bind, ports)):
                    raise
            else:
                return

    def _await_ready(self) -> None:
        last: str | None = ""

        def ready() -> bool:
            nonlocal last
            if self._process is not None and not self._process.running:
                raise self._process.failure(
                    f"{self.NAME} ended while it was starting (exit code {self._process.exit_code})",
                    remedy="its log names the setting or file that is wrong",
                )
            last = self._not_ready()
            return last is None

        timeout = ADDRESS_TIMEOUT if self.choice is ServerChoice.ADDRESS else self.START_TIMEOUT
        try:
            wait_until(ready, timeout, what=f"an answer from {self.NAME}")
        except StackError as exc:
            exc.why = exc.why or last or ""
            exc.remedy = exc.remedy or f"check that it runs and that {self.VARIABLE} names it"
            raise


class ServerGroup(ABC):
    """Several servers that are started together on entering: either all of them are up, or none is left running."""

    @property
    @abstractmethod
    def servers(self) -> Sequence[StackServer]:
        """All servers of the group."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts all servers at the same time; if one fails, the others are ended."""
        try:
            with ThreadPoolExecutor(len(self.servers)) as pool:
                for started in [pool.submit(server.start) for server in self.servers]:
                    started.result()
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:  # noqa: B027 - independent servers need nothing
        """Makes the started servers know each other."""

    def close(self) -> None:
        """Ends all servers and removes what they wrote, even if ending one of them fails."""
        with ThreadPoolExecutor(len(self.servers)) as pool, ExitStack() as ending:
            for closed in [pool.submit(server.close) for server in self.servers]:
                ending.callback(closed.result)
