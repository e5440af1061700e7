"""The rows of an archive as a source for a replay: in the order of its files, from any row on.

Before the first row is returned, every file that will be read is fetched and compared with its digest. If an archive
has lost something, nothing is published.
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
from tailrace.positions.archive import NO_POSITION, ArchivePosition
from tailrace.positions.base import Position
from tailrace.sources.bounded import BoundedSource, row_bytes

MakeRow = Callable[[Columns, ArchivedRow, str], Row]
"""Makes a row of the outbox from the columns of its file, the archived row, and its position."""


class ArchiveSource(BoundedSource):
    """A source of the rows in an archive. `end` is a position behind the last wanted row."""

    def __init__(
        self,
        open_repository: Callable[[], ArchiveRepository],
        make_row: MakeRow,
        *,
        end: ArchivePosition,
        within: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """`within` is a range of commit times (ms); files without rows in it are not read."""
        super().__init__()
        self._open_repository = open_repository
        self._make_row = make_row
        self._end: ArchivePosition = end
        self._within = within
        self._rows: Iterator[tuple[ArchivePosition, Row] | None] = iter(())
        self._open = ExitStack()

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        if not isinstance(stored, ArchivePosition):
            raise ProtocolError("the archive source has no start position", remedy="Report it.")
        repository = self._open_repository()
        if stored.archive != repository.name:
            raise WrongLog(
                f"the position belongs to the archive of {stored.archive}, but this is {repository.name}",
                remedy="Use the settings that the plan was made with. Nothing was changed.",
            )
        repository.require_listed(max(1, stored.file), self._end.file)
        entries = [
            entry
            for entry in repository.meeting(*self._within)
            if max(1, stored.file) <= entry.number <= self._end.file
        ]
        entries = [entry for entry in entries if (entry.number, entry.rows) > (stored.file, stored.row)]
        repository.require_readable(entries)
        repository.require_whole(entries)
        self._rows = self._read(repository, entries, stored)
        return stored

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        rows: list[Row] = []
        position, size = self._end, 0
        for found in self._rows:
            if found is not None:
                position, row = found
                rows.append(row)
                size += row_bytes([row])
            # Rows of a chunk have the same columns, so it never spans two files.
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
        self, repository: ArchiveRepository, entries: list[ManifestEntry], start: ArchivePosition
    ) -> Iterator[tuple[ArchivePosition, Row] | None]:
        """Yields None at the end of a file."""
        count = start.rows
        for entry in entries:
            number = start.row if entry.number == start.file else 0
            # Not a `with`: an abandoned iterator would keep its file until it is garbage-collected.
            self._open.close()
            reader = self._open.enter_context(repository.reader(entry))
            for rows in reader.groups(number):
                for kept in rows:
                    number += 1
                    count += 1
                    position = kept.position or f"{NO_POSITION}:{entry.number}.{number}"
                    here = ArchivePosition(start.archive, entry.number, number, count, kept.committed_ms)
                    yield here, self._make_row(reader.columns, kept, position)
            yield None
        self._open.close()
