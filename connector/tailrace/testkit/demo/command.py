"""A `tailrace` command as a user would run it, under a guardian: it cannot outlive the demo."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.testkit.stack import StackError
from tailrace.testkit.stack.process import LocalProcess

STOP_TIMEOUT = 15.0


class TailraceProcess:
    """One process, launched again and again; its log stands in `folder`."""

    def __init__(
        self,
        name: str,
        folder: Path,
        arguments: Sequence[str],
        *,
        working: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`working` is what it logs once it works."""
        self.name = name
        self._arguments = arguments
        self._environment = environment or {}
        self._working = f'"event": "{working}"'.encode()
        self._process = LocalProcess(name, folder, stop_signal=signal.SIGTERM)
        self._heard = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Launches it; it works once `ready` says so."""
        log = self._process.log
        self._heard = log.stat().st_size if log.exists() else 0
        # Settings may come from the environment, too; here only the demo is to speak.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        self._process.launch(
            [sys.executable, "-m", "tailrace", *self._arguments, "--log-json"], {**inherited, **self._environment}
        )

    @property
    def ready(self) -> bool:
        """Whether it works, as launched last; an error if it ended."""
        if not self._process.running:
            raise self.failure(f"the process of {self.name} ended by itself ({self._process.exit_code})")
        with self._process.log.open("rb") as log:
            log.seek(self._heard)
            return self._working in log.read()

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
