"""The connector processes of a drill. They cannot outlive the command: a reaper ends them with it."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.testkit.drill.connector import CUT, Address
from tailrace.testkit.stack.paths import private_file
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.waiting import wait_until

MODULE = ("-m", "tailrace.testkit.drill.connector")
STOP_SECONDS = 60.0
CUT_SECONDS = 30.0
SIGNALS = {"database": signal.SIGUSR1, "kafka": signal.SIGUSR2}


class Instance:
    """One connector process."""

    def __init__(self, job: Path, program: Sequence[str]) -> None:
        self._process = LocalProcess("connector", Path(tempfile.mkdtemp(prefix="tailrace-drill-")))
        self._process.launch([sys.executable, *program, str(job)], os.environ)

    @property
    def running(self) -> bool:
        return self._process.running

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    def events(self, name: str) -> list[dict[str, Any]]:
        """Returns its log lines of an event."""
        text = self._process.log.read_text(encoding="utf-8") if self._process.log.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line.get("event") == name]

    def error_codes(self) -> list[str]:
        """Returns the errors it is waiting for or has ended with."""
        return [str(line["error"]) for name in ("waiting", "failed") for line in self.events(name) if "error" in line]

    def cut(self, link: str) -> int:
        """Makes it close its connections to one of the servers; returns how many there were."""
        before = len(self.events(CUT))
        self.signal(SIGNALS[link])
        found = wait_until(lambda: self.events(CUT)[before:], CUT_SECONDS, what="the cut of the connections")
        return int(found[0]["connections"])

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> int | None:
        self._process.stop(STOP_SECONDS)
        return self.exit_code

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def log_tail(self) -> str:
        return str(self._process.failure("").why)

    def close(self) -> None:
        self._process.close()


def write_job(folder: Path, settings: dict[str, Any], base: Path, kafka: Sequence[Address]) -> Path:
    """Writes what a connector process needs to know; only we may read it."""
    job = {"settings": settings, "folder": str(base), "cwd": str(Path.cwd()), "kafka": list(kafka)}
    return private_file(folder / "job.json", json.dumps(job), None)
