"""The rows of an archive as a source: in the order of its files, from any row on, none if a file is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.s3_server import serve
from tailrace.archive.files import FileWriter
from tailrace.archive.format import ArchivedRow, FileSchema
from tailrace.archive.object_store import ObjectStore
from tailrace.archive.repository import ArchiveRepository
from tailrace.archive.source import ArchiveSource
from tailrace.errors import ArchiveBusy, ArchiveDamaged, ArchiveError, ConfigError, LayoutMismatch, WrongLog
from tailrace.event import Column, Columns, Row
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.base import from_stored, to_stored

COLUMNS = (Column("id", 25),)
SIZES = (3, 2, 4)
NAMES = [f"{file}.{row}" for file, size in enumerate(SIZES, 1) for row in range(1, size + 1)]


def repository_in(
    folder: Path, table: str = "public.outbox", parts: tuple[tuple[str, str], ...] = ()
) -> ArchiveRepository:
    (folder / "cold").mkdir(exist_ok=True)
    return ArchiveRepository(ObjectStore(f"file://{folder}/cold", {}, "orders"), "orders", table, parts)


def add(repository: ArchiveRepository, folder: Path, names: list[str], at_ms: int, *, position: str = "") -> None:
    shape = FileSchema("orders", "public.outbox", COLUMNS)
    writer = FileWriter(folder / "rows.parquet", shape)
    for name in names:
        writer.add(ArchivedRow((name.encode(),), position, at_ms, at_ms), (name,))
    repository.add(writer.finish(), shape, ("id",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    repository = repository_in(tmp_path)
    for number, size in enumerate(SIZES, 1):
        add(repository, tmp_path, [f"{number}.{row + 1}" for row in range(size)], number * 1000)
    return tmp_path


def opened(
    folder: Path,
    stored: ArchivePosition,
    *,
    last: int = 3,
    within: tuple[int | None, int | None] = (None, None),
    parts: tuple[tuple[str, str], ...] = (),
) -> ArchiveSource:
    def row(columns: Columns, kept: ArchivedRow, position: str) -> Row:
        return Row(columns, kept.values, position, kept.committed_ms)

    end = ArchivePosition("orders public.outbox", last, SIZES[last - 1])
    source = ArchiveSource(lambda: repository_in(folder, parts=parts), row, end=end, within=within)
    source.open(stored, lambda _: None)
    return source


def read(source: ArchiveSource, limit: int = 100) -> tuple[list[str], list[ArchivePosition]]:
    names: list[str] = []
    positions: list[ArchivePosition] = []
    while True:
        chunk = source.read(limit, 1 << 20, 0)
        assert isinstance(chunk.position, ArchivePosition)
        positions.append(chunk.position)
        if not chunk.rows:
            source.close()
            return names, positions
        assert len({id(row.columns) for row in chunk.rows}) == 1
        names += [(row.values[0] or b"").decode() for row in chunk.rows]


START = ArchivePosition("orders public.outbox")


def test_reading_from_every_row(folder: Path) -> None:
    names, positions = read(opened(folder, START), limit=1)
    assert names == NAMES
    assert [position.progress for position in positions] == sorted(position.progress for position in positions)
    for passed, position in enumerate(positions[:-1], 1):
        stored = from_stored(to_stored(position))
        assert stored == position
        assert isinstance(stored, ArchivePosition)
        assert (stored.rows, read(opened(folder, stored))[0]) == (passed, NAMES[passed:])


def test_up_to_an_end_and_within_a_time(folder: Path) -> None:
    assert read(opened(folder, START, last=2))[0] == NAMES[:5]
    assert read(opened(folder, START, within=(1500, 3000)))[0] == NAMES[3:5]
    # A file that is not needed is not read.
    next((folder / "cold" / "orders" / "rows").glob("00000001-*")).unlink()
    assert read(opened(folder, START, within=(1500, None)))[0] == NAMES[3:]


def test_nothing_is_read_from_a_damaged_archive(folder: Path) -> None:
    last = next((folder / "cold" / "orders" / "rows").glob("00000003-*"))
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    with pytest.raises(ArchiveDamaged, match="not what was written"):
        opened(folder, START)
    assert read(opened(folder, START, last=2))[0] == NAMES[:5]
    last.unlink()
    with pytest.raises(ArchiveDamaged, match="no such object"):
        opened(folder, START)


def test_a_file_with_other_column_names_is_refused(folder: Path) -> None:
    """The file lacks a column, not the table: it is named, and none of its rows is returned."""
    assert read(opened(folder, START, parts=(("id", "id"),)))[0] == NAMES
    with pytest.raises(LayoutMismatch, match=r"rows/00000001-\w+\.parquet has no column 'event_id'") as caught:
        opened(folder, START, parts=(("id", "event_id"),))
    assert "outbox.columns" in caught.value.remedy
    assert "to the table" not in caught.value.remedy


@pytest.mark.parametrize("number", [1, 3])
def test_missing_entries_at_either_end_are_noticed(folder: Path, number: int) -> None:
    """Missing ends leave no gap; the plan names its first and its last file."""
    (folder / "cold" / "orders" / "manifest" / f"{number:08}.json").unlink()
    with pytest.raises(ArchiveDamaged, match=f"no longer lists file {number}"):
        opened(folder, ArchivePosition("orders public.outbox", 1))
    assert read(opened(folder, ArchivePosition("orders public.outbox", 2), last=2))[0] == NAMES[3:5]


def test_an_archive_of_another_outbox_is_refused(folder: Path) -> None:
    with pytest.raises(WrongLog, match="other"):
        opened(folder, ArchivePosition("other public.outbox"))
    with pytest.raises(ConfigError, match=r"reads public\.other"):
        repository_in(folder, "public.other")


def test_positions_of_an_archive_cover_rows() -> None:
    """Every wanted row is behind the start and before the end."""
    beginning, end = ArchivePosition("orders public.outbox", 4), ArchivePosition("orders public.outbox", 6, 2)
    assert (beginning.covers("0/1A:2"), end.covers("0/1A:2")) == (False, True)
    assert str(beginning) == "the beginning of file 4 of the archive"


def test_known_and_unknown_original_positions(folder: Path) -> None:
    add(repository_in(folder), folder, ["known"], 9000, position="0/1A:2")
    # It is behind the end of a plan that was made before.
    assert read(opened(folder, ArchivePosition("orders public.outbox", 3, 4)))[0] == []
    source = opened(folder, START)
    assert [row.position for row in source.read(10, 1 << 20, 0).rows] == ["table:1.1", "table:1.2", "table:1.3"]
    source.close()


def test_the_second_of_two_archivers_lists_nothing(folder: Path) -> None:
    first, second = repository_in(folder), repository_in(folder)
    add(first, folder, ["a"], 1)
    with pytest.raises(ArchiveBusy):
        add(second, folder, ["a"], 1)
    found = repository_in(folder)
    assert [entry.rows for entry in found.entries] == [*SIZES, 1]
    assert found.orphans == []
    assert [flaw for _, flaw in found.flaws()] == ["", "", "", ""]


def test_a_store_that_overwrites_is_refused(tmp_path: Path) -> None:
    with serve() as bucket:
        bucket.exclusive = False
        settings: Any = bucket.settings
        options = {name: str(value) for name, value in settings["options"].items()}
        repository = ArchiveRepository(ObjectStore(settings["url"], options, "orders"), "orders", "public.outbox")
        with pytest.raises(ArchiveError, match="allows to overwrite"):
            add(repository, tmp_path, ["a"], 1)
        assert not [name for name in bucket.objects if "/manifest/" in name]
