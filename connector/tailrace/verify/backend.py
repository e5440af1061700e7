"""What verifying needs of an outbox, whatever the database: its rows now, and which of them a pipeline has passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from tailrace.event import Row
from tailrace.positions.base import Position


class Window(NamedTuple):
    """From `since_ms` to before `until_ms`; None for no bound."""

    since_ms: int | None = None
    until_ms: int | None = None

    def __contains__(self, at_ms: object) -> bool:
        return isinstance(at_ms, int) and (
            (self.since_ms is None or at_ms >= self.since_ms) and (self.until_ms is None or at_ms < self.until_ms)
        )


class OutboxRow(NamedTuple):
    """A row as the stream would bring it; `transaction` is its writer's number (0 where the database has none)."""

    row: Row
    transaction: int
    created_ms: int


class OutboxReader(Protocol):
    def rows(self) -> Iterator[OutboxRow]:
        """All rows of the window, each once. Every one of them is committed before `is_passed` says so."""

    def is_passed(self, stored: Position) -> bool:
        """Whether a pipeline at this position is beyond all that `rows` gave."""

    def beyond(self, stored: Position, ahead: Callable[[Row], None]) -> Callable[[int], bool]:
        """For a pipeline that is not: whether it is beyond a transaction. `ahead` is given rows known to lie ahead.

        What is returned can be sent to another process.
        """

    def before_start(self, stored: Position) -> Callable[[int, int], bool]:
        """Whether a row, by its transaction and its time, was there before the first start and is not published.

        What is returned can be sent to another process.
        """

    def close(self) -> None: ...
