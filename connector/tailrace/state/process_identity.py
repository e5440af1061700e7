"""Identifies a process, so that another one on the same machine can be certain that it has ended.

A pid names a process only within one boot and one pid namespace, and is reused; the identity includes all of it.
Nothing is known about a process on another machine.
"""

from __future__ import annotations

import os
from pathlib import Path

UNKNOWN = ""
_ENDED = frozenset("ZXx")
"""States of a process that has ended but was not waited for yet."""


def this_process() -> str:
    """The identity of this process; UNKNOWN where the system has no /proc."""
    found = _stat(os.getpid())
    kernel = _kernel()
    return f"{kernel} {os.getpid()} {found[1]}" if kernel and found else UNKNOWN


def has_ended(identity: str) -> bool:
    """Whether that process is known to have ended. False if it runs, or if that cannot be seen from here."""
    kernel, _, rest = identity.partition(" ")
    pid, _, started = rest.partition(" ")
    if not started or not pid.isdigit() or kernel != _kernel():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it belongs to another user
    found = _stat(int(pid))
    return found is not None and (found[1] != started or found[0] in _ENDED)


def _kernel() -> str:
    """Which boot of which machine, and which pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return UNKNOWN


def _stat(pid: int) -> tuple[str, str] | None:
    """The state of a process and its start time in ticks since boot; None if that cannot be read."""
    try:
        # The name, in parentheses, may contain anything.
        parts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return parts[0], parts[19]
    except (OSError, IndexError):
        return None
