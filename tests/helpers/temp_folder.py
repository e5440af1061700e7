"""Puts the temporary folder of tests and their servers into memory, if there is enough of it.

Servers of tests create and delete hundreds of thousands of files, which costs a disk's file system more processor time
than the servers use. None of them has to survive a power failure. They take up to 6 GB at a time. With less free
memory, or if TMPDIR is set, the usual temporary folder is used.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ENOUGH = 12 << 30


def _enough_memory() -> bool:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MEMORY.is_mount() and min(free, shutil.disk_usage(MEMORY).free) > ENOUGH


if "TMPDIR" not in os.environ and _enough_memory():
    # Set by the first process of the run and inherited by its children. The name is short, because the address of a
    # socket in it may have at most 107 characters.
    _folder = Path(tempfile.mkdtemp(prefix="tr-", dir=MEMORY))
    _folder.chmod(0o711)  # servers may run as another user
    os.environ["TMPDIR"], tempfile.tempdir = str(_folder), None
    _owner = os.getpid()
    atexit.register(lambda: os.getpid() == _owner and shutil.rmtree(_folder, ignore_errors=True))
