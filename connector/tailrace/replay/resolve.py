"""From a point that a person named to a position that a pipeline can start from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from tailrace.dlq.reader import DeadLetterReader
from tailrace.errors import ConfigError
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver, topic_matcher
from tailrace.positions.base import Position
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.replay.points import EventId, Point
from tailrace.replay.source_log import SourceLog
from tailrace.state.position_history import PositionEntry
from tailrace.worker.wiring import Wiring, own_topics

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
    reader = DeadLetterReader(options)
    wanted, own = event.encode(), options.pipeline.encode()
    for topic in topics:
        with closing(reader.scan(topic, reader.spans_of(topic))) as messages:
            for message in messages:
                headers: Any = message.headers() or []
                others = any(name == PIPELINE_HEADER and value != own for name, value in headers)
                if (ID, wanted) in headers and not others:
                    place = next((value.decode() for name, value in headers if name == POSITION), "")
                    # One that was published again from the outbox may not know its own.
                    if place and not place.startswith(FROM_TABLE):
                        return place
    return None
