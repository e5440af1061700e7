"""The protocol of a database that is recovered, and the errors from which a pipeline can recover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tailrace.errors import (
    CollectionGone,
    EventTooLarge,
    HistoryLost,
    LogDiverged,
    PositionAhead,
    PositionForgotten,
    PublicationBroken,
    RecoveryUnfinished,
    SlotAhead,
    SlotLost,
    SlotMissing,
    SlotUnclaimed,
    StreamChanged,
    TableRewritten,
    TailraceError,
    UndecodableTransaction,
    WrongLog,
)
from tailrace.event import Row
from tailrace.pipeline.loop import RowSource
from tailrace.positions.base import Position
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery.evidence import Evidence
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.state.position_history import PositionEntry
from tailrace.wakeup import Wakeup

RECOVERABLE = (
    SlotMissing,
    SlotLost,
    SlotAhead,
    SlotUnclaimed,
    PositionAhead,
    LogDiverged,
    PublicationBroken,
    TableRewritten,
    WrongLog,
    UndecodableTransaction,
    HistoryLost,
    CollectionGone,
    EventTooLarge,
    StreamChanged,
    PositionForgotten,
    RecoveryUnfinished,
)
NOT_BY_ITSELF = (SlotUnclaimed, PositionForgotten, StreamChanged, LogDiverged, UndecodableTransaction)
"""Errors that a mistake in the settings can cause (such as the address of an old copy). The last one gives up events. A
person must decide about them.
"""

STAYS = "events that it no longer has stay published (`tailrace verify` counts them as only on Kafka)"
"""The note about a database that was restored to an earlier state."""

AcceptRow = Callable[[Row, int, int | None], bool]


class Backend(Protocol):
    """A database whose outbox is read again."""

    def find_error(self, stored: Position | None, until: Position | None) -> TailraceError | None:
        """Returns the error that a start would raise, or None. Changes nothing.

        `until` is the position from which the pipeline was rewound; None if it was not.
        """

    def is_elsewhere(self, stored: Position) -> bool:
        """Returns whether the position belongs to another server or database, or to a later timeline than this
        server's.

        Usually that is a mistake in the settings, or an old primary.
        """

    def went_back(self, lost: Position | None) -> bool:
        """Returns whether the server's log does not continue the lost one, after a restore or a failover."""

    def lost_notes(self, lost: Position | None) -> list[str]:
        """Describes what the database has lost of what was published, or was to be. Call it after `steps`."""

    def has_time_zone(self) -> bool:
        """Returns whether the time column of a row has a time zone."""

    def steps(self, lost: Position | None) -> list[str]:
        """Describes what would be done to the database; raises an error if it cannot be done.

        `lost` is the position that would be given up; None if there is none, or if it was given up before.
        """

    def readable(self) -> PostgresOptions | MongoOptions | None:
        """Returns the existing part of the outbox; None if all of it has yet to be created."""

    def evaluate(
        self, entries: Sequence[PositionEntry], lost: Position | None, until_ms: int | None, *, went_back: bool
    ) -> Evidence:
        """Decides how much of the position history is still valid."""

    def source(self, mark: Recovery, accept: AcceptRow, wakeup: Wakeup, begin: Begin, *, resume: bool) -> RowSource:
        """Returns a source that reads the outbox from its beginning, yields the rows that `accept` accepts, and ends at
        the position where the log continues.

        `resume`: start behind the position that this process has stored.
        """

    def close(self) -> None: ...


Begin = Callable[[Position | None], None]
"""Called with the stored position when no other instance can publish any more, before anything is changed."""
