"""Every event that Kafka holds of a pipeline, by id: on its topics, among its dead letters, behind parked keys.

Ids go to a temporary file, so memory stays flat. An id alone does not make an event: other pipelines may share a topic,
and count their rows from 1, too; so every payload that an id was published with is remembered by its print. Topics are
read from where the ledger says that it suffices; a row for which that does not hold (it was updated since, so that it
looks new) makes them be read from their beginning.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from tailrace.errors import Rejected, SourceError
from tailrace.event import Headers, OutboxEvent
from tailrace.kafka.keeping import keeping
from tailrace.kafka.ledger import Offsets, Reached
from tailrace.kafka.topics import topic_config
from tailrace.line import Line
from tailrace.recovery.evidence import Evidence
from tailrace.recovery.judging import SKEW_MS
from tailrace.verify.judging import EDITED, ORDER, UNKNOWN, WAITING
from tailrace.verify.kafka_side import KafkaSide
from tailrace.verify.outbox import Window
from tailrace.verify.prints import UNTOLD, Print, Prints
from tailrace.verify.verifying import topics_of
from tailrace.wire.cloudevents import CONTENT_TYPE, STRUCTURED
from tailrace.wire.formats import Format
from tailrace.wire.framing import VALUE_HEADER
from tailrace.worker.assembly import Assembly
from tailrace.worker.contracts import wire_format

PENDING = 10_000
CACHE_KBYTES = 65_536


class CertainPrints(Prints):
    """Says nothing of a record in another format than today's: its payload would seem to be another one."""

    def __init__(self, line: Line, format: Format) -> None:
        super().__init__(line, format)
        self._form = "structured" if format.cloudevents == "structured" else format.schema_id
        self._is_text = format.value == "json" and format.schema_id != "none"

    def of_record(self, value: bytes | None, headers: Headers) -> Print:
        if value is not None and _form_of(value, headers) != self._form:
            return UNTOLD
        if value is not None and self._is_text and not (value[-1:] == b"}" and b"{" in (value[:1], value[5:6])):
            return UNTOLD  # perhaps Avro
        return super().of_record(value, headers)


class Ids:
    """Names of events with the prints of their payloads; takes facts as a `KafkaSide` gives them."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", check_same_thread=False)  # an empty name: a temporary file, gone with us
        self._file.execute(f"PRAGMA cache_size = -{CACHE_KBYTES}")
        self._file.execute(
            "CREATE TABLE seen (name TEXT, frame INTEGER, digest INTEGER, PRIMARY KEY (name, frame, digest)) "
            "WITHOUT ROWID"
        )
        self._pending: list[tuple[str, int, int]] = []

    def add(self, stream: int, name: object, fact: tuple[Any, ...]) -> None:
        if stream == ORDER:
            return
        # What a person changed for a redrive, or what waits, is compared with nothing.
        told = stream != WAITING and not fact[3] & EDITED
        frame, digest = (fact[1], fact[2]) if told else UNTOLD
        self._pending.append((_storable(str(name)), frame, digest))
        if len(self._pending) >= PENDING:
            self._write()

    def clear(self, stream: int) -> None:
        """What was seen once stays seen: a letter that is marked meanwhile, an event that waits no longer."""

    def find(self, name: str) -> list[Print]:
        """One for each payload that was published under the name."""
        self._write()
        try:
            found = self._file.execute("SELECT frame, digest FROM seen WHERE name = ?", (_storable(name),)).fetchall()
        except sqlite3.Error as error:
            raise _no_room(error) from None
        return [Print(*each) for each in found]

    def __len__(self) -> int:
        self._write()
        return int(self._file.execute("SELECT count(DISTINCT name) FROM seen").fetchone()[0])

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

    def __init__(
        self,
        assembly: Assembly,
        line: Line,
        evidence: Evidence,
        reached: Mapping[str, Reached] | None = None,
    ) -> None:
        """`reached` are the topics that the pipeline has written to, whatever its rules say today, and how far."""
        self._assembly = assembly
        self._reached = dict(reached or {})
        self._written = set(self._reached)
        self._known = evidence.offsets
        # What was made anew holds only what was published since.
        remade = [each.since_ms + SKEW_MS for each in self._reached.values() if each.since_ms]
        self._gone_until: float = max(remade, default=0)
        self._prints = CertainPrints(line, wire_format(assembly.settings))
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
        if self._written - side.existing(lambda topic: topic in self._written).keys():
            self._gone_until = inf

    def suffices(self, created_ms: int | None) -> bool:
        """Whether the event of a row of that time would have been seen, had it been published and kept."""
        return self.whole or (created_ms is not None and created_ms >= self._from_ms)

    def deepen(self) -> None:
        """Reads the topics from their beginning, from now on."""
        self._from_ms = 0
        self._side = self._begin({})
        self.read()

    def find(self, name: str) -> list[Print]:
        return self._ids.find(name)

    @property
    def kept_since(self) -> float:
        """Since when an event would be there, had it been published or set aside; 0 for always.

        By all topics: rules change, and a row may have gone to another one than it would today.
        """
        return max(self._letters_since, self._gone_until, *self._side.kept_since.values())

    def differs(self, event: OutboxEvent, seen: Sequence[Print]) -> bool:
        """Whether all the payloads that were published are certainly others."""
        try:
            to = self._assembly.route(event)
        except Rejected:
            to = None
        now = self._prints.of_row(event, to)
        return all(now.frame == each.frame != UNKNOWN and now.digest != each.digest for each in seen)

    def close(self) -> None:
        self._ids.close()

    def _begin(self, offsets: Offsets) -> KafkaSide:
        side = KafkaSide(self._assembly.kafka, self._prints, lambda _: None, Window(), self._ids)
        for topic in self._written:
            side.number(topic)
        for topic, reached in self._reached.items():
            side.expect(topic, reached.ends)
        for topic, ends in self._known.items():
            side.expect(topic, ends)
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


def _form_of(value: bytes, headers: Headers) -> str:
    """How it was written: with the id of a schema in a header or before it, as a structured CloudEvent, or plain."""
    said = dict(headers)
    if VALUE_HEADER in said:
        return "header"
    if said.get(CONTENT_TYPE) in (STRUCTURED, STRUCTURED.encode()):
        return "structured"
    return "prefix" if value[:1] == b"\0" else "none"


def _storable(name: str) -> str:
    """A text that is not quite UTF-8 cannot be stored as one."""
    return name.encode("utf-8", "backslashreplace").decode()


def _no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the ids of published events cannot be kept in a temporary file: {error}",
        remedy="See that the folder for temporary files (TMPDIR) has room: about 100 bytes for each event.",
    )
