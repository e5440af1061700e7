"""A connector as a user would run it, `tailrace run orders.yaml`, under a guardian: it cannot outlive the demo."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tailrace.stack import StackError
from tailrace.stack.process import LocalProcess

STOP_TIMEOUT = 15.0


class Connector:
    """The process of one pipeline, launched again and again; its log stands beside its file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._process = LocalProcess(file.stem, file.parent, stop_signal=signal.SIGTERM)
        self._heard = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Launches it; it works once `ready` says so."""
        log = self._process.log
        self._heard = log.stat().st_size if log.exists() else 0
        # Settings may come from the environment, too; here only the file is to speak.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        self._process.launch([sys.executable, "-m", "tailrace", "run", str(self.file), "--log-json"], environment)

    @property
    def ready(self) -> bool:
        """Whether it follows the log, as launched last; an error if it ended."""
        if not self._process.running:
            raise self.failure(f"the connector of {self.file.stem} ended by itself ({self._process.exit_code})")
        with self._process.log.open("rb") as log:
            log.seek(self._heard)
            return b'"event": "running"' in log.read()

    def kill(self) -> None:
        """SIGKILL: no last word, no clean-up, as if the machine had lost power."""
        self._process.kill()

    def stop(self) -> None:
        self._process.stop(STOP_TIMEOUT)

    def failure(self, what: str) -> StackError:
        """An error with its last words."""
        return self._process.failure(what)

    def close(self) -> None:
        """Ends it. The folder goes, too."""
        self._process.close()
