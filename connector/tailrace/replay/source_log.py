"""What a rewind needs of a pipeline's log, whatever the database: how far back it reaches, and points as positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

from tailrace.errors import ConfigError, OutOfReach
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import read_topic
from tailrace.kafka.tail import ClusterObserver, topic_matcher
from tailrace.positions.base import Position
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.replay.points import EventId, Point
from tailrace.sources.mongo.options import MongoOptions
from tailrace.state.position_history import PositionEntry
from tailrace.worker.wiring import Wiring, own_topics


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


ID, POSITION = "id", "position"
"""Headers of every record of a pipeline."""
FROM_TABLE = "table:"


def resolve(wiring: Wiring, log: SourceLog, entries: Sequence[PositionEntry], point: Point) -> Position:
    """ConfigError for an event that is nowhere; OutOfReach, with the nearest points, for what the log has no more."""
    if not isinstance(point, EventId):
        return log.at(point)
    place = place_of(wiring.kafka, topics_of(wiring, entries), point.id)
    if place is None:
        raise ConfigError(
            f"no record of the pipeline's topics has the id {point.id}",
            why="It was never published, was set aside, or is deleted by retention.",
            remedy="Name the point otherwise, such as by its time.",
        )
    try:
        return log.at_place(place)
    except ValueError:
        raise ConfigError(
            f"the record of {point.id} stands at {place}, which is no place in this log",
            why="It is another pipeline's, or of a database that this pipeline read before.",
            remedy="Name the point otherwise, such as by its time.",
        ) from None


def topics_of(wiring: Wiring, entries: Iterable[PositionEntry]) -> list[str]:
    """Where the pipeline publishes, as far as settings and ledger tell; those that exist."""
    never = set(own_topics(wiring.kafka))
    noted = {topic for entry in entries for topic in entry.offsets}
    matches = topic_matcher({*wiring.specs, *noted}, wiring.settings.topics.template, never)
    existing = ClusterObserver(wiring.kafka).look().topics
    return [topic for topic in existing if topic not in never and matches(topic)]


def place_of(options: KafkaOptions, topics: Iterable[str], event: str) -> str | None:
    """The position that the record of this event tells; reads topics until it is found."""
    wanted, own = event.encode(), options.pipeline.encode()
    for topic in topics:
        with closing(read_topic(options, topic)) as messages:
            for message in messages:
                headers: Any = message.headers() or []
                others = any(name == PIPELINE_HEADER and value != own for name, value in headers)
                if (ID, wanted) in headers and not others:
                    place = next((value.decode() for name, value in headers if name == POSITION), "")
                    # One that was published again from the outbox may not know its own.
                    if place and not place.startswith(FROM_TABLE):
                        return place
    return None
