"""Every event that Kafka holds of a pipeline, by id: on its topics, among its dead letters, behind parked keys.

Ids go to a temporary file, so memory stays flat. Topics are read from where the ledger says that it suffices; a row for
which that does not hold (it was updated since, so that it looks new) makes them be read from their beginning.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from typing import Any

from tailrace.errors import Rejected, SourceError
from tailrace.event import OutboxEvent
from tailrace.kafka.keeping import keeping
from tailrace.kafka.ledger import Offsets
from tailrace.kafka.topics import topic_config
from tailrace.line import Line
from tailrace.recovery.evidence import Evidence
from tailrace.verify.judging import EDITED, ORDER, PUBLISHED, UNKNOWN
from tailrace.verify.kafka_side import KafkaSide
from tailrace.verify.outbox import Window
from tailrace.verify.prints import UNTOLD, Print, Prints
from tailrace.verify.verifying import topics_of
from tailrace.worker.assembly import Assembly
from tailrace.worker.contracts import wire_format

PENDING = 10_000
CACHE_KBYTES = 65_536


class Ids:
    """Names of events with the print of their payload; takes facts as a `KafkaSide` gives them."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", check_same_thread=False)  # an empty name: a temporary file, gone with us
        self._file.execute(f"PRAGMA cache_size = -{CACHE_KBYTES}")
        self._file.execute("CREATE TABLE seen (name TEXT PRIMARY KEY, frame INTEGER, digest INTEGER) WITHOUT ROWID")
        self._pending: list[tuple[str, int, int]] = []

    def add(self, stream: int, name: object, fact: tuple[Any, ...]) -> None:
        if stream == ORDER:
            return
        # What a person changed for a redrive, or what waits, is compared with nothing.
        alike = stream == PUBLISHED and not fact[3] & EDITED
        frame, digest = (fact[1], fact[2]) if alike else UNTOLD
        self._pending.append((_storable(str(name)), frame, digest))
        if len(self._pending) >= PENDING:
            self._write()

    def clear(self, stream: int) -> None:
        """What was seen once stays seen: a letter that is marked meanwhile, an event that waits no longer."""

    def find(self, name: str) -> Print | None:
        self._write()
        try:
            found = self._file.execute("SELECT frame, digest FROM seen WHERE name = ?", (_storable(name),)).fetchone()
        except sqlite3.Error as error:
            raise _no_room(error) from None
        return None if found is None else Print(*found)

    def __len__(self) -> int:
        self._write()
        return int(self._file.execute("SELECT count(*) FROM seen").fetchone()[0])

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        if not self._pending:
            return
        try:
            self._file.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", self._pending)
        except sqlite3.Error as error:
            raise _no_room(error) from None
        self._pending.clear()


class Seen:
    """What Kafka holds by now: `read` again adds what came meanwhile."""

    def __init__(self, assembly: Assembly, line: Line, evidence: Evidence, written: Iterable[str] = ()) -> None:
        """`written` are topics that the pipeline is known to have written to, whatever its rules say today."""
        self._assembly = assembly
        self._written = list(written)
        self._prints = Prints(line, wire_format(assembly.settings))
        self._ids = Ids()
        self._from_ms = evidence.from_ms
        self._letters_since = 0.0
        self._side = self._begin(evidence.offsets)

    @property
    def whole(self) -> bool:
        """Whether topics are read from their beginning."""
        return not self._from_ms

    @property
    def compacted(self) -> set[str]:
        return self._side.compacted

    @property
    def events(self) -> int:
        return len(self._ids)

    def read(self) -> None:
        side = self._side
        # What waits is asked for first: released meanwhile, it is on its topic by then. The same holds for letters.
        side.read_waiting()
        side.read_letters()
        side.read(topics_of(self._assembly, side), to_the_end=True)
        self._letters_since = self._letters_kept()

    def suffices(self, created_ms: int | None) -> bool:
        """Whether the event of a row of that time would have been seen, had it been published and kept."""
        return self.whole or (created_ms is not None and created_ms >= self._from_ms)

    def deepen(self) -> None:
        """Reads the topics from their beginning, from now on."""
        self._from_ms = 0
        self._side = self._begin({})
        self.read()

    def find(self, name: str) -> Print | None:
        return self._ids.find(name)

    def kept_since(self, topic: str | None) -> float:
        """Since when an event would be there, had it been published or set aside; 0 for always."""
        return max(self._side.kept_since.get(topic or "", 0), self._letters_since)

    def differs(self, event: OutboxEvent, seen: Print) -> bool:
        """Whether the payload that was published is certainly another one."""
        try:
            now = self._prints.of_row(event, self._assembly.route(event))
        except Rejected:
            return False
        return UNKNOWN not in (now.frame, seen.frame) and now.frame == seen.frame and now.digest != seen.digest

    def close(self) -> None:
        self._ids.close()

    def _begin(self, offsets: Offsets) -> KafkaSide:
        side = KafkaSide(self._assembly.kafka, self._prints, lambda _: None, Window(), self._ids)
        for topic in self._written:
            side.number(topic)
        for topic, starts in offsets.items():
            side.begin_at(topic, starts)
        return side

    def _letters_kept(self) -> float:
        """Letters are kept for so long from when they were written, whatever the age of their events."""
        topic, admin = self._assembly.kafka.dead_letter_topic, self._assembly.admin()
        partitions = self._side.existing(lambda name: name == topic).get(topic, 0)
        if not any(keeping(admin, topic, partitions).starts.values() if partitions else ()):
            return 0
        kept_ms = int(topic_config(admin, topic).get("retention.ms", "-1"))
        return 0 if kept_ms < 0 else time.time_ns() // 1_000_000 - kept_ms


def _storable(name: str) -> str:
    """A text that is not quite UTF-8 cannot be stored as one."""
    return name.encode("utf-8", "backslashreplace").decode()


def _no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the ids of published events cannot be kept in a temporary file: {error}",
        remedy="See that the folder for temporary files (TMPDIR) has room: about 100 bytes for each event.",
    )
