"""A cache whose entries are whole or absent, however many processes fill it and whenever one of them dies.

An entry is a folder. It is filled under a temporary name, under a lock, and renamed into place when complete;
the rename is the moment it exists. A filler that dies leaves a temporary folder, which the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Progress = Callable[[str], None]


def quiet(_message: str) -> None:
    """The progress callback of those who do not want to hear."""


def cached_folder(parent: Path, name: str, fill: Callable[[Path], None], progress: Progress = quiet) -> Path:
    """The folder `parent/name`; where it is absent, `fill` makes its contents first."""
    final = parent / name
    if final.is_dir():
        return final
    with _locked(parent / f"{name}.lock", progress):
        if final.is_dir():
            return final
        for leftover in parent.glob(f".{name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        growing = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=parent))
        try:
            fill(growing)
            growing.rename(final)
        except BaseException:
            shutil.rmtree(growing, ignore_errors=True)
            raise
    return final


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is preparing the same servers")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Closing releases the lock; the file stays, since removing it would let two holders lock two files.
        os.close(descriptor)
