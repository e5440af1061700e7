"""Finds the oldest supported Python for `make test-oldest`, or unpacks Debian 12's own, and prints its path.

Python 3.11.0 to 3.11.4 have bugs that later ones do not, among them possessive quantifiers in `re`. Debian 12 ships
3.11.2. Without root, its packages are downloaded by `apt-get` and unpacked into the cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tailrace.testkit.stack.paths import cache_dir, cached_folder

FIRST, LAST = (3, 11, 0), (3, 11, 4)
PACKAGES = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")


def candidates() -> list[Path]:
    """Yields interpreters that may be old enough; only the one in OLDEST_PYTHON if that is set."""
    if named := os.environ.get("OLDEST_PYTHON"):
        return [Path(named)]
    on_path = [Path(found) for name in ("python3.11", "python3") if (found := shutil.which(name))]
    return [*Path("/usr/bin").glob("python3*"), *Path.home().glob(".pyenv/versions/3.11.*/bin/python"), *on_path]


def version(python: Path) -> tuple[int, ...]:
    """Returns the version of an interpreter; empty if the file is not one."""
    show = "import sys, zlib, ssl; print(*sys.version_info[:3])"
    try:
        shown = subprocess.run([python, "-I", "-c", show], capture_output=True, text=True, timeout=60, check=True)
        return tuple(map(int, shown.stdout.split()))
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


def unpack(folder: Path) -> None:
    """Downloads Debian's packages of Python 3.11 and unpacks them; needs no root."""
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True, stdout=sys.stderr)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
        package.unlink()


def find() -> Path | None:
    """Returns the oldest interpreter in the range, unpacked from Debian's packages if there is none."""
    found = sorted((version(python), str(python)) for python in candidates())
    for number, python in found:
        if FIRST <= number <= LAST:
            return Path(python)
    if "OLDEST_PYTHON" in os.environ or shutil.which("apt-get") is None:
        return None
    unpacked = cached_folder(cache_dir(), "debian-python-3.11", unpack) / "usr/bin/python3.11"
    return unpacked if FIRST <= version(unpacked) <= LAST else None


if __name__ == "__main__":
    python = find()
    if python is None:
        sys.exit(
            "no Python 3.11.0 to 3.11.4 found, and Debian 12's package of it is not available here.\n"
            "Install one, and name it: make test-oldest OLDEST_PYTHON=/path/to/python3.11"
        )
    sys.stdout.write(f"{python}\n")
