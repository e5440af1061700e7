"""The batch: the content of one Kafka transaction, records in log order and the position behind them."""

from __future__ import annotations

from tailrace.event import Record
from tailrace.positions.base import Position


class Batch:
    """Filled by the loop, then submitted to the publisher and not changed any more."""

    __slots__ = ("dead_letters", "other_records", "position", "records", "size", "topics")

    def __init__(self, position: Position) -> None:
        self.records: list[Record] = []
        self.topics: set[str] = set()
        self.position = position
        self.dead_letters = 0
        self.other_records = 0
        """Records that are neither events nor dead letters: events that wait behind parked keys, and parking state."""
        self.size = 0
        """Bytes read from the source; bounds the memory of the batch, headers and keys included."""

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.topics.add(record.topic)
