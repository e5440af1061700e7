"""Tables and sets in temporary files."""

from __future__ import annotations

import sqlite3

import pytest

from tailrace.errors import SourceError
from tailrace.temporary_table import DiskSet, TemporaryTable


def no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(f"no room: {error}", remedy="Make room.")


def test_the_first_row_of_a_key_is_kept() -> None:
    table = TemporaryTable("name TEXT PRIMARY KEY, number INTEGER", no_room)
    table.add([("a", 1), ("b", 2)])
    table.add([("a", 3)])
    assert table.select("SELECT name, number FROM rows ORDER BY name") == [("a", 1), ("b", 2)]
    assert table.select("SELECT number FROM rows WHERE name = ?", "b") == [(2,)]
    table.close()


def test_a_set_contains_what_was_added() -> None:
    names = DiskSet(no_room)
    assert b"a" not in names
    names.add(name for name in (b"a", b"a", b"\xff"))
    assert (b"a" in names, b"\xff" in names, b"b" in names) == (True, True, False)
    names.close()


def test_a_file_that_cannot_be_used_raises_the_given_error() -> None:
    table = TemporaryTable("name TEXT PRIMARY KEY", no_room)
    table.close()
    with pytest.raises(SourceError, match="no room"):
        table.add([("a",)])
    with pytest.raises(SourceError, match="no room"):
        table.select("SELECT name FROM rows")
