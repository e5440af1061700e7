"""Files of an archive return what was written, byte for byte, from any row on; damaged files are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tailrace.archive import files
from tailrace.archive.files import FileReader, FileWriter
from tailrace.archive.format import ArchivedRow, FileSchema, batch_of, columns_of, require_nameable, rows_of
from tailrace.archive.manifest import ManifestEntry, TimeRange
from tailrace.errors import ArchiveDamaged, LayoutMismatch
from tailrace.event import Column

SHAPE = FileSchema("orders", "public.outbox", (Column("id", 2950), Column("raw", 17)), frozenset({"raw"}))
texts = st.none() | st.text().map(lambda text: text.encode("utf-8", "replace"))
times = st.integers(0, 4_000_000_000_000)
kept = st.builds(
    lambda id_, raw, position, committed, created: ArchivedRow((id_, raw), position, committed, created),
    texts, st.none() | st.binary(), st.sampled_from(["", "0/1A:2"]), times, times,
)  # fmt: skip


def entry_of(written: files.WrittenFile) -> ManifestEntry:
    return ManifestEntry(
        1, "rows/1.parquet", "orders", "public.outbox", written.rows, written.bytes, written.sha256, written.created,
        written.committed, ("id",), written.first, written.last, (), 0,
    )  # fmt: skip


@given(st.lists(kept, min_size=1, max_size=20))
def test_rows_come_back_as_they_were(rows: list[ArchivedRow]) -> None:
    batch = batch_of(SHAPE.schema(), rows)
    assert rows_of(batch) == rows
    assert columns_of(batch.schema) == SHAPE.columns


def test_bounded_groups_and_reading_from_any_row_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GROUP_ROWS", 4)
    monkeypatch.setattr(files, "FILE_ROWS", 10)
    writer = FileWriter(tmp_path / "a.parquet", SHAPE)
    rows = [ArchivedRow((b"%d" % number, None), "", 100 - number, 50 + number) for number in range(10)]
    for number, row in enumerate(rows):
        assert not writer.full
        writer.add(row, (str(number),))
    assert writer.full
    written = writer.finish()
    assert (written.rows, written.first, written.last) == (10, ("0",), ("9",))
    assert (written.created, written.committed) == (TimeRange(50, 59), TimeRange(91, 100))
    assert parquet.ParquetFile(written.path).num_row_groups == 3
    assert parquet.ParquetFile(written.path).metadata.row_group(0).column(0).compression == "ZSTD"
    reader = FileReader(written.path, entry_of(written))
    for after in range(11):
        assert [row for group in reader.groups(after) for row in group] == rows[after:]


def test_large_rows_fill_a_file_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_BYTES", 1000)
    writer = FileWriter(tmp_path / "a.parquet", SHAPE)
    writer.add(ArchivedRow((b"a", b"x" * 600), "", 0, 0), ())
    assert not writer.full
    writer.add(ArchivedRow((b"b", b"x" * 600), "", 0, 0), ())
    assert writer.full


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.parquet"
    parquet.write_table(pa.table({"id": ["a"]}), path)
    entry = ManifestEntry(1, "rows/1.parquet", "", "", 1, 0, "", TimeRange(0, 0), TimeRange(0, 0), (), (), (), (), 0)
    with pytest.raises(ArchiveDamaged, match="not written by Tailrace"):
        FileReader(path, entry)
    path.write_bytes(b"no parquet")
    with pytest.raises(ArchiveDamaged, match="cannot be read"):
        FileReader(path, entry)


def test_columns_with_reserved_names_are_refused() -> None:
    require_nameable("public.outbox", ["id", "tailrace_note"])
    with pytest.raises(LayoutMismatch, match="tailrace_position"):
        require_nameable("public.outbox", ["id", "tailrace_position"])
