"""The dead letters of the events that a replay, or a pipeline that was set back, publishes again: one per event.

An event that a replay cannot publish gets no second letter if it has one: an open letter stays as it is, and one that
was redriven or discarded is not opened again. An event that a replay does publish, and whose letter is open, is
redriven by it: the letter is marked `replayed` in the transaction of its record, so that no redrive publishes the event
again. It was never published before, so its record bears the header of a redrive, and not that of a replay, for which
consumers may pass it over; unless it was an earlier replay that wrote the letter.
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


class _Known(NamedTuple):
    """What is remembered of a letter."""

    letter: DeadLetterId
    type: str | None
    key: bytes | None
    position: str
    is_open: bool
    has_waiting: bool
    """Others wait behind it: only the pipeline may deal with it."""
    fingerprint: str | None
    of_replay: bool
    """A replay wrote it: its event was published before."""


class KnownLetters:
    """The letters of a pipeline when a replay begins. Belongs to the thread that prepares and submits batches."""

    def __init__(self, options: KafkaOptions, replay_id: str, *, by_position: bool) -> None:
        """`by_position`: what is read again has the position in the log that its letter names."""
        self._options = options
        self._by_position = by_position
        self._replay_id = replay_id
        self._by_name: defaultdict[str, list[_Known]] = defaultdict(list)
        self._done: list[Record] = []
        self._left_out: list[Record] = []
        self._submitted = 0
        self.referred = 0
        """Events that could not be published and have a letter already; those of the last batch are not counted yet."""

    def read(self) -> bool:
        """Reads letters and marks, once nobody else applies this replay; returns whether there are any."""
        reader = DeadLetterReader(self._options)
        spans = reader.spans(include_open=True)
        marked = reader.resolved_ids(final=True)
        with closing(reader.dead_letters(spans)) as letters:
            for letter in letters:
                self._by_name[_name(letter)].append(
                    _Known(
                        letter.id,
                        letter.type,
                        letter.key,
                        letter.position,
                        letter not in marked,
                        FIRST in letter.details,
                        letter.fingerprint,
                        HEADER in letter.details,
                    )
                )
        return bool(self._by_name)

    def decorated(self, processor: EventProcessor) -> EventProcessor:
        """Returns the processor that notes what becomes of events that have a dead letter."""

        def record(made: Record, event: OutboxEvent) -> Record:
            found = self._of(event.id, event.type, event.key, event.position)
            opened = [known for known in found if known.is_open and not known.has_waiting]
            if not opened:
                return made
            self._done += [self._mark(known, made.topic) for known in opened]
            is_first = not all(known.of_replay for known in opened)
            headers = [each for each in made.headers if each[0] != HEADER] if is_first else made.headers
            return made._replace(headers=[*headers, ("tailrace.redriven", str(opened[0].letter))])

        def dead_letter(made: Record, _: Row) -> Record:
            letter = DeadLetter(DeadLetterId(0, 0), 0, made.key, made.value or b"", made.headers)
            if self._of(_name(letter), letter.type, letter.key, letter.position):
                self._left_out.append(made)
            return made

        return processor.decorated(record, dead_letter)

    def settle(self, batch: Batch) -> None:
        """Leaves out of a batch the letters that are there already, and adds the marks of those that are done."""
        self.finish()
        if self._left_out:
            left_out = {id(record) for record in self._left_out}
            kept = [record for record in batch.records if id(record) not in left_out]
            self._submitted = len(batch.records) - len(kept)
            batch.records = kept
            batch.other_records -= self._submitted  # they count as dead letters, without a record
        # Not among the topics of the batch: that one is compacted, which no topic of a replay may be.
        batch.records += self._done
        batch.other_records += len(self._done)
        self._left_out, self._done = [], []

    def finish(self) -> None:
        """The last batch is committed, as it is when the next one is submitted."""
        self.referred += self._submitted
        self._submitted = 0

    def _of(self, name: str, type_: str | None, key: bytes | None, position: str) -> list[_Known]:
        """The letters of an event. A table does not know positions; ids alone may have been given out twice."""
        return [
            each
            for each in self._by_name.get(name, ())
            if each.position == position or (not self._by_position and (each.type, each.key) == (type_, key))
        ]

    def _mark(self, known: _Known, topic: str) -> Record:
        now = time.time_ns() // 1_000_000
        mark = Resolution(
            "replayed",
            now,
            f"replay {self._replay_id}",
            topic=topic,
            position=known.position,
            fingerprint=known.fingerprint,
        )
        return resolutions.record(self._options, known.letter, mark)


def _name(letter: DeadLetter) -> str:
    """The event's id; of a row that cannot be read, the hash of it."""
    return letter.event_id or f"row {letter.details.get('tailrace.payload.sha256', '')}"
