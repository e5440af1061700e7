"""Events whose rows must stay: their dead letter is open, or they wait behind a parked key.

The topic deletes dead letters by age, and then nothing on Kafka shows that an event was never published. So each run
stores which events have an open dead letter. If dead letters were deleted before a run has seen them, rows from before
the oldest remaining one may be such events, and stay.
"""

from __future__ import annotations

import time
from contextlib import closing
from enum import StrEnum

from tailrace.archive.pinned_rows import no_room, waiting_ids
from tailrace.dlq.reader import DeadLetterReader
from tailrace.errors import Rejected
from tailrace.event import Row
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import RangeReader
from tailrace.outbox.layouts import Layout
from tailrace.retention.state import RetentionState
from tailrace.temporary_table import DiskSet

UNREADABLE = ""
"""Stands for the events of rows that could not be decoded, whose dead letters have no id."""


class Pinned(StrEnum):
    """Why a row must stay."""

    DEAD_LETTERED = "dead_lettered"
    PARKED = "parked"
    UNCERTAIN = "dead_letters_expired"


class PinnedEvents:
    """The pinned events at the time of creation. Create it after reading what the pipeline has passed."""

    def __init__(self, kafka: KafkaOptions, layout: Layout, state: RetentionState) -> None:
        self._layout = layout
        self._state = state
        self._topic = kafka.dead_letter_topic
        self._waiting = DiskSet(no_room)
        self._open: set[str] = set()
        closed: set[str] = set()
        # Waiting events first: one that is released and rejected meanwhile is then found among the dead letters.
        self._waiting.add(name.encode() for name in waiting_ids(kafka))
        with RangeReader(kafka, "retention") as reader:
            bounds = reader.bounds(self._topic, include_open=True)
        letters = DeadLetterReader(kafka)
        resolved = letters.resolved_ids()
        oldest_ms: int | None = None
        ranges = {number: bound for number, bound in bounds.items() if bound.start < bound.end}
        with closing(letters.dead_letters(ranges)) as found:
            for letter in found:
                oldest_ms = letter.recorded_ms if oldest_ms is None else min(oldest_ms, letter.recorded_ms)
                (closed if letter in resolved else self._open).add(letter.event_id or UNREADABLE)
        self._closed = closed - self._open
        self._ends = {number: bound.end for number, bound in bounds.items()}
        seen = state.offsets(self._topic)
        self.uncertain_before_ms = 0
        """Dead letters of rows from before then may be gone; 0 if none is."""
        if any(bound.start > seen.get(number, 0) for number, bound in bounds.items()):
            self.uncertain_before_ms = time.time_ns() // 1_000_000 if oldest_ms is None else oldest_ms
        self._open |= set(state.kept_events()) - self._closed

    def accept_uncertain(self) -> None:
        """Takes rows whose dead letter may be gone for published ones."""
        self.uncertain_before_ms = 0

    def remember(self) -> None:
        """Stores the open ones, unless that would hide that others are not known."""
        if not self.uncertain_before_ms:
            self._state.remember(self._topic, self._open, self._closed, self._ends)

    def why(self, row: Row, created_ms: int) -> Pinned | None:
        """Returns why the row must stay; None if it need not."""
        try:
            name = self._layout.read(row).id
        except Rejected:
            name = UNREADABLE
        if name in self._open:
            return Pinned.DEAD_LETTERED
        if name.encode() in self._waiting:
            return Pinned.PARKED
        return Pinned.UNCERTAIN if created_ms < self.uncertain_before_ms else None

    def close(self) -> None:
        self._waiting.close()
