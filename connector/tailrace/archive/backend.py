"""What archiving needs of an outbox, whatever the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from tailrace.archive.files import OrderKey
from tailrace.archive.format import ArchivedRow, FileSchema
from tailrace.archive.manifest import ManifestEntry
from tailrace.event import Columns, Row
from tailrace.positions.base import Position


class Candidate(NamedTuple):
    """A row that may go: as the log gives it, as a file keeps it, and what it sorts by."""

    row: Row
    kept: ArchivedRow
    order: OrderKey


class PurgeResult(NamedTuple):
    """The others are still there: `changed` are not what the file has; `later` were written, or put back, behind what
    the pipeline has passed; `refused` are kept by the database itself.
    """

    deleted: int
    changed: int = 0
    later: int = 0
    refused: int = 0


class ArchiveOutbox(Protocol):
    @property
    def shape(self) -> FileSchema: ...

    @property
    def order_by(self) -> tuple[str, ...]: ...

    def require_deletable(self) -> None:
        """Raises what would keep rows from being deleted, or the pipeline from bearing it."""

    def candidates(self, start: Position, before_ms: int) -> Iterator[Candidate]:
        """Rows that the pipeline has passed, as `start` tells, and that are older than `before_ms`, in order."""

    def counts(self, entries: Sequence[ManifestEntry]) -> dict[int, int]:
        """How many rows of the time of each entry are in the outbox now, by the entry's number."""

    def row(self, columns: Columns, kept: ArchivedRow, place: str) -> Row:
        """The row that the log would bring of what a file has."""

    def name(self, columns: Columns, kept: ArchivedRow) -> bytes:
        """What tells a row from every other, whatever its other columns say."""

    def present(self, columns: Columns, rows: Sequence[ArchivedRow]) -> int:
        """How many of `rows` the outbox has, changed or not."""

    def look(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        """What `purge` would do, as far as that can be told; changes nothing."""

    def purge(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        """Deletes those of `rows` that are there, just as a file has them, and passed by the pipeline."""

    def close(self) -> None: ...
