"""The batch: the content of one Kafka transaction, records in log order and the position behind them."""

from __future__ import annotations

from tailrace.event import Record, Row
from tailrace.positions.base import Position


class Batch:
    """Filled by the loop, then submitted to the publisher and not changed any more."""

    __slots__ = (
        "dead_letters",
        "newest_ms",
        "oldest_ms",
        "other_records",
        "position",
        "read_at",
        "records",
        "rows",
        "size",
        "submitted_at",
        "topics",
    )

    def __init__(self, position: Position) -> None:
        self.records: list[Record] = []
        self.topics: set[str] = set()
        self.position = position
        self.dead_letters = 0
        self.other_records = 0
        """Records that are neither events nor dead letters: events that wait behind parked keys, and parking state."""
        self.size = 0
        """Bytes read from the source; bounds the memory of the batch, headers and keys included."""
        self.rows = 0
        self.oldest_ms = self.newest_ms = 0
        """Commit times of the first and the last row, in Unix milliseconds."""
        self.read_at = self.submitted_at = 0.0
        """When the first row was read, and when the batch was submitted, as Unix times."""

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.topics.add(record.topic)

    def note_rows(self, rows: list[Row], now: float) -> None:
        """Notes that these rows, read at `now`, belong to the batch."""
        if not self.rows:
            self.oldest_ms, self.read_at = rows[0].committed_ms, now
        self.newest_ms = rows[-1].committed_ms
        self.rows += len(rows)
