"""The task of a measured worker, passed through the environment, and its result, written to a file.

The clock runs from the first event that the worker receives to the last one that is applied: starting and joining the
group are not included, nor is their CPU time.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "TAILRACE_BENCH_TASK"


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure. `store` is the projection's database: a connection string, or the address of a replica set."""

    way: str
    name: str
    bootstrap: str
    topic: str
    events: int
    store: str
    file: str

    def environ(self) -> dict[str, str]:
        return {**os.environ, VARIABLE: json.dumps(asdict(self))}


@dataclass(frozen=True, slots=True)
class Taken:
    """What it took. `peak_mb` is the peak resident memory; `anon_mb` is the anonymous memory at the end."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    anon_mb: float


def task() -> Task:
    return Task(**json.loads(os.environ[VARIABLE]))


class Stopwatch:
    """Measures a task and writes its result file when it is stopped."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)
        self._began = self._cpu = 0.0
        self.running = False

    def start(self) -> None:
        self.running = True
        self._began, self._cpu = time.monotonic(), time.process_time()

    def stop(self) -> None:
        seconds, cpu = time.monotonic() - self._began, time.process_time() - self._cpu
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        peak, anon = (int(status[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon"))
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(asdict(Taken(seconds, cpu, peak, anon))))
        part.rename(self._file)


def taken(file: Path) -> Taken:
    return Taken(**json.loads(file.read_text()))
