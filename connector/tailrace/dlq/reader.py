"""Reads dead letters and their resolutions: committed records only, up to the end the topics have now.

Memory stays flat however many dead letters there are: they are returned one by one, and only offsets and hashes of
resolutions are kept. Nothing here fences, commits, joins a group or creates a topic.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from tailrace.dlq.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterId
from tailrace.dlq.resolutions import Resolution, ResolvedIds, dead_letter_id_of, resolutions_topic
from tailrace.errors import DeadLetterMissing, KafkaUnavailable, TopicMissing
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange, RangeReader, Ranges
from tailrace.kafka.tail import TailedRecord


@dataclass(slots=True)
class OpenDeadLetters:
    """The number of open dead letters by reason. `more`: there are others, which were not counted."""

    by_reason: Counter[str] = field(default_factory=Counter)
    more: bool = False

    @property
    def total(self) -> int:
        return self.by_reason.total()

    def to_json(self) -> dict[str, Any]:
        return {"open": self.total, "more": self.more, "by_reason": dict((+self.by_reason).most_common())}


class DeadLetterReader:
    """Reads the dead letters of one pipeline, or those of the consumers that share a topic."""

    def __init__(self, options: KafkaOptions, *, of_consumers: bool = False) -> None:
        self._options = options
        self._of_consumers = of_consumers

    def ranges(self, since_ms: int | None = None, *, include_open: bool = False) -> Ranges:
        """The offsets that the topic holds now, from the first dead letter of `since_ms` on; empty without a topic."""
        with RangeReader(self._options, "dlq") as reader:
            return reader.ranges(self._options.dead_letter_topic, since_ms=since_ms, include_open=include_open)

    def dead_letters(self, ranges: Ranges, *, copies: bool = False) -> Generator[DeadLetter, None, None]:
        """Our own dead letters within `spans`, oldest first in each partition. Others may share the topic.

        One may have been written more than once (`DeadLetter.fingerprint`): returns only the first, unless `copies`.
        """
        seen: set[int] = set()
        with RangeReader(self._options, "dlq") as reader:
            for message in reader.records(self._options.dead_letter_topic, ranges):
                letter = dead_letter_of(message)
                if letter is None or not self._is_ours(letter):
                    continue
                if not copies and letter.fingerprint is not None:
                    if hash(letter.fingerprint) in seen:
                        continue
                    seen.add(hash(letter.fingerprint))
                yield letter

    def open(
        self, wanted: DeadLetterFilter, ranges: Ranges, resolved: ResolvedIds
    ) -> Generator[DeadLetter, None, None]:
        """The dead letters that match and have no resolution."""
        with closing(self.dead_letters(ranges)) as letters:
            yield from (letter for letter in letters if wanted.matches(letter) and letter not in resolved)

    def fetch(self, wanted: DeadLetterId) -> DeadLetter:
        """One dead letter by its id; DeadLetterMissing if there is none."""
        held = self.ranges().get(wanted.partition, OffsetRange(0, 0))
        if held.start <= wanted.offset < held.end:
            with closing(
                self.dead_letters({wanted.partition: OffsetRange(wanted.offset, wanted.offset + 1)})
            ) as letters:
                for letter in letters:
                    return letter
        first, last = DeadLetterId(wanted.partition, held.start), DeadLetterId(wanted.partition, held.end - 1)
        owner = "a consumer" if self._of_consumers else self._options.pipeline
        there = f"The topic holds {first} to {last}." if held.end > held.start else "The topic is empty."
        raise DeadLetterMissing(
            f"there is no dead letter {wanted} of {owner} on {self._options.dead_letter_topic}",
            why=f"{there} Retention deletes older ones, and not every offset is a dead letter.",
            remedy="See `tailrace dlq list`.",
        )

    def near(self, wanted: Collection[DeadLetterId]) -> Generator[DeadLetter, None, None]:
        """Those of some dead letters of one partition that exist, in order. Reads from the first to the last."""
        first, last = min(wanted), max(wanted)
        held = self.ranges().get(first.partition, OffsetRange(0, 0))
        span = OffsetRange(max(first.offset, held.start), min(last.offset + 1, held.end))
        if span.start < span.end:
            with closing(self.dead_letters({first.partition: span})) as letters:
                yield from (letter for letter in letters if letter.id in wanted)

    def resolved_ids(self, *, final: bool = False, must_exist: bool = False) -> ResolvedIds:
        """Which dead letters are resolved. `final` waits for open transactions.

        With `must_exist`, raises KafkaUnavailable if the broker does not know the topic, as just after its start:
        all resolved dead letters would count as open.
        """
        found = ResolvedIds()
        for letter, resolution in self._read_resolutions(final=final, must_exist=must_exist):
            found.note(letter, resolution)
        return found

    def resolutions(self, letters: Iterable[DeadLetter]) -> dict[DeadLetterId, Resolution]:
        """The resolutions of some dead letters, or of copies of them."""
        asked = {letter.id: letter for letter in letters}
        fingerprints = {letter.fingerprint for letter in asked.values()} - {None}
        latest: dict[DeadLetterId, Resolution] = {}
        for name, resolution in self._read_resolutions():
            latest.pop(name, None)
            if resolution is not None and (name in asked or resolution.fingerprint in fingerprints):
                latest[name] = resolution
        of_copies: dict[str | None, Resolution] = {
            each.fingerprint: each for each in latest.values() if each.fingerprint
        }
        found: dict[DeadLetterId, Resolution] = {}
        for letter in asked.values():
            resolution = latest.get(letter.id)
            resolution = (
                resolution if resolution is not None and resolution.is_of(letter) else of_copies.get(letter.fingerprint)
            )
            if resolution is not None:
                found[letter.id] = resolution
        return found

    def count(self, limit: int, seconds: float) -> OpenDeadLetters:
        """Counts open dead letters by reason, up to `limit` and for at most `seconds`."""
        deadline = time.monotonic() + seconds
        counted, resolved = OpenDeadLetters(), ResolvedIds()
        if not (ranges := self.ranges()):
            return counted
        with closing(self._read_resolutions()) as marks, closing(self.dead_letters(ranges)) as letters:
            for each, resolution in marks:
                resolved.note(each, resolution)
                if time.monotonic() > deadline:
                    counted.more = True
                    return counted
            for letter in letters:
                if counted.total >= limit or time.monotonic() > deadline:
                    counted.more = True
                    break
                counted.by_reason[letter.reason] += letter not in resolved
        return counted

    def _is_ours(self, letter: DeadLetter) -> bool:
        """Pipelines and consumers are separate: a redrive of one kind does not fence the other."""
        if self._of_consumers or letter.consumer is not None:
            return self._of_consumers and letter.consumer is not None
        return letter.details.get("tailrace.pipeline", self._options.pipeline) == self._options.pipeline

    def _read_resolutions(
        self, *, final: bool = False, must_exist: bool = False
    ) -> Generator[tuple[DeadLetterId, Resolution | None], None, None]:
        topic = resolutions_topic(self._options)
        with RangeReader(self._options, "dlq") as reader:
            try:
                ranges = reader.ranges(topic, include_open=final, must_exist=must_exist)
            except TopicMissing:
                raise unknown_topic(topic) from None
            for message in reader.records(topic, ranges):
                letter, value = dead_letter_id_of(message.key()), message.value()
                if letter is not None:
                    yield letter, None if value is None else Resolution.parse(value)


def unknown_topic(topic: str) -> KafkaUnavailable:
    return KafkaUnavailable(
        f"a broker does not know {topic}, which exists",
        why="The broker has just started, or the topic has just been created.",
        remedy="Tailrace retries by itself.",
    )


def dead_letter_of(message: Message) -> DeadLetter | None:
    """The dead letter in a record; None without a value, which no dead letter of ours has."""
    found: Any = message  # the driver types its accessors wrongly
    if found.value() is None:
        return None
    return DeadLetter(
        DeadLetterId(found.partition(), found.offset()),
        found.timestamp()[1],
        found.key(),
        found.value(),
        list(found.headers() or []),
    )


def dead_letter_of_tail(seen: TailedRecord) -> DeadLetter:
    """A dead letter to show; the headers of a tailed record are text already."""
    return DeadLetter(
        DeadLetterId(seen.partition, seen.offset),
        seen.timestamp_ms,
        seen.key,
        seen.value or b"",
        list(seen.headers.items()),
    )
