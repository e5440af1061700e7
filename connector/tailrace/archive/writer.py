"""Archiving: rows to a file, the file to its place, read back, listed, and only then deleted from the outbox.

The outbox itself is the truth about what is still to be deleted: nothing is stored about that. Each run first looks for
rows of files that are listed already (it was ended before they were all deleted, or they were to be kept), deletes
those that are just as the file has them, and passes over the others: no row is in two files. So it may be killed at any
moment, and is simply run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from tailrace import failpoints
from tailrace.archive.backend import ArchiveOutbox, Candidate, PurgeResult
from tailrace.archive.files import FileReader, FileWriter
from tailrace.archive.format import ArchivedRow
from tailrace.archive.manifest import ManifestEntry
from tailrace.archive.pinned_rows import DiskSet
from tailrace.archive.repository import ArchiveRepository
from tailrace.errors import LayoutMismatch
from tailrace.event import Columns, Row
from tailrace.positions.base import Position

PAGE_ROWS = 1000
"""Rows deleted in one transaction."""

Original = Callable[[Row], tuple[str, int]]
"""The place and the time of the commit (ms) that a row was published with; ("", 0) where that is not known."""

Removal = Callable[[Columns, Sequence[ArchivedRow], Position], PurgeResult]
"""Deletes rows of a file from the outbox, or says what that would do; the position tells which are passed."""


class Holds(Protocol):
    def __contains__(self, row: Row) -> bool: ...


@dataclass(slots=True)
class ArchiveReport:
    """What was done, or would be. `finished` counts rows of earlier files that were deleted only now; `unplaced` those
    archived whose record is not on the topics.

    What stays: `changed` is no longer what its file has; `later` was put back, and the pipeline may not have passed
    it; `refused` is kept by the database; `held` has a dead letter that is open, or waits.
    """

    files: list[ManifestEntry] = field(default_factory=list)
    rows: int = 0
    deleted: int = 0
    finished: int = 0
    unplaced: int = 0
    changed: int = 0
    later: int = 0
    refused: int = 0
    held: int = 0
    archived_before: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    orphans: list[str] = field(default_factory=list)


class ArchiveRun:
    """One run."""

    def __init__(
        self,
        shelf: ArchiveRepository,
        outbox: ArchiveOutbox,
        held: Holds,
        original: Original,
        *,
        start: Position,
        before_ms: int,
        keep: bool = False,
        tell: Callable[[ArchiveReport], None] = lambda _: None,
    ) -> None:
        """`start` tells which rows the pipeline has passed; `held` is made after that was known."""
        self._shelf = shelf
        self._outbox = outbox
        self._held = held
        self._original = original
        self._start = start
        self._before_ms = before_ms
        self._keep = keep
        self._tell = tell
        self._known = DiskSet()
        self.report = ArchiveReport(orphans=list(shelf.orphans))

    def look(self) -> ArchiveReport:
        """What `run` would do; changes nothing."""
        try:
            self._look_back(None if self._keep else self._outbox.look)
            for candidate in self._wanted():
                self._note(candidate, self._original(candidate.row)[0])
        finally:
            self._known.close()
        # Those would be gone by then.
        self.report.archived_before = max(0, self.report.archived_before - self.report.finished)
        return self.report

    def run(self) -> ArchiveReport:
        if not self._keep:
            self._outbox.require_deletable()
        try:
            self._look_back(None if self._keep else self._purge)
            with TemporaryDirectory(prefix="tailrace-archive-") as folder:
                writer: FileWriter | None = None
                for candidate in self._wanted():
                    if writer is None:
                        writer = FileWriter(Path(folder) / "rows.parquet", self._outbox.shape)
                    place, committed_ms = self._original(candidate.row)
                    kept = candidate.kept
                    writer.add(
                        kept._replace(place=place, committed_ms=committed_ms or kept.created_ms), candidate.order
                    )
                    self._note(candidate, place)
                    if writer.full:
                        self._finish(writer)
                        writer = None
                if writer is not None:
                    self._finish(writer)
        finally:
            self._known.close()
        return self.report

    def _look_back(self, removal: Removal | None) -> None:
        """Rows that are in files already: those as old as is asked for are removed, the others passed over."""
        there = self._outbox.counts(self._shelf.entries)
        for entry in self._shelf.entries:
            if not there.get(entry.number):
                continue
            with self._shelf.reader(entry) as reader:
                for page in _pages(reader):
                    self._known.add(self._named(entry, reader.columns, row) for row in page)
                    if removal is not None:
                        old = [row for row in page if row.created_ms < self._before_ms]
                        self.report.finished += self._removed(reader.columns, old, removal)

    def _named(self, entry: ManifestEntry, columns: Columns, row: ArchivedRow) -> bytes:
        try:
            return self._outbox.name(columns, row)
        except LayoutMismatch as error:
            raise LayoutMismatch(f"{entry.file}: {error.what}", why=error.why, remedy=error.remedy) from None

    def _wanted(self) -> Iterator[Candidate]:
        columns = self._outbox.shape.columns
        for candidate in self._outbox.candidates(self._start, self._before_ms):
            if self._outbox.name(columns, candidate.kept) in self._known:
                self.report.archived_before += 1
            elif candidate.row in self._held:
                self.report.held += 1
            else:
                yield candidate

    def _note(self, candidate: Candidate, place: str) -> None:
        report, at_ms = self.report, candidate.kept.created_ms
        report.rows += 1
        report.unplaced += not place
        report.first_ms = at_ms if report.first_ms is None else min(report.first_ms, at_ms)
        report.last_ms = at_ms if report.last_ms is None else max(report.last_ms, at_ms)
        if not report.rows % PAGE_ROWS:
            self._tell(report)

    def _finish(self, writer: FileWriter) -> None:
        entry = self._shelf.add(writer.finish(), self._outbox.shape, self._outbox.order_by)
        self.report.files.append(entry)
        self._tell(self.report)
        if self._keep:
            return
        # By what the archive has of it, not by what was read from the outbox.
        with self._shelf.reader(entry) as reader:
            for page in _pages(reader):
                self.report.deleted += self._removed(reader.columns, page, self._purge)

    def _removed(self, columns: Columns, rows: Sequence[ArchivedRow], removal: Removal) -> int:
        """How many of `rows` are gone, or would be."""
        try:
            # An event may have become a dead letter since: by a replay.
            free = [row for row in rows if self._outbox.row(columns, row, "") not in self._held]
        except LayoutMismatch:
            # A column that makes the event had another name then: the table has none of this any more, as it was.
            self.report.changed += self._outbox.present(columns, rows)
            return 0
        done = removal(columns, free, self._start)
        self.report.changed += done.changed
        self.report.later += done.later
        self.report.refused += done.refused
        self._tell(self.report)
        return done.deleted

    def _purge(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        done = self._outbox.purge(columns, rows, start)
        failpoints.reached(failpoints.ARCHIVE_DELETED)
        return done


def _pages(reader: FileReader) -> Iterator[list[ArchivedRow]]:
    for rows in reader.groups():
        for at in range(0, len(rows), PAGE_ROWS):
            yield rows[at : at + PAGE_ROWS]
