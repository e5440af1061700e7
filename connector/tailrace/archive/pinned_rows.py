"""Rows that must stay in the outbox: their event is an open dead letter, or waits behind a parked key.

A dead letter may store only a hash of its payload, and a waiting event may still be dead-lettered, so the row may be
the only copy. A row that cannot be decoded has no id in its dead letter, and may have been changed since. While one
such dead letter is open, all rows that cannot be decoded stay.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tailrace.dlq import requests
from tailrace.dlq.parked_keys import waiting_event, waiting_topic
from tailrace.dlq.reader import DeadLetterReader
from tailrace.errors import ArchiveError, Rejected
from tailrace.event import Row
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import read_topic
from tailrace.pipeline.processor import EventProcessor
from tailrace.temporary_table import DiskSet


class PinnedRows:
    """The open and waiting events at the time of creation. Create it after reading what the pipeline has passed."""

    def __init__(self, kafka: KafkaOptions, processor: EventProcessor) -> None:
        self._layout = processor.layout
        self._names = DiskSet(no_room)
        # Waiting events first: one that is released and rejected meanwhile is then found among the dead letters.
        self._names.add(name.encode() for name in waiting_ids(kafka))
        self._unreadable = False
        self._names.add(name.encode() for name in self._open(kafka))

    def __contains__(self, row: Row) -> bool:
        try:
            return self._layout.read(row).id.encode() in self._names
        except Rejected:
            return self._unreadable

    def close(self) -> None:
        self._names.close()

    def _open(self, kafka: KafkaOptions) -> Iterator[str]:
        """Reads to the very end, also behind an open transaction, because a missed dead letter would not be
        pinned.
        """
        reader = DeadLetterReader(kafka)
        ranges = reader.ranges(include_open=True)
        marked = reader.resolved_ids()
        with closing(reader.dead_letters(ranges)) as letters:
            for letter in letters:
                if letter in marked:
                    continue
                if letter.event_id is None:
                    self._unreadable = True
                else:
                    yield letter.event_id


def waiting_ids(kafka: KafkaOptions) -> Iterator[str]:
    """Yields all events that ever waited for currently parked keys; released ones are only pinned longer."""
    if not requests.parking_state(kafka, final=True).keys:
        return
    with closing(read_topic(kafka, waiting_topic(kafka), include_open=True)) as messages:
        for message in messages:
            headers: Any = message.headers()
            yield waiting_event(headers, message.value() or b"").id


def no_room(error: sqlite3.Error) -> ArchiveError:
    return ArchiveError(
        f"row names cannot be stored in a temporary file: {error}",
        remedy="Make sure that the folder for temporary files (TMPDIR) has room, then run it again.",
    )
