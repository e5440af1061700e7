"""A batch: what one Kafka transaction will hold. Records in the order of the log, and the position behind them."""

from __future__ import annotations

from tailrace.event import Record
from tailrace.positions.base import Position


class Batch:
    """Grows on the reading side, is handed over whole, and is not touched afterwards."""

    __slots__ = ("beside", "dead_letters", "position", "records", "size", "topics")

    def __init__(self, position: Position) -> None:
        self.records: list[Record] = []
        self.topics: set[str] = set()
        self.position = position
        self.dead_letters = 0
        self.beside = 0
        """Records that are neither: events that wait, and notes on that."""
        self.size = 0
        """Bytes that came from the source, for the bound on memory: headers and keys weigh as much as payloads."""

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.topics.add(record.topic)
