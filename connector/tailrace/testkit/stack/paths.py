"""Folders of the stack: caches, state, run directories; and the user that servers run as.

Postgres refuses to run as root. If we are root, it runs as an unprivileged user, who must be able to reach everything
it reads: a folder below root's home is out of reach, even if its own mode bits allow access.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace.testkit.stack.waiting import StackError

NOBODY = 65534
SHARED_CACHE = Path("/var/cache/tailrace")

Progress = Callable[[str], None]


def quiet(_message: str) -> None:
    """A progress callback that shows nothing."""


@dataclass(frozen=True)
class User:
    """The user id and group id of a server process."""

    uid: int
    gid: int


def unprivileged() -> User | None:
    """Returns the user that servers must run as, or None if they can run as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return User(NOBODY, NOBODY)
    return User(entry.pw_uid, entry.pw_gid)


def reachable(path: Path, user: User | None) -> bool:
    """Returns whether `user` can read `path`, according to the mode bits of all its parent folders."""
    if user is None:
        return os.access(path, os.R_OK | os.X_OK)
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        info = folder.stat()
        if info.st_uid == user.uid:
            wanted = stat.S_IXUSR
        elif info.st_gid == user.gid:
            wanted = stat.S_IXGRP
        else:
            wanted = stat.S_IXOTH
        if not info.st_mode & wanted:
            return False
    return True


def cache_dir() -> Path:
    """Returns the user's cache folder, created if missing."""
    return _created(_xdg("XDG_CACHE_HOME", ".cache"), "XDG_CACHE_HOME")


def state_dir() -> Path:
    """Returns the user's state folder (which servers run now), created if missing."""
    return _created(_xdg("XDG_STATE_HOME", ".local/state"), "XDG_STATE_HOME")


def shared_cache_dir(user: User | None) -> Path:
    """Returns a cache folder that `user` can read: ours if it is open to them, otherwise the system's."""
    own = cache_dir()
    if reachable(own, user):
        return own
    return _created(SHARED_CACHE, "XDG_CACHE_HOME", mode=0o755)


def cached_folder(parent: Path, name: str, fill: Callable[[Path], None], progress: Progress = quiet) -> Path:
    """Returns the folder `parent/name`; if it is missing, `fill` creates its contents first.

    The folder is complete or absent, however many processes fill it and whenever one of them dies: it is filled under
    a temporary name and a lock, then renamed. The next process removes the temporary folder of one that died.
    """
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
        # Closing releases the lock. The file stays: if it were removed, two processes could lock two files.
        os.close(descriptor)


def new_run_dir(name: str, user: User | None) -> Path:
    """Creates a private folder for one server, which `user` can pass through if there is one."""
    run_dir = Path(tempfile.mkdtemp(prefix=f"tailrace-{name}-")).resolve()
    if user is not None:
        run_dir.chmod(0o711)
        if not reachable(run_dir, user):
            run_dir.rmdir()
            raise StackError(
                f"the temporary folder {run_dir.parent} is closed to the user that servers run as",
                remedy="set TMPDIR to a folder that every user may enter",
            )
    return run_dir


def new_folder(path: Path, user: User | None) -> Path:
    """Creates a folder that only the server's user can read."""
    path.mkdir(mode=0o700)
    if user is not None:
        os.chown(path, user.uid, user.gid)
    return path


def private_file(path: Path, text: str, user: User | None) -> Path:
    """Writes a file that only the server's user (and root) can read at any moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if user is not None:
            os.fchown(descriptor, user.uid, user.gid)
        file.write(text)
    return path


def _xdg(variable: str, default: str) -> Path:
    named = os.environ.get(variable, "")
    # The XDG specification says to ignore a relative path.
    base = Path(named) if named.startswith("/") else Path.home() / default
    return base / "tailrace"


def _created(folder: Path, variable: str, mode: int = 0o700) -> Path:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as exc:
        raise StackError(
            f"cannot create the folder {folder}: {exc.strerror}",
            remedy=f"set {variable} to a folder you can write to",
        ) from exc
    return folder
