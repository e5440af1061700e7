"""The protocol of an outbox whose rows are deleted by retention, for any database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from tailrace.archive.backend import Candidate, PurgeResult
from tailrace.positions.base import Position
from tailrace.retention.state import RetentionState


class OutboxTotals(NamedTuple):
    """All rows, and those of them that are not old enough or have no time."""

    rows: int
    young: int


class RetentionOutbox(Protocol):
    @property
    def state(self) -> RetentionState: ...

    def require_deletable(self) -> None:
        """Raises an error if rows cannot be deleted, or if the pipeline would stop at a deleted row."""

    def hints(self) -> list[str]:
        """Returns what keeps rows from being deleted, and is none of their own properties."""

    def totals(self, before_ms: int | None) -> OutboxTotals: ...

    def eligible(
        self, start: Position, before_ms: int | None, confirmed_ms: int | None = None, partition: str = ""
    ) -> Iterator[Candidate]:
        """Yields rows older than `before_ms` that the pipeline has passed according to `start`.

        With `confirmed_ms`, only rows confirmed at or before then; with `partition`, only rows of it.
        """

    def delete(self, batch: Sequence[Candidate], ids: Sequence[str], start: Position) -> PurgeResult:
        """Deletes those rows that have not changed since they were read, and records that in the same transaction.

        `ids` are their events. Rows that are locked or that the database refuses to delete stay.
        """

    def close(self) -> None: ...
