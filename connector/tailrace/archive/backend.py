"""The protocol of an outbox that is archived, for any database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add
from typing import NamedTuple, Protocol

from tailrace.archive.format import ArchivedRow, FileSchema, OrderKey
from tailrace.archive.manifest import ManifestEntry
from tailrace.event import Columns, Row
from tailrace.positions.base import Position


class Candidate(NamedTuple):
    """A row that may be archived: as the log delivers it, as a file stores it, and its sort key."""

    row: Row
    kept: ArchivedRow
    order: OrderKey


class PurgeResult(NamedTuple):
    """The result of deleting rows.

    Not deleted are `changed` (differ from the file), `later` (written or put back behind the pipeline's position),
    `refused` (kept by a constraint or a trigger of the database) and `locked` (by another transaction, for too long).
    """

    deleted: int
    changed: int = 0
    later: int = 0
    refused: int = 0
    locked: int = 0

    def plus(self, other: PurgeResult) -> PurgeResult:
        return PurgeResult(*map(add, self, other))


class ArchiveOutbox(Protocol):
    @property
    def shape(self) -> FileSchema: ...

    @property
    def order_by(self) -> tuple[str, ...]: ...

    def require_deletable(self) -> None:
        """Raises an error if rows cannot be deleted, or if the pipeline would stop at a deleted row."""

    def candidates(self, start: Position, before_ms: int) -> Iterator[Candidate]:
        """Yields rows older than `before_ms` that the pipeline has passed according to `start`, in order."""

    def counts(self, entries: Sequence[ManifestEntry]) -> dict[int, int]:
        """Returns how many rows in the time range of each entry are in the outbox, by the number of the entry."""

    def row(self, columns: Columns, kept: ArchivedRow, position: str) -> Row:
        """Returns the row that the log would deliver for an archived row."""

    def name(self, columns: Columns, kept: ArchivedRow) -> bytes:
        """Returns a digest of the key that identifies the row."""

    def present(self, columns: Columns, rows: Sequence[ArchivedRow]) -> int:
        """Returns how many of `rows` are in the outbox, changed or not."""

    def look(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        """Returns what `purge` would do, as far as that is known. Changes nothing."""

    def purge(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        """Deletes those of `rows` that are identical to the file and that the pipeline has passed."""

    def close(self) -> None: ...
