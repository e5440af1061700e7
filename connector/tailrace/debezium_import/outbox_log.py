"""The part of the database's log that a takeover looks at: from where Debezium may be to where the log ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from tailrace.debezium_import.offset import DebeziumOffset, MongoOffset, PostgresOffset
from tailrace.event import Row
from tailrace.positions.base import Position
from tailrace.sources.mongo.options import MongoOptions
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import Wiring


class LogRow(NamedTuple):
    """A row of the outbox, the position behind it, and whether Debezium's offset says that it is published."""

    row: Row
    position: Position
    covered: bool


class OutboxLog(Protocol):
    """Reads the outbox's part of the log. Nothing is confirmed to the database."""

    @property
    def start(self) -> Position:
        """The position where it begins: every row before it is published by Debezium."""

    def rows(self) -> Iterator[LogRow]:
        """Yields the rows up to the end that the log had when it was opened."""

    def extend(self) -> None:
        """Moves the end to the present end of the log; then `rows` continues."""

    def close(self) -> None: ...


def open_log(wiring: Wiring, offset: DebeziumOffset, wakeup: Wakeup) -> OutboxLog:
    """Opens the log of the pipeline's database."""
    if isinstance(wiring.database, MongoOptions):
        from tailrace.debezium_import.mongo_log import MongoOutboxLog

        assert isinstance(offset, MongoOffset)  # noqa: S101 - parsed for this database
        return MongoOutboxLog(wiring.database, offset, wakeup)
    from tailrace.debezium_import.postgres_log import PostgresOutboxLog

    assert isinstance(offset, PostgresOffset)  # noqa: S101 - parsed for this database
    return PostgresOutboxLog(wiring.database, offset, wakeup)
