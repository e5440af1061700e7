"""Finds the original position and commit time of events on the topics, because a table does not store them.

Topics are read once into a temporary file, so memory stays flat. If the record of an event is gone, the event is
identified by its number in the table read. The same holds if its record could belong to another pipeline: records of
earlier versions do not name their pipeline, and ids counted from 1 occur in many tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from tailrace.errors import Rejected, SourceError
from tailrace.event import OutboxEvent, Row
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import read_topic
from tailrace.outbox.layouts import Layout
from tailrace.positions.archive import NO_POSITION
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.state.rewind_marker import HEADER
from tailrace.temporary_table import TemporaryTable

MOST = 1_000_000
"""Above this number of events the topics are not searched, because that would take longer than the replay."""
MARGIN_MS = 3_600_000
"""How far before the first row its record is searched, since clocks differ."""
BATCH = 5000

Original = tuple[str, bool, str, bytes, str, int]
"""Id, whether the record names this pipeline, type, key, position, commit time (ms)."""


class OriginalRecords:
    """Stores the original positions of events: `fill` reads them, `positioner` gives them to rows."""

    def __init__(self) -> None:
        # The first record counts; a redrive comes later and has the same position.
        self._records = TemporaryTable(
            "id TEXT, own BOOLEAN, type TEXT, key BLOB, position TEXT, ms INTEGER, "
            "PRIMARY KEY (id, own, type, key, position)",
            _no_room,
        )

    def fill(self, options: KafkaOptions, topics: Iterable[str], since_ms: int | None) -> None:
        for topic in topics:
            batch: list[Original] = []
            first_ms = since_ms - MARGIN_MS if since_ms else None
            with closing(read_topic(options, topic, since_ms=first_ms)) as messages:
                for message in messages:
                    headers: Any = message.headers() or []
                    values = {name: value.decode(errors="replace") for name, value in headers if value is not None}
                    pipeline = values.get(PIPELINE_HEADER)
                    if (
                        pipeline in (None, options.pipeline)
                        and HEADER not in values
                        and "id" in values
                        and "position" in values
                    ):
                        when, key = values.get("timestamp", ""), message.key() or b""
                        at_ms = int(when) if when.isdecimal() else 0
                        batch.append(
                            (
                                values["id"],
                                pipeline is not None,
                                values.get("type", ""),
                                key,
                                values["position"],
                                at_ms,
                            )
                        )
                        if len(batch) >= BATCH:
                            self._records.add(batch)
                            batch.clear()
            self._records.add(batch)

    def positioner(self, layout: Layout) -> Callable[[Row], Row]:
        """Returns a function that gives a row of a table its original position and time, if they are known."""

        def named(row: Row) -> Row:
            try:
                position, at_ms = self._of(layout.read(row))
            except Rejected:
                position, at_ms = "", 0
            position = position or f"{NO_POSITION}:{row.position.rpartition(':')[2].removeprefix('t')}"
            return row._replace(position=position, committed_ms=at_ms or row.committed_ms)

        return named

    def close(self) -> None:
        self._records.close()

    def _of(self, event: OutboxEvent) -> tuple[str, int]:
        found = self._records.select(
            "SELECT own, type, key, position, ms FROM rows WHERE id = ? ORDER BY own DESC", event.id
        )
        if found and found[0][0]:
            return str(found[0][3]), int(found[0][4])
        # The topic's rule may use another column as the key.
        keys = {event.key or b"", *(value.encode() if isinstance(value, str) else value for _, value in event.extra)}
        alike = {(str(at), int(ms)) for _, kind, key, at, ms in found if kind == event.type and key in keys}
        return alike.pop() if len(alike) == 1 else ("", 0)


def _no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the positions of events cannot be stored in a temporary file: {error}",
        remedy="Make sure that the folder for temporary files (TMPDIR) has room: about 100 bytes per record.",
    )
