"""Tables in temporary files, for more rows than fit in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

from tailrace.errors import TailraceError

Failed = Callable[[sqlite3.Error], TailraceError]
"""Returns the error to raise when the file cannot be written or read."""


class TemporaryTable:
    """A SQLite table `rows` in an unnamed temporary file, which disappears on `close`."""

    def __init__(self, columns: str, failed: Failed, *, cache_kbytes: int = 2000) -> None:
        """`columns` are those of CREATE TABLE, with a primary key."""
        self._failed = failed
        self._file = sqlite3.connect("", check_same_thread=False)  # an empty name: a temporary file
        self._file.execute(f"PRAGMA cache_size = -{cache_kbytes}")
        self._file.execute(f"CREATE TABLE rows ({columns}) WITHOUT ROWID")
        marks = ", ".join("?" for _ in self._file.execute("PRAGMA table_info(rows)").fetchall())
        self._insert = f"INSERT OR IGNORE INTO rows VALUES ({marks})"  # noqa: S608 - question marks

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Adds rows; of rows with the same key it keeps the first."""
        try:
            self._file.executemany(self._insert, rows)
        except sqlite3.Error as error:
            raise self._failed(error) from None

    def select(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        try:
            return self._file.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from None

    def close(self) -> None:
        self._file.close()


class DiskSet:
    """A set of bytes in a temporary file."""

    def __init__(self, failed: Failed) -> None:
        self._table = TemporaryTable("name BLOB PRIMARY KEY", failed)
        self._filled = False

    def add(self, names: Iterable[bytes]) -> None:
        self._table.add((name,) for name in names)
        self._filled = True

    def __contains__(self, name: bytes) -> bool:
        return self._filled and bool(self._table.select("SELECT 1 FROM rows WHERE name = ?", name))

    def close(self) -> None:
        self._table.close()
