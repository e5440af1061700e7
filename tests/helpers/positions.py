"""Where tests and their servers write: to memory, where there is plenty of it.

Servers of tests make and delete hundreds of thousands of files, which costs a disk's file system more of the processor
than the servers take themselves. Nothing of it has to survive a power cut. It is up to 6 GB at a time; with less memory
to spare, or if TMPDIR says where to write, everything goes there as usual.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
PLENTY = 12 << 30


def _plenty() -> bool:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MEMORY.is_mount() and min(free, shutil.disk_usage(MEMORY).free) > PLENTY


if "TMPDIR" not in os.environ and _plenty():
    # The first process of the run, whose children inherit it: those that are killed leave things behind. Its name is
    # short: sockets lie below it, and their addresses may have no more than 107 characters.
    _place = Path(tempfile.mkdtemp(prefix="tr-", dir=MEMORY))
    _place.chmod(0o711)  # servers may run as somebody else
    os.environ["TMPDIR"], tempfile.tempdir = str(_place), None
    _owner = os.getpid()
    atexit.register(lambda: os.getpid() == _owner and shutil.rmtree(_place, ignore_errors=True))
