"""Processes of the demo: `tailrace` commands as a user runs them, started, killed and restarted under a reaper."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tailrace.testkit.stack import StackError
from tailrace.testkit.stack.process import LocalProcess

STOP_TIMEOUT = 30.0
STARTING = ("starting", "restarting")


class Downtime(NamedTuple):
    """The times of a kill and of the connector running again, in Unix milliseconds."""

    killed_ms: float
    running_ms: float

    @property
    def millis(self) -> float:
        return self.running_ms - self.killed_ms


class TailraceProcess:
    """A `tailrace` command that can be launched again and again; its log is in `folder`. It cannot outlive the demo."""

    def __init__(
        self,
        name: str,
        folder: Path,
        arguments: Sequence[str],
        *,
        ready_event: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`ready_event` is the event it logs when it has started."""
        self.name = name
        self._arguments = arguments
        self._environment = environment or {}
        self._ready_event = f'"event": "{ready_event}"'.encode()
        self._process = LocalProcess(name, folder, stop_signal=signal.SIGTERM)
        self._log_start = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Launches it; `ready` says when it has started."""
        log = self._process.log
        self._log_start = log.stat().st_size if log.exists() else 0
        # Settings from the user's environment must not change those of the demo.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        self._process.launch(
            [sys.executable, "-m", "tailrace", *self._arguments, "--log-json"], {**inherited, **self._environment}
        )

    @property
    def ready(self) -> bool:
        """Whether it has started since the last launch; raises StackError if it has ended."""
        if not self._process.running:
            raise self.failure(f"the process of {self.name} ended by itself ({self._process.exit_code})")
        with self._process.log.open("rb") as log:
            log.seek(self._log_start)
            return self._ready_event in log.read()

    def kill(self) -> None:
        """Sends SIGKILL: no clean-up, as in a power failure."""
        self._process.kill()

    def stop(self) -> None:
        self._process.stop(STOP_TIMEOUT)

    def failure(self, what: str) -> StackError:
        """Returns an error with the end of its log."""
        return self._process.failure(what)

    def close(self) -> None:
        """Ends it and removes the folder."""
        self._process.close()


class Connector(TailraceProcess):
    """`tailrace run` of one pipeline file; its log is in the folder of the file."""

    def __init__(self, file: Path) -> None:
        super().__init__(file.stem, file.parent, ["run", str(file)], ready_event="running")
        self.file = file


class DemoProcess:
    """A process of the scenario. `state` is absent, starting, running, restarting or stopped."""

    def __init__(self, name: str, process: TailraceProcess, task: str) -> None:
        """The display shows `name` and `task`."""
        self.name = name
        self.process = process
        self.task = task
        self.state = "absent"
        self.downtimes: list[Downtime] = []
        self._killed_ms = 0.0

    def start(self) -> None:
        self.process.start()
        self.state = "restarting" if self._killed_ms else "starting"

    def kill(self) -> int:
        """Kills it with SIGKILL; returns its former pid."""
        pid = self.process.pid
        self._killed_ms = time.time() * 1000
        self.process.kill()
        self.state = "restarting"
        return pid

    def stop(self) -> None:
        self.state = "stopped"
        self.process.stop()

    def has_just_started(self) -> bool:
        """Returns True once after each start, when the process is ready; from then on it must keep running."""
        if self.state not in STARTING or not self.process.ready:
            return False
        if self.state == "restarting":
            self.downtimes.append(Downtime(self._killed_ms, time.time() * 1000))
        self.state = "running"
        return True

    def is_running(self) -> bool:
        return self.state == "running"

    def require_health(self) -> None:
        """Raises an error if the process should be running and is not."""
        if self.state == "running" and not self.process.ready:
            raise self.failure(f"{self.name} is not running")

    def failure(self, what: str) -> StackError:
        """Returns an error with the end of its log."""
        return self.process.failure(what)
