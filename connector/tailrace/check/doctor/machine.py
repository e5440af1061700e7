"""Reads what this machine gives a worker: memory, open files and disk space."""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tailrace.check.doctor.worker_rules import DiskFacts, MachineFacts

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def read_machine(folders: Mapping[Path, str], pipelines: int, running: int = 0) -> MachineFacts:
    """`folders` maps folders to what they are for."""
    # A worker raises the soft limit to the hard one.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    disks: dict[int, DiskFacts] = {}
    for folder, purpose in {**folders, Path(tempfile.gettempdir()): "temporary files"}.items():
        try:
            device, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        except OSError:
            continue
        disks.setdefault(device, DiskFacts(str(folder), purpose, usage.free, usage.total))
    return MachineFacts(files, available_memory(), tuple(disks.values()), pipelines, running)


def available_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """Returns the bytes that processes may still take: of the machine, or of the container if that is less."""
    found = []
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    try:
        most = (cgroup / "memory.max").read_text().strip()
        if most != "max":
            found.append(max(0, int(most) - int((cgroup / "memory.current").read_text())))
    except (OSError, ValueError):
        pass
    return min(found, default=None)
