"""What a rewind needs of a pipeline's log, whatever the database: how far back it reaches, and points as positions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NoReturn, Protocol

from tailrace.errors import ConfigError, OutOfReach
from tailrace.positions.base import Position
from tailrace.replay.points import Point
from tailrace.sources.mongo.options import MongoOptions
from tailrace.state.position_history import PositionEntry
from tailrace.worker.wiring import Wiring


class SourceLog(Protocol):
    """Opened for a look: it reads and changes nothing. Not to be used after `close`."""

    @property
    def oldest(self) -> Position | None:
        """The furthest back that can be read again; None where the server does not tell."""

    def at(self, point: Point) -> Position:
        """The last position that has nothing behind it from before `point`; OutOfReach where the log is gone.

        An event is a point, too: the one right before it, by the `place` that its record tells (`at_place`).
        """

    def at_place(self, place: str) -> Position: ...

    def renewed(self, position: Position) -> Position:
        """The same place in the log as it is read now; OutOfReach, or the error that a start would end with there."""

    def close(self) -> None: ...


def open_log(wiring: Wiring, stored: Position, entries: Sequence[PositionEntry]) -> SourceLog:
    """Raises what a start would: a log that cannot be followed cannot be rewound either."""
    if isinstance(wiring.database, MongoOptions):
        from tailrace.replay.mongo_log import MongoLog  # its driver is only there for those who need it

        return MongoLog(wiring.database, stored, entries)
    from tailrace.replay.postgres_log import PostgresLog  # it needs this file itself

    return PostgresLog(wiring.database, stored, entries)


def not_of_this(what: str, forms: str) -> ConfigError:
    return ConfigError(f"{what} is no point in the log of this database", remedy=f"Write {forms}.")


def out_of_reach(what: str, why: str, nearest: Sequence[str]) -> NoReturn:
    raise OutOfReach(
        what,
        why=why,
        remedy=f"The nearest possible points: {'; '.join(nearest)}. What lies before can be published again from the "
        "outbox itself: `tailrace replay plan FILE --from … --from-table`.",
    )


def describe_position(position: Position) -> str:
    """A position with its time, for people."""
    if not position.at_ms:
        return str(position)
    return f"{position} ({format_time(position.at_ms)})"


def format_time(at_ms: int) -> str:
    """In this machine's time zone, by the rules of that day."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S %z}"
