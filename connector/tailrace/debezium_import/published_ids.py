"""Which events of a part of the log are on their topics: looked up by topic, key and event id.

Topics are read from the first record that could belong to the earliest of these events, to the end that they have then,
committed records only. Memory stays flat: the ids are in a temporary file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime
from hashlib import blake2b
from typing import Any

from tailrace.errors import SourceError
from tailrace.event import OutboxEvent
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange, RangeReader
from tailrace.temporary_table import TemporaryTable

SKEW_MS = 3_600_000
"""How far the clocks of database, Debezium and brokers may differ."""
PENDING = 5000


class PublishedIds:
    """The ids on the topics since a time; a topic that is not read yet is read when it is first asked for."""

    def __init__(self, options: KafkaOptions, since_ms: int | None) -> None:
        """None reads topics from their beginning."""
        self._since_ms = since_ms
        self._reader = RangeReader(options, "debezium")
        self._ends: dict[str, dict[int, int]] = {}
        self._table = TemporaryTable("topic TEXT, id BLOB, key BLOB, PRIMARY KEY (topic, id, key)", _no_room)
        self.records = 0

    def __enter__(self) -> PublishedIds:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._table.close()

    def contains(self, topic: str, event_id: str, key: bytes | None) -> bool:
        if topic not in self._ends:
            self._read(topic)
        found = self._table.select(
            "SELECT 1 FROM rows WHERE topic = ? AND id = ? AND key = ?", topic, event_id.encode(), digest(key)
        )
        return bool(found)

    def read(self, topics: Iterable[str]) -> None:
        """Reads topics that are certain to be asked for. Waits for their open transactions."""
        for topic in topics:
            self._read(topic)

    def refresh(self) -> bool:
        """Reads what was written meanwhile; returns whether there was anything."""
        before = self.records
        for topic in list(self._ends):
            self._read(topic)
        return self.records > before

    def _read(self, topic: str) -> None:
        known = self._ends.setdefault(topic, {})
        # The end is the high watermark: a transaction of a killed Debezium must end first, one way or the other.
        bounds = self._reader.bounds(topic, since_ms=None if known else self._since_ms, include_open=True)
        ranges = {
            number: OffsetRange(max(known.get(number, 0), range_.start), range_.end)
            for number, range_ in bounds.items()
        }
        pending: list[tuple[Any, ...]] = []
        with closing(self._reader.records(topic, ranges)) as messages:
            for message in messages:
                headers: Any = message.headers() or []
                event_id = next((value for name, value in headers if name == "id" and value is not None), None)
                if event_id is None:
                    continue
                pending.append((topic, event_id, digest(message.key())))
                if len(pending) >= PENDING:
                    self._add(pending)
        self._add(pending)
        known.update({number: range_.end for number, range_ in bounds.items()})

    def _add(self, pending: list[tuple[Any, ...]]) -> None:
        self._table.add(pending)
        self.records += len(pending)
        pending.clear()


def digest(key: bytes | None) -> bytes:
    return b"" if key is None else blake2b(key, digest_size=16).digest()


def record_time(event: OutboxEvent, timestamp: str | None) -> int | None:
    """Returns the earliest timestamp that Debezium's record of an event can have; None if that is not known.

    It is the time of Debezium's reading, or of the column that the router takes the timestamp from.
    """
    if timestamp is None:
        return event.committed_ms - SKEW_MS
    text = next((value for name, value in event.extra if name == timestamp), None)
    if text is None:
        return None
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    try:
        written = datetime.fromisoformat(shown)
        at_ms = int(written.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    # A time without a zone may be meant in any.
    zone_ms = 0 if written.tzinfo is not None else 24 * SKEW_MS
    return min(at_ms - zone_ms, event.committed_ms) - SKEW_MS


def _no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the ids of published events cannot be stored in a temporary file: {error}",
        remedy="Make sure that the folder for temporary files (TMPDIR) has room: about 100 bytes per event.",
    )
