"""Where things live and who may read them: caches, state, run directories, and the user that servers run as.

Postgres refuses to run as root. When we are root it runs as an unprivileged user, and then everything it
reads must be reachable for that user: a folder below root's home is not, however open the folder itself is.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tailrace.testkit.stack.errors import StackError

NOBODY = 65534
SHARED_CACHE = Path("/var/cache/tailrace")


@dataclass(frozen=True)
class User:
    """A user to hand a process to."""

    uid: int
    gid: int


def unprivileged() -> User | None:
    """The user that servers must run as, or None when they can run as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return User(NOBODY, NOBODY)
    return User(entry.pw_uid, entry.pw_gid)


def reachable(path: Path, user: User | None) -> bool:
    """Whether `user` can walk to `path` and read it, judged by the mode bits of every folder on the way."""
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
    """The per-user cache, made if need be."""
    return _made(_xdg("XDG_CACHE_HOME", ".cache"), "XDG_CACHE_HOME")


def state_dir() -> Path:
    """The per-user state folder (what is running now), made if need be."""
    return _made(_xdg("XDG_STATE_HOME", ".local/state"), "XDG_STATE_HOME")


def shared_cache_dir(user: User | None) -> Path:
    """A cache that `user` can read: the per-user one when it is open to them, else the system's."""
    own = cache_dir()
    if reachable(own, user):
        return own
    return _made(SHARED_CACHE, "XDG_CACHE_HOME", mode=0o755)


def new_run_dir(name: str, user: User | None) -> Path:
    """A private folder for one server; others may pass through it only where a server's user has to."""
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
    """A folder only the server's user can read."""
    path.mkdir(mode=0o700)
    if user is not None:
        os.chown(path, user.uid, user.gid)
    return path


def private_file(path: Path, text: str, user: User | None) -> Path:
    """Write a file that only the server's user (and root) can read, at no moment anyone else."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if user is not None:
            os.fchown(descriptor, user.uid, user.gid)
        file.write(text)
    return path


def _xdg(variable: str, default: str) -> Path:
    named = os.environ.get(variable, "")
    # The specification says that a relative path there is to be ignored.
    base = Path(named) if named.startswith("/") else Path.home() / default
    return base / "tailrace"


def _made(folder: Path, variable: str, mode: int = 0o700) -> Path:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as exc:
        raise StackError(
            f"cannot make the folder {folder}: {exc.strerror}",
            remedy=f"set {variable} to a folder you can write to",
        ) from exc
    return folder
