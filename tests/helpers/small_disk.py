"""A disk of limited size (tmpfs) for the data of a server, which tests fill and empty."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.testkit.stack.server import StackServer

BALLAST = "ballast"


class SmallDisk:
    """A mounted folder that holds the data of a stopped server."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / BALLAST
        self._folder = folder

    def fill(self) -> None:
        """Takes all the space that is left."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65536))
            except OSError:
                pass
        assert self.free == 0

    def empty(self) -> None:
        """Gives the space back."""
        self._ballast.unlink()

    @property
    def free(self) -> int:
        return shutil.disk_usage(self._folder).free


@contextmanager
def mounted(folder: Path, megabytes: int, options: str = "") -> Iterator[Path]:
    """Mounts a small disk on an empty folder."""
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m{options}", "tmpfs", str(folder)]
    subprocess.run(command, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def on_a_small_disk(server: StackServer, megabytes: int) -> Iterator[SmallDisk]:
    """Moves the data of a running local server to a small disk, and starts it there."""
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    server.stop()
    folder = server.data_dir
    kept = folder.with_name(f"{folder.name}-kept")
    folder.rename(kept)
    owner = kept.stat()
    folder.mkdir()
    options = f"size={megabytes}m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        for file in kept.iterdir():
            subprocess.run(["cp", "-a", str(file), str(folder)], check=True)
        server.start()
        yield SmallDisk(folder)
    finally:
        if server.running:
            server.stop()
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()
        kept.rename(folder)
