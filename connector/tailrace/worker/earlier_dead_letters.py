"""Earlier dead letters of events that a replay or a rewound pipeline publishes again: one dead letter per event.

An event that cannot be published gets no second dead letter: an open one stays open, and one that was redriven or
discarded stays resolved. If an event with an open dead letter is published, its dead letter is resolved as `replayed`
in the transaction of its record, so that no redrive publishes the event again. Such an event was never published
before, so its record gets the header of a redrive instead of that of a replay, which consumers may ignore; unless an
earlier replay wrote the dead letter.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import closing
from typing import NamedTuple

from tailrace.dlq import resolutions
from tailrace.dlq.dead_letter import FIRST, DeadLetter, DeadLetterId
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.resolutions import Resolution
from tailrace.event import OutboxEvent, Record, Row
from tailrace.kafka.client import KafkaOptions
from tailrace.pipeline.batch import Batch
from tailrace.pipeline.processor import EventProcessor
from tailrace.state.rewind_marker import HEADER


class _EarlierDeadLetter(NamedTuple):
    """The parts of a dead letter that are kept in memory."""

    id: DeadLetterId
    type: str | None
    key: bytes | None
    position: str
    is_open: bool
    has_waiting: bool
    """Later events of its key wait for it: only the pipeline may resolve it."""
    fingerprint: str | None
    of_replay: bool
    """Written by a replay: its event was published before."""


class EarlierDeadLetters:
    """The dead letters of a pipeline when a replay begins. Used by the thread that prepares and submits batches."""

    def __init__(self, options: KafkaOptions, replay_id: str, *, by_position: bool) -> None:
        """`by_position`: rows are read from the log again, with the positions that their dead letters name."""
        self._options = options
        self._by_position = by_position
        self._replay_id = replay_id
        self._by_name: defaultdict[str, list[_EarlierDeadLetter]] = defaultdict(list)
        self._resolutions: list[Record] = []
        self._left_out: list[Record] = []
        self._submitted = 0
        self.already_dead_lettered = 0
        """Events that failed and have a dead letter already, without those of the last batch."""

    def read(self) -> bool:
        """Reads dead letters and resolutions; returns whether there are any. Call it when others are fenced."""
        reader = DeadLetterReader(self._options)
        ranges = reader.ranges(include_open=True)
        resolved = reader.resolved_ids(final=True)
        with closing(reader.dead_letters(ranges)) as letters:
            for letter in letters:
                self._by_name[_name(letter)].append(
                    _EarlierDeadLetter(
                        letter.id,
                        letter.type,
                        letter.key,
                        letter.position,
                        letter not in resolved,
                        FIRST in letter.details,
                        letter.fingerprint,
                        HEADER in letter.details,
                    )
                )
        return bool(self._by_name)

    def decorated(self, processor: EventProcessor) -> EventProcessor:
        """Returns a processor that records which events with an earlier dead letter are published or fail again."""

        def published(record: Record, event: OutboxEvent) -> Record:
            found = self._of(event.id, event.type, event.key, event.position)
            unresolved = [letter for letter in found if letter.is_open and not letter.has_waiting]
            if not unresolved:
                return record
            self._resolutions += [self._resolution(letter, record.topic) for letter in unresolved]
            is_first = not all(letter.of_replay for letter in unresolved)
            headers = [each for each in record.headers if each[0] != HEADER] if is_first else record.headers
            return record._replace(headers=[*headers, ("tailrace.redriven", str(unresolved[0].id))])

        def failed(record: Record, _: Row) -> Record:
            letter = DeadLetter(DeadLetterId(0, 0), 0, record.key, record.value or b"", record.headers)
            if self._of(_name(letter), letter.type, letter.key, letter.position):
                self._left_out.append(record)
            return record

        return processor.decorated(published, failed)

    def amend(self, batch: Batch) -> None:
        """Removes dead letters that exist already from the batch, and adds resolutions of published events."""
        self.finish()
        if self._left_out:
            left_out = {id(record) for record in self._left_out}
            kept = [record for record in batch.records if id(record) not in left_out]
            self._submitted = len(batch.records) - len(kept)
            batch.records = kept
            batch.other_records -= self._submitted  # they count as dead letters, without records
        # Their topic is not added to those of the batch: it is compacted, which a topic of a replay must not be.
        batch.records += self._resolutions
        batch.other_records += len(self._resolutions)
        self._left_out, self._resolutions = [], []

    def finish(self) -> None:
        """Counts the last batch, which is committed: at the end, or when the next batch is submitted."""
        self.already_dead_lettered += self._submitted
        self._submitted = 0

    def _of(self, name: str, type_: str | None, key: bytes | None, position: str) -> list[_EarlierDeadLetter]:
        """Returns the dead letters of an event. Rows of a table have no position: their type and key must match, as an
        id may have been used twice.
        """
        return [
            each
            for each in self._by_name.get(name, ())
            if each.position == position or (not self._by_position and (each.type, each.key) == (type_, key))
        ]

    def _resolution(self, letter: _EarlierDeadLetter, topic: str) -> Record:
        now = time.time_ns() // 1_000_000
        resolution = Resolution(
            "replayed",
            now,
            f"replay {self._replay_id}",
            topic=topic,
            position=letter.position,
            fingerprint=letter.fingerprint,
        )
        return resolutions.record(self._options, letter.id, resolution)


def _name(letter: DeadLetter) -> str:
    """Returns the event's id, or the hash of a row that cannot be read."""
    return letter.event_id or f"row {letter.details.get('tailrace.payload.sha256', '')}"
