"""The log of a pipeline, for any database: how far back it reaches, and the positions of points that a user gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

from tailrace.errors import ConfigError, OutOfReach
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import read_topic
from tailrace.kafka.tail import ClusterObserver, topic_matcher
from tailrace.positions.archive import NO_POSITION
from tailrace.positions.base import Position
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.replay.points import EventId, Point
from tailrace.sources.mongo.options import MongoOptions
from tailrace.state.position_history import PositionEntry
from tailrace.worker.options import own_topics
from tailrace.worker.wiring import Wiring


class SourceLog(Protocol):
    """A log opened for reading only. Do not use it after `close`."""

    @property
    def oldest(self) -> Position | None:
        """The earliest position that can be read again; None if the server does not report it."""

    def at(self, point: Point) -> Position:
        """Returns the last position with everything since `point` behind it; raises OutOfReach if the log is gone.

        For an event that is the position right before it, by the position in its record (`at_event_position`).
        """

    def at_event_position(self, position: str) -> Position: ...

    def validated(self, position: Position) -> Position:
        """Returns the same position in the current log; raises OutOfReach, or the error of a start at that
        position.
        """

    def close(self) -> None: ...


def open_log(wiring: Wiring, stored: Position, entries: Sequence[PositionEntry]) -> SourceLog:
    """Raises the error of a start: a log that cannot be followed cannot be rewound."""
    if isinstance(wiring.database, MongoOptions):
        from tailrace.replay.mongo_log import MongoLog  # optional driver

        return MongoLog(wiring.database, stored, entries)
    from tailrace.replay.postgres_log import PostgresLog  # circular import

    return PostgresLog(wiring.database, stored, entries)


def not_a_point(what: str, forms: str) -> ConfigError:
    return ConfigError(f"{what} is not a point in the log of this database", remedy=f"Write {forms}.")


def out_of_reach(what: str, why: str, nearest: Sequence[str]) -> NoReturn:
    raise OutOfReach(
        what,
        why=why,
        remedy=f"The nearest possible points: {'; '.join(nearest)}. Earlier events can be published again from the "
        "outbox: `tailrace replay plan FILE --from … --from-table`.",
    )


def describe_position(position: Position) -> str:
    """Returns a position with its time, for people."""
    if not position.at_ms:
        return str(position)
    return f"{position} ({format_time(position.at_ms)})"


def format_time(at_ms: int) -> str:
    """Formats a time in the local time zone."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S %z}"


ID, POSITION = "id", "position"
"""Headers of every record of a pipeline."""


def resolve(wiring: Wiring, log: SourceLog, entries: Sequence[PositionEntry], point: Point) -> Position:
    """Returns the position of a point.

    Raises ConfigError for an unknown event, and OutOfReach with the nearest points if the log no longer reaches back.
    """
    if not isinstance(point, EventId):
        return log.at(point)
    position = find_position(wiring.kafka, topics_of(wiring, entries), point.id)
    if position is None:
        raise ConfigError(
            f"no record of the pipeline's topics has the id {point.id}",
            why="It was never published, was dead-lettered, or was deleted by retention.",
            remedy="Give the point in another way, such as by its time.",
        )
    try:
        return log.at_event_position(position)
    except ValueError:
        raise ConfigError(
            f"the record of {point.id} has the position {position}, which is not in this log",
            why="It belongs to another pipeline, or to a database that this pipeline read before.",
            remedy="Give the point in another way, such as by its time.",
        ) from None


def topics_of(wiring: Wiring, entries: Iterable[PositionEntry]) -> list[str]:
    """Returns the existing topics that the pipeline publishes to, according to its settings and position history."""
    never = set(own_topics(wiring.kafka))
    noted = {topic for entry in entries for topic in entry.offsets}
    matches = topic_matcher({*wiring.specs, *noted}, wiring.settings.topics.template, never)
    existing = ClusterObserver(wiring.kafka).look().topics
    return [topic for topic in existing if topic not in never and matches(topic)]


def find_position(options: KafkaOptions, topics: Iterable[str], event: str) -> str | None:
    """Returns the position in the record of this event; reads topics until it is found."""
    wanted, own = event.encode(), options.pipeline.encode()
    for topic in topics:
        with closing(read_topic(options, topic)) as messages:
            for message in messages:
                headers: Any = message.headers() or []
                others = any(name == PIPELINE_HEADER and value != own for name, value in headers)
                if (ID, wanted) in headers and not others:
                    position = next((value.decode() for name, value in headers if name == POSITION), "")
                    # A record replayed from the outbox may lack its original position.
                    if position and not position.startswith(f"{NO_POSITION}:"):
                        return position
    return None
