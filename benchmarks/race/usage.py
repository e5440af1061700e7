"""CPU time and peak memory of processes, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def cpu_of(stat: str) -> float:
    """Returns the seconds of CPU that a /proc/PID/stat names: user and system."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def peak_of(status: str) -> float:
    """Returns the highest resident memory in MB that a /proc/PID/status names."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ValueError("there is no VmHWM")


def cpu_seconds(pids: Iterable[int]) -> float:
    return sum(cpu_of(Path(f"/proc/{pid}/stat").read_text()) for pid in pids)


def peak_mb(pids: Iterable[int]) -> float:
    """Returns the sum of the peaks of these processes."""
    return sum(peak_of(Path(f"/proc/{pid}/status").read_text()) for pid in pids)
