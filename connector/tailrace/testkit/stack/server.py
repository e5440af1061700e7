"""`Server`: the life of one server, whichever it is and wherever it comes from.

Start, answer, die, come back: that is the same for all of them. What differs is said by the subclass: how a new
one is made (`_create`), which ports it draws (`_settle`), how it is launched, and what counts as an answer.

On a first start the ports are ours only once the server has bound them: somebody else may have been quicker. So a
server that ended while one of its ports is taken is tried again with others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from tailrace.testkit.stack.cache import Progress
from tailrace.testkit.stack.containers import RunningContainer
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.ports import can_bind
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server_choice import ServerChoice
from tailrace.testkit.stack.waiting import wait_until

START_TIMEOUT = 60.0  # recovery after kill -9 of a busy server takes seconds; a machine under load, more
ADDRESS_TIMEOUT = 5.0  # a server that somebody named runs already
PORT_ATTEMPTS = 5


class StackServer(ABC):
    """A server from `source`; started on entering."""

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
        """Whether it is a process of ours, to be killed and paused at will."""
        return self.choice is ServerChoice.LOCAL

    @property
    def process(self) -> LocalProcess:
        """The process behind a local server."""
        if self._process is None:
            raise StackError(
                f"{self.NAME} is not a local one, or not started",
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

    def start(self) -> None:
        """Start, or start again after `stop` or `kill`: same data, same ports. Returns when it answers."""
        if self.local and self._process is None:
            self.prepare()
            self._create()
            self._start_somewhere()
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
        self._await_answer()

    def prepare(self) -> None:  # noqa: B027 - most have nothing to fetch
        """Fetch what a local server needs into the cache; at once where that is done, and nothing to do elsewhere."""

    def stop(self) -> None:
        """An orderly shutdown."""
        self.process.stop()

    def kill(self) -> None:
        """kill -9; returns when the process and all its children are gone."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """SIGCONT; returns when it answers again, which takes a broker that slept for long a moment."""
        self.process.resume()
        self._await_answer()

    def close(self) -> None:
        """End it and remove all it wrote. A server named by its address is left alone."""
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._container is not None:
            self._container.close()
            self._container = None

    def detach(self) -> None:
        """Let it live on when this process ends; `process.reaper_pid` is then who to ask to end it."""
        self.process.detach()

    @abstractmethod
    def _create(self) -> None:
        """Set `_process`, and make what a new local server needs before it has ports."""

    @abstractmethod
    def _settle(self) -> Sequence[int]:
        """Draw ports and write them down, over data as good as new; the ports that must be free."""

    @abstractmethod
    def _launch(self) -> None:
        """Start the process on the data and ports it has."""

    @abstractmethod
    def _silence(self) -> str | None:
        """Ask by its protocol: None when it answers as it should, else why that is no answer yet."""

    def _start_container(self) -> RunningContainer:
        """Start it in Docker, where it comes from there."""
        raise StackError(f"{self.NAME} does not come from Docker here", remedy=f"set {self.VARIABLE}")

    def _use_address(self) -> None:  # noqa: B027 - the address may be used as it is
        """Take in the address that somebody named."""

    def _start_somewhere(self) -> None:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            ports = self._settle()
            self._launch()
            try:
                self._await_answer()
            except StackError:
                if attempt == PORT_ATTEMPTS or self.running or all(map(can_bind, ports)):
                    raise
            else:
                return

    def _await_answer(self) -> None:
        last: str | None = ""

        def answers() -> bool:
            nonlocal last
            if self._process is not None and not self._process.running:
                raise self._process.failure(
                    f"{self.NAME} ended while it was starting (exit code {self._process.exit_code})",
                    remedy="the log says which setting or file it stumbled over",
                )
            last = self._silence()
            return last is None

        timeout = ADDRESS_TIMEOUT if self.choice is ServerChoice.ADDRESS else self.START_TIMEOUT
        try:
            wait_until(answers, timeout, what=f"an answer from {self.NAME}")
        except StackError as exc:
            exc.why = exc.why or last or ""
            exc.remedy = exc.remedy or f"see that it runs and that {self.VARIABLE} names it"
            raise
