"""Reads confirmations of events from a topic, from the offsets that a store keeps, and stores them there.

A confirmation has no time of arrival: without a time of its own it has the timestamp of its record, and of several
confirmations of an event the latest counts. So the schedule depends only on the records, not on when, how often or in
which order they are read. A record that is no confirmation is counted and skipped: nothing is deleted because of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from tailrace.errors import TopicMissing
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange, RangeReader

LAST_MS = 253_402_300_799_000
"""The end of the year 9999, the last time that all databases can store."""
SECONDS_UNTIL = 100_000_000_000
"""A larger number is a time in milliseconds: as seconds it would be in the year 5138."""


class Confirmation(NamedTuple):
    event_id: str
    confirmed_ms: int


class ConfirmationSchedule(Protocol):
    """Where confirmations are kept until their events are deleted; in the database of the events."""

    def offsets(self, topic: str) -> dict[int, int]:
        """Returns the next offset of each partition that was read."""

    def schedule(
        self, topic: str, confirmations: Sequence[Confirmation], offsets: Mapping[int, int], *, restart: bool
    ) -> int:
        """Stores confirmations and next offsets in one transaction; returns how many can name an event at all.

        Of several confirmations of an event it keeps the latest. Offsets never go back, unless `restart`.
        """


@dataclass(frozen=True, slots=True)
class ConfirmationFormat:
    """Where a record names its events and the time: paths in the JSON value; an empty `id` means the key."""

    id: str = ""
    time: str = ""

    def parse(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> list[Confirmation]:
        """Raises ValueError if the record is not a confirmation. A record without value is a tombstone."""
        if value is None:
            raise ValueError("the record has no value")
        content = json.loads(value) if self.id or self.time else None
        found: object = key.decode() if key is not None and not self.id else None
        if self.id:
            found = _at(content, self.id)
        named = found if isinstance(found, list) else [found]
        confirmed_ms = timestamp_ms
        if self.time and (given := _at(content, self.time)) is not None:
            confirmed_ms = _milliseconds(given)
        if not 0 <= confirmed_ms <= LAST_MS:
            raise ValueError("the time is out of range")
        return [Confirmation(_id(each), confirmed_ms) for each in named]


def _at(content: object, path: str) -> object:
    for name in path.split("."):
        content = content.get(name) if isinstance(content, dict) else None
    return content


def _id(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("the id of an event is missing, or not a text")
    value.encode()  # a lone surrogate is not a text either
    return value


def _milliseconds(value: object) -> int:
    if isinstance(value, str):
        when = datetime.fromisoformat(value)
        return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LAST_MS:
        raise ValueError("the time is neither a number nor a text")
    return round(value if value > SECONDS_UNTIL else value * 1000)


@dataclass(slots=True)
class ConfirmationsRead:
    """What was read: `rejected` by reason; `lost` offsets were deleted before they were read."""

    confirmations: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    notes: list[str] = field(default_factory=list)


def read_confirmations(
    kafka: KafkaOptions, topic: str, form: ConfirmationFormat, schedule: ConfirmationSchedule
) -> ConfirmationsRead:
    """Stores what the topic has beyond the stored offsets, batch by batch. It may be killed, or run twice at once."""
    result = ConfirmationsRead()
    with RangeReader(kafka, "retention") as reader:
        try:
            bounds = reader.bounds(topic, must_exist=True)
        except TopicMissing as error:
            raise TopicMissing(
                error.what,
                why="retention.confirmations.topic names it. Without it, no event is confirmed, and no row is deleted.",
                remedy="Create the topic, or correct the name. Nothing was changed.",
            ) from None
        known = schedule.offsets(topic)
        restart = any(known.get(number, 0) > bound.end for number, bound in bounds.items())
        if restart:
            result.notes.append(f"{topic} is shorter than before: it was created again, and is read from its beginning")
            known = {}
        ranges: dict[tuple[str, int], OffsetRange] = {}
        for number, bound in bounds.items():
            result.lost += max(0, bound.start - known[number]) if number in known else 0
            ranges[topic, number] = OffsetRange(max(bound.start, known.get(number, 0)), bound.end)
        if restart:
            schedule.schedule(topic, [], {number: range_.start for (_, number), range_ in ranges.items()}, restart=True)
        with closing(reader.batches(ranges)) as batches:
            for batch in batches:
                parsed = list(_parsed(batch, form, result))
                reached = {message.partition() or 0: (message.offset() or 0) + 1 for message in batch}
                named = schedule.schedule(topic, parsed, reached, restart=False)
                result.confirmations += named
                result.rejected["the id is none of this outbox"] += len(parsed) - named
    result.rejected += Counter()  # without zeros
    if result.lost:
        result.notes.append(
            f"{topic} has deleted {result.lost:,} records before they were read: events that only these confirmed "
            "stay in the outbox"
        )
    result.notes += [
        f"{count:,} records of {topic} are no confirmations: {why}" for why, count in result.rejected.items()
    ]
    return result


def _parsed(batch: Sequence[Any], form: ConfirmationFormat, result: ConfirmationsRead) -> Iterator[Confirmation]:
    for message in batch:
        try:
            yield from form.parse(message.key(), message.value(), message.timestamp()[1])
        except (ValueError, OverflowError) as error:
            kind = "the value is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            result.rejected["it is not UTF-8" if isinstance(error, UnicodeError) else kind] += 1
