"""The rows of an archive as a source, for a replay: in the order of its files, from any row on.

Before the first row is given out, every file that is still to be read is fetched and compared with its digest: of an
archive that has lost something, nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from tailrace import failpoints
from tailrace.archive.format import ArchivedRow
from tailrace.archive.manifest import ManifestEntry
from tailrace.archive.repository import ArchiveRepository
from tailrace.errors import ProtocolError, WrongLog
from tailrace.event import Chunk, Columns, Row
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.base import Position
from tailrace.sources.bounded import BoundedSource, row_bytes

FORGOTTEN = "table"
"""What the place of a row begins with whose own was not known any more when it was archived: as of a table's rows."""

Making = Callable[[Columns, ArchivedRow, str], Row]
"""A row of the outbox: the columns of its file, what the file has of it, and its place."""


class ArchiveSource(BoundedSource):
    """A source of the rows in an archive. `end` is a place behind the last row that is wanted."""

    def __init__(
        self,
        open_shelf: Callable[[], ArchiveRepository],
        making: Making,
        *,
        end: ArchivePosition,
        within: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """`within` are times of commits (ms): files that have nothing of them are not read."""
        super().__init__()
        self._open_shelf = open_shelf
        self._making = making
        self._end: ArchivePosition = end
        self._within = within
        self._rows: Iterator[tuple[ArchivePosition, Row] | None] = iter(())
        self._open = ExitStack()

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        if not isinstance(stored, ArchivePosition):
            raise ProtocolError("a reading of the archive has no beginning", remedy="Report it.")
        shelf = self._open_shelf()
        if stored.archive != shelf.name:
            raise WrongLog(
                f"the position is one in the archive of {stored.archive}, and this one is of {shelf.name}",
                remedy="Name the settings that the plan was made with. Nothing was changed.",
            )
        shelf.require_listed(max(1, stored.file), self._end.file)
        entries = [
            entry for entry in shelf.meeting(*self._within) if max(1, stored.file) <= entry.number <= self._end.file
        ]
        entries = [entry for entry in entries if (entry.number, entry.rows) > (stored.file, stored.row)]
        shelf.require_readable(entries)
        shelf.require_whole(entries)
        self._rows = self._read(shelf, entries, stored)
        return stored

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        rows: list[Row] = []
        position, size = self._end, 0
        for found in self._rows:
            if found is not None:
                position, row = found
                rows.append(row)
                size += row_bytes([row])
            # Rows of one chunk have the same columns: those of one file.
            if rows and (found is None or len(rows) >= limit or size >= limit_bytes):
                break
        if not rows:
            return Chunk([], self._end, more=False)
        failpoints.reached(failpoints.TABLE_ROWS_READ)
        return Chunk(rows, position, more=True, size=size)

    def close(self) -> None:
        self._rows = iter(())
        self._open.close()

    def _read(
        self, shelf: ArchiveRepository, entries: list[ManifestEntry], start: ArchivePosition
    ) -> Iterator[tuple[ArchivePosition, Row] | None]:
        """None where a file ends."""
        count = start.rows
        for entry in entries:
            number = start.row if entry.number == start.file else 0
            # Not a `with`: an iterator that is dropped would leave its file behind until it is collected.
            self._open.close()
            reader = self._open.enter_context(shelf.reader(entry))
            for rows in reader.groups(number):
                for kept in rows:
                    number += 1
                    count += 1
                    place = kept.place or f"{FORGOTTEN}:{entry.number}.{number}"
                    here = ArchivePosition(start.archive, entry.number, number, count, kept.committed_ms)
                    yield here, self._making(reader.columns, kept, place)
            yield None
        self._open.close()
