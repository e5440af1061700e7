"""Names by the million, in a temporary file: memory stays flat."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from tailrace.errors import ArchiveError


class DiskSet:
    """A set; `close` forgets it."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", check_same_thread=False)  # an empty name: a temporary file, gone with us
        self._file.execute("CREATE TABLE names (name BLOB PRIMARY KEY) WITHOUT ROWID")
        self._some = False

    def add(self, names: Iterable[bytes]) -> None:
        try:
            self._file.executemany("INSERT OR IGNORE INTO names VALUES (?)", ((name,) for name in names))
        except sqlite3.Error as error:
            raise ArchiveError(
                f"names of rows cannot be kept in a temporary file: {error}",
                remedy="See that the folder for temporary files (TMPDIR) has room, then run it again.",
            ) from None
        self._some = True

    def __contains__(self, name: bytes) -> bool:
        found = self._some and self._file.execute("SELECT 1 FROM names WHERE name = ?", (name,)).fetchone()
        return bool(found)

    def close(self) -> None:
        self._file.close()
