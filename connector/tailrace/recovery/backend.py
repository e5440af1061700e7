"""What recovery needs of a database, whatever its kind, and the errors from which it may recover."""

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
"""Mistakes in settings look like these (the address of an old copy among them), and events are given up with the last:
a person decides.
"""

STAYS = "events that it no longer has stay published (`tailrace verify` counts them as only on Kafka)"
"""What is said of a database that was set back."""

Keeps = Callable[[Row, int, int | None], bool]


class Backend(Protocol):
    """A database whose outbox is to be read once more."""

    def trouble(self, stored: Position | None, until: Position | None) -> TailraceError | None:
        """The error that a start would end with; None if it would go on. Changes nothing.

        `until` is from where the pipeline was set back, None if it was not.
        """

    def is_elsewhere(self, stored: Position) -> bool:
        """Whether the position is of another server or database, or of a time that this server knows nothing of: a
        mistake in the settings, or an old primary, more often than not.
        """

    def went_back(self, lost: Position | None) -> bool:
        """Whether the server's log is not a continuation of the one that was lost: restored, or failed over."""

    def forgotten(self, lost: Position | None) -> list[str]:
        """What it no longer has of what was published, or was to be, for people; to be asked after `steps`."""

    def is_zoned(self) -> bool:
        """Whether the time of a row is a moment, and not one that depends on somebody's time zone."""

    def steps(self, lost: Position | None) -> list[str]:
        """What would be done to the database, for people; raises what keeps it from being done.

        `lost` is the position that would be given up; None if there is none, or if it was given up before.
        """

    def readable(self) -> PostgresOptions | MongoOptions | None:
        """What of the outbox is there to be read; None if all of it is yet to be created."""

    def weigh(
        self, entries: Sequence[PositionEntry], lost: Position | None, until_ms: int | None, *, went_back: bool
    ) -> Evidence:
        """What the ledger is still worth."""

    def source(self, mark: Recovery, keeps: Keeps, wake: Wakeup, begin: Begin, *, resume: bool) -> RowSource:
        """Reads the outbox from its beginning and gives out what `keeps` lets through; then it is where the log goes
        on. `resume`: behind the position that this process has stored.
        """

    def close(self) -> None: ...


Begin = Callable[[Position | None], None]
"""Called with the stored position once no other instance can publish any more, before anything is changed."""
