"""Archives rows: writes a file, stores it, reads it back, lists it, and only then deletes the rows from the outbox.

Nothing is stored about rows that have yet to be deleted; the outbox itself shows it. Each run first looks for rows of
files that are already listed (an earlier run was stopped, or rows were kept), deletes those that are identical to the
file, and skips the others, so no row is in two files. It can be killed at any moment and run again.
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
from tailrace.archive.pinned_rows import no_room
from tailrace.archive.repository import ArchiveRepository
from tailrace.errors import LayoutMismatch
from tailrace.event import Columns, Row
from tailrace.positions.base import Position
from tailrace.temporary_table import DiskSet

PAGE_ROWS = 1000
"""Rows deleted in one transaction."""

Original = Callable[[Row], tuple[str, int]]
"""Returns the position and commit time (ms) that a row was published with; ("", 0) if they are not known."""

Removal = Callable[[Columns, Sequence[ArchivedRow], Position], PurgeResult]
"""Deletes rows of a file from the outbox, or returns what that would do; the position shows which are passed."""


class RowSet(Protocol):
    def __contains__(self, row: Row) -> bool: ...


@dataclass(slots=True)
class ArchiveReport:
    """The result of an archive run, or of its plan.

    `finished` counts rows of earlier files that were deleted now; `unplaced` counts archived rows whose record is not
    on the topics. Rows that stay: `changed` differ from their file; `later` were put back, and the pipeline may not
    have passed them; `refused` are kept by the database; `held` have an open dead letter, or wait.
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
    """One run of the archiver."""

    def __init__(
        self,
        repository: ArchiveRepository,
        outbox: ArchiveOutbox,
        held: RowSet,
        original: Original,
        *,
        start: Position,
        before_ms: int,
        keep: bool = False,
        on_progress: Callable[[ArchiveReport], None] = lambda _: None,
    ) -> None:
        """`start` shows which rows the pipeline has passed; `held` must be created after it was read."""
        self._repository = repository
        self._outbox = outbox
        self._held = held
        self._original = original
        self._start = start
        self._before_ms = before_ms
        self._keep = keep
        self._on_progress = on_progress
        self._known = DiskSet(no_room)
        self.report = ArchiveReport(orphans=list(repository.orphans))

    def look(self) -> ArchiveReport:
        """Returns what `run` would do. Changes nothing."""
        try:
            self._look_back(None if self._keep else self._outbox.look)
            for candidate in self._wanted():
                self._note(candidate, self._original(candidate.row)[0])
        finally:
            self._known.close()
        # A real run would have deleted those first.
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
                    position, committed_ms = self._original(candidate.row)
                    kept = candidate.kept
                    writer.add(
                        kept._replace(position=position, committed_ms=committed_ms or kept.created_ms), candidate.order
                    )
                    self._note(candidate, position)
                    if writer.full:
                        self._finish(writer)
                        writer = None
                if writer is not None:
                    self._finish(writer)
        finally:
            self._known.close()
        return self.report

    def _look_back(self, removal: Removal | None) -> None:
        """Deletes rows that are in files already and old enough, and notes the others as archived."""
        there = self._outbox.counts(self._repository.entries)
        for entry in self._repository.entries:
            if not there.get(entry.number):
                continue
            with self._repository.reader(entry) as reader:
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

    def _note(self, candidate: Candidate, position: str) -> None:
        report, at_ms = self.report, candidate.kept.created_ms
        report.rows += 1
        report.unplaced += not position
        report.first_ms = at_ms if report.first_ms is None else min(report.first_ms, at_ms)
        report.last_ms = at_ms if report.last_ms is None else max(report.last_ms, at_ms)
        if not report.rows % PAGE_ROWS:
            self._on_progress(report)

    def _finish(self, writer: FileWriter) -> None:
        entry = self._repository.add(writer.finish(), self._outbox.shape, self._outbox.order_by)
        self.report.files.append(entry)
        self._on_progress(self.report)
        if self._keep:
            return
        # Delete what the stored file has, not what was read from the outbox.
        with self._repository.reader(entry) as reader:
            for page in _pages(reader):
                self.report.deleted += self._removed(reader.columns, page, self._purge)

    def _removed(self, columns: Columns, rows: Sequence[ArchivedRow], removal: Removal) -> int:
        """Returns how many of `rows` are deleted, or would be."""
        try:
            # A replay may have dead-lettered an event meanwhile.
            free = [row for row in rows if self._outbox.row(columns, row, "") not in self._held]
        except LayoutMismatch:
            # A column of the event had another name then, so no row in the table is identical to the file.
            self.report.changed += self._outbox.present(columns, rows)
            return 0
        done = removal(columns, free, self._start)
        self.report.changed += done.changed
        self.report.later += done.later
        self.report.refused += done.refused + done.locked
        self._on_progress(self.report)
        return done.deleted

    def _purge(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        done = self._outbox.purge(columns, rows, start)
        failpoints.reached(failpoints.ARCHIVE_DELETED)
        return done


def _pages(reader: FileReader) -> Iterator[list[ArchivedRow]]:
    for rows in reader.groups():
        for at in range(0, len(rows), PAGE_ROWS):
            yield rows[at : at + PAGE_ROWS]
