"""Where events stood in the log, and when they were committed, as their first records tell: what a table has forgotten.

Topics are read once, and what they say goes to a temporary file: memory stays flat. An event whose record is gone has
no place in the log any more; it is named by its number in the reading of the table. So is one whose record cannot be
told from another pipeline's: records of earlier versions do not say which pipeline published them, and ids that are
counted from 1 are the same in many tables.
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
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.state.rewind_marker import HEADER

MOST = 1_000_000
"""Events of a plan for which topics are looked through; for more, that would take longer than the replay."""
MARGIN_MS = 3_600_000
"""How much earlier than the first row its record is looked for: clocks differ."""
BATCH = 5000
FORGOTTEN = "table"

Original = tuple[str, bool, str, bytes, str, int]
"""Id, whether it names this pipeline, type, key, place, time of the commit (ms)."""


class OriginalRecords:
    """The places of events: `fill` reads them, `namer` gives them back to rows."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", check_same_thread=False)  # an empty name: a temporary file, gone with us
        self._file.execute(
            "CREATE TABLE places (id TEXT, own BOOLEAN, type TEXT, key BLOB, place TEXT, ms INTEGER, "
            "PRIMARY KEY (id, own, type, key, place)) WITHOUT ROWID"
        )

    def fill(self, options: KafkaOptions, topics: Iterable[str], since_ms: int | None) -> None:
        for topic in topics:
            batch: list[Original] = []
            first_ms = since_ms - MARGIN_MS if since_ms else None
            with closing(read_topic(options, topic, since_ms=first_ms)) as messages:
                for message in messages:
                    headers: Any = message.headers() or []
                    said = {name: value.decode(errors="replace") for name, value in headers if value is not None}
                    whose = said.get(PIPELINE_HEADER)
                    if whose in (None, options.pipeline) and HEADER not in said and "id" in said and "position" in said:
                        when, key = said.get("timestamp", ""), message.key() or b""
                        at_ms = int(when) if when.isdecimal() else 0
                        batch.append(
                            (said["id"], whose is not None, said.get("type", ""), key, said["position"], at_ms)
                        )
                        if len(batch) >= BATCH:
                            self._add(batch)
            self._add(batch)

    def namer(self, layout: Layout) -> Callable[[Row], Row]:
        """A function that gives a row of a table the place and the time that it had in the log, if they are known."""

        def named(row: Row) -> Row:
            try:
                place, at_ms = self._of(layout.read(row))
            except Rejected:
                place, at_ms = "", 0
            place = place or f"{FORGOTTEN}:{row.position.rpartition(':')[2].removeprefix('t')}"
            return row._replace(position=place, committed_ms=at_ms or row.committed_ms)

        return named

    def close(self) -> None:
        self._file.close()

    def _of(self, event: OutboxEvent) -> tuple[str, int]:
        try:
            found = self._file.execute(
                "SELECT own, type, key, place, ms FROM places WHERE id = ? ORDER BY own DESC", (event.id,)
            ).fetchall()
        except sqlite3.Error as error:
            raise _unkept(error) from None
        if found and found[0][0]:
            found = [each for each in found if each[0]]
            return str(found[0][3]), int(found[0][4])
        # The key may be that of another column, by the topic's rule.
        keys = {event.key or b"", *(value.encode() if isinstance(value, str) else value for _, value in event.extra)}
        alike = {(str(place), int(ms)) for _, kind, key, place, ms in found if kind == event.type and key in keys}
        return alike.pop() if len(alike) == 1 else ("", 0)

    def _add(self, batch: list[Original]) -> None:
        try:
            # The first of several: a redrive's comes later, and has the same place.
            self._file.executemany("INSERT OR IGNORE INTO places VALUES (?, ?, ?, ?, ?, ?)", batch)
        except sqlite3.Error as error:
            raise _unkept(error) from None
        batch.clear()


def _unkept(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the positions of events cannot be kept in a temporary file: {error}",
        remedy="See that the folder for temporary files (TMPDIR) has room: about 100 bytes for each record.",
    )
