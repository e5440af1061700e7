"""Writes and reads one Parquet file of an archive.

Rows are written to a local temporary file in groups of bounded size, so memory stays flat. Before the first row of a
file is used, the whole file is fetched and compared with its digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyarrow import parquet

from tailrace.archive.format import ArchivedRow, FileSchema, OrderKey, batch_of, columns_of, rows_of
from tailrace.archive.manifest import ManifestEntry, TimeRange
from tailrace.archive.object_store import ObjectStore
from tailrace.errors import ArchiveDamaged, ArchiveError
from tailrace.event import Columns

GROUP_ROWS, GROUP_BYTES = 10_000, 4 << 20
"""Limits of a row group, which is held in memory."""
FILE_ROWS, FILE_BYTES = 200_000, 128 << 20
"""Limits of a file; bytes before compression."""
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished file. `created` and `committed` are time ranges; `first` and `last` are the sort keys of its
    ends.
    """

    path: Path
    rows: int
    bytes: int
    sha256: str
    created: TimeRange
    committed: TimeRange
    first: OrderKey
    last: OrderKey


class FileWriter:
    """Writes one file; `full` is true when the next one should be started."""

    def __init__(self, path: Path, shape: FileSchema) -> None:
        self._path = path
        self._schema = shape.schema()
        with translated_disk_errors():
            self._out = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._group: list[ArchivedRow] = []
        self._group_bytes = self._bytes = self.rows = 0
        self._created: list[int] = []
        self._committed: list[int] = []
        self._first: OrderKey | None = None
        self._last: OrderKey = ()

    @property
    def full(self) -> bool:
        return self.rows >= FILE_ROWS or self._bytes >= FILE_BYTES

    def add(self, row: ArchivedRow, order: OrderKey) -> None:
        self._group.append(row)
        size = sum(len(value) for value in row.values if value)
        self._group_bytes += size
        self._bytes += size
        self.rows += 1
        self._created = extended(self._created, row.created_ms)
        self._committed = extended(self._committed, row.committed_ms)
        self._first, self._last = order if self._first is None else self._first, order
        if len(self._group) >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._flush()

    def finish(self) -> WrittenFile:
        """Completes the file, which must have rows."""
        self._flush()
        with translated_disk_errors():
            self._out.close()
        size, digest = 0, hashlib.sha256()
        with self._path.open("rb") as file:
            while chunk := file.read(READ_BYTES):
                digest.update(chunk)
                size += len(chunk)
        created, committed = TimeRange(*self._created), TimeRange(*self._committed)
        return WrittenFile(
            self._path, self.rows, size, digest.hexdigest(), created, committed, self._first or (), self._last
        )

    def _flush(self) -> None:
        if self._group:
            with translated_disk_errors():
                self._out.write_batch(batch_of(self._schema, self._group))
            self._group, self._group_bytes = [], 0


class FileReader:
    """Reads the rows of a file that was fetched and verified."""

    def __init__(self, path: Path, entry: ManifestEntry) -> None:
        try:
            self._file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(entry, f"cannot be read: {error}") from None
        self.columns: Columns = columns_of(self._file.schema_arrow)
        if self._file.metadata.num_rows != entry.rows:
            raise _damaged(entry, f"has {self._file.metadata.num_rows} rows instead of {entry.rows}")
        self._entry = entry

    def groups(self, after: int = 0) -> Iterator[list[ArchivedRow]]:
        """Yields the rows behind the first `after` rows, one group at a time."""
        passed = 0
        for number in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(number).num_rows
            if passed + count > after:
                try:
                    rows = rows_of(self._file.read_row_group(number))
                except (pa.ArrowException, OSError) as error:
                    raise _damaged(self._entry, f"cannot be read: {error}") from None
                yield rows[max(0, after - passed) :]
            passed += count

    def close(self) -> None:
        self._file.close()


@contextmanager
def opened(store: ObjectStore, entry: ManifestEntry) -> Iterator[FileReader]:
    """Fetches a file and verifies that it matches its entry."""
    with TemporaryDirectory(prefix="tailrace-archive-") as folder:
        path = Path(folder) / "rows.parquet"
        fetch(store, entry, path)
        reader = FileReader(path, entry)
        try:
            yield reader
        finally:
            reader.close()


def fetch(store: ObjectStore, entry: ManifestEntry, path: Path | None = None) -> None:
    """Reads a whole file, to `path` if given; raises ArchiveDamaged if it does not match its entry."""
    digest, size = hashlib.sha256(), 0
    with translated_disk_errors(), (path or Path("/dev/null")).open("wb") as out:
        for chunk in store.chunks(entry.file):
            digest.update(chunk)
            size += len(chunk)
            out.write(chunk)
    if (size, digest.hexdigest()) != (entry.bytes, entry.sha256):
        raise _damaged(entry, f"is not what was written: {size:,} bytes instead of {entry.bytes:,}, or other content")


def _damaged(entry: ManifestEntry, what: str) -> ArchiveDamaged:
    return ArchiveDamaged(
        f"{entry.file} {what}",
        why=f"It was changed since {entry.name} was written, or its store has lost parts of it.",
        remedy="Restore it from a copy (a version of the bucket, a backup); `tailrace archive check` checks all "
        "files. Nothing was published or deleted.",
    )


@contextmanager
def translated_disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"a temporary file of the archive cannot be written: {error}",
            remedy="Make sure that the folder for temporary files (TMPDIR) has room for two files, about 300 MB.",
        ) from None


def extended(span: list[int], at_ms: int) -> list[int]:
    return [min(span[0], at_ms), max(span[1], at_ms)] if span else [at_ms, at_ms]
