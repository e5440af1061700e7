"""The protocol of an outbox that is verified, for any database: its rows, and which of them a pipeline has passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tailrace.event import Row
from tailrace.positions.base import Position
from tailrace.positions.first_read import LEFT_OUT

_HALF = 1 << 31
_NORMAL = 3
"""Lower transaction ids mean older than any other: frozen or bootstrap."""


class Window(NamedTuple):
    """A time range from `since_ms` up to but not including `until_ms`; None means no bound."""

    since_ms: int | None = None
    until_ms: int | None = None

    def __contains__(self, at_ms: object) -> bool:
        return isinstance(at_ms, int) and (
            (self.since_ms is None or at_ms >= self.since_ms) and (self.until_ms is None or at_ms < self.until_ms)
        )


class OutboxRow(NamedTuple):
    """A row as the log would deliver it. `transaction` is the id of the transaction that wrote it (0 in MongoDB)."""

    row: Row
    transaction: int
    created_ms: int


class OutboxReader(Protocol):
    def rows(self) -> Iterator[OutboxRow]:
        """Yields each row of the window once. All are committed before the end that `is_passed` compares with."""

    def is_passed(self, stored: Position) -> bool:
        """Returns whether a pipeline at this position has passed all rows of `rows`."""

    def beyond(self, stored: Position, ahead: Callable[[Row], None]) -> Callable[[int], bool]:
        """Returns, for a pipeline that has not passed all rows, whether it has passed a given transaction.

        `ahead` is called with each row known to lie ahead of the pipeline. The result can be sent to another process.
        """

    def before_start(self, stored: Position) -> Callable[[int, int], bool]:
        """Returns whether a row, by its transaction and time, existed before the first start and so is not published.

        The result can be sent to another process.
        """

    def close(self) -> None: ...


def precedes(transaction: int, other: int) -> bool:
    """Returns whether a transaction is older than another, given the lower 32 bits of their ids.

    A row that was frozen two billion transactions ago may seem newer. Then it counts as not passed, which is safe.
    """
    return transaction < _NORMAL or (transaction - other) % (1 << 32) >= _HALF


def nowhere(transaction: int) -> bool:
    """For a pipeline that is not known to have passed any transaction."""
    return False


def everywhere(transaction: int) -> bool:
    """For a pipeline that has passed everything except the rows known to lie ahead."""
    return True


def no_start(transaction: int, created_ms: int) -> bool:
    """For a pipeline that publishes all rows, or whose first start is not known."""
    return False


def is_left_out(transaction: int, created_ms: int) -> bool:
    """For a pipeline whose first read was limited by source.start_where: the reader has marked what it left out."""
    return transaction == LEFT_OUT


def never(topic: int, key: bytes | None, created_ms: int) -> bool:
    """For topics that have deleted nothing."""
    return False


@dataclass(frozen=True, slots=True)
class AbsenceContext:
    """The facts that decide the status of a row that is not on Kafka.

    `passed`: the pipeline has passed every row that was read; otherwise `is_behind` says whether it has passed a given
    transaction. `may_be_deleted` says whether a record for a topic (by number), key and time of creation may have been
    published and deleted since. `all_topics`: every topic that the pipeline may have written to was read. `is_before`
    says whether a row, by its transaction and time of creation, existed before the first start. The callables can be
    sent to another process.
    """

    passed: bool
    is_behind: Callable[[int], bool] = nowhere
    may_be_deleted: Callable[[int, bytes | None, int], bool] = never
    all_topics: bool = True
    is_before: Callable[[int, int], bool] = no_start
