"""What retention keeps in the database of an outbox, for any database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tailrace.retention.confirmations import ConfirmationSchedule

DAY_MS = 86_400_000


class PurgedDay(NamedTuple):
    """Deleted rows that were created on one day, in days since 1970 (UTC); -1 for rows without a time."""

    day: int
    rows: int


def by_day(created_ms: Iterable[int]) -> list[PurgedDay]:
    counts = Counter(at_ms // DAY_MS if at_ms > 0 else -1 for at_ms in created_ms)
    return [PurgedDay(day, rows) for day, rows in sorted(counts.items())]


class RetentionState(ConfirmationSchedule, Protocol):
    def ensure(self) -> None:
        """Creates what is missing. Without it, everything can be read and is empty."""

    def canonical(self, ids: Sequence[str]) -> list[str | None]:
        """Returns the ids as the events of this outbox have them; None for those that no event can have."""

    def confirmed(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns the times (ms) of the confirmed ones of `ids`."""

    def forget_unknown(self, before_ms: int) -> int:
        """Deletes confirmations from before `before_ms` whose event is not in the outbox; returns how many."""

    def kept_events(self) -> list[str]:
        """Returns the events whose dead letter was open when it was last seen; empty text: some without an id."""

    def remember(self, topic: str, opened: Iterable[str], closed: Iterable[str], offsets: Mapping[int, int]) -> None:
        """Stores which events have an open dead letter, and up to which offsets of `topic` that is known."""
