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
    """A row of the outbox, the position behind it, and whether Debezium's offset says that it is published.

    `age` sorts rows by when they were written: the id of the transaction, or the time of the commit (MongoDB).
    """

    row: Row
    position: Position
    covered: bool
    age: int


class OutboxLog(Protocol):
    """Reads the outbox's part of the log. Nothing is confirmed to the database."""

    @property
    def start(self) -> Position:
        """The position where it begins: every row before it is published by Debezium."""

    def rows(self) -> Iterator[LogRow]:
        """Yields the rows up to the end that the log had when it was opened."""

    def begun(self, pending: int | None) -> str:
        """Returns `begun` of the position: older rows of the outbox were published by Debezium.

        `pending` is the lowest age of the rows behind the position; None if there are none. Later commands must not
        take such a row for one of Debezium's, so a row of Debezium's that is not older counts as the pipeline's.
        """

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
