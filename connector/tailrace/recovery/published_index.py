"""Every event that Kafka holds of a pipeline, by id: on its topics, among its dead letters, behind parked keys.

Ids go to a temporary file, so memory stays flat. An id alone does not make an event: other pipelines may share a topic,
and count their rows from 1, too; so every payload that an id was published with is remembered by its print, and whose
it is (`whose.py`). Topics are
read from where the ledger says that it suffices; a row for which that does not hold (it was updated since, so that it
looks new) makes them be read from their beginning.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from tailrace.errors import Rejected, SourceError
from tailrace.event import Headers, OutboxEvent
from tailrace.kafka.topic_retention import topic_retention
from tailrace.kafka.topics import topic_config
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.cloudevents import CONTENT_TYPE, STRUCTURED
from tailrace.records.formats import RecordFormat
from tailrace.records.framing import VALUE_HEADER
from tailrace.records.plain import chosen_key
from tailrace.recovery.evidence import Evidence
from tailrace.recovery.record_owner import UNKNOWN_IDENTITY, OwnerRules, RecordOwner, identity
from tailrace.recovery.rules import SKEW_MS
from tailrace.state.position_history import Offsets, TopicEnds
from tailrace.verify.backend import Window
from tailrace.verify.compare import AGAIN, EDITED, ORDER, PUBLISHED, UNKNOWN, WAITING
from tailrace.verify.kafka_records import KafkaRecords, RecordOrigin
from tailrace.verify.value_fingerprint import UNTOLD, Fingerprint, Fingerprints
from tailrace.verify.verification import lost_fronts_note, topics_of
from tailrace.worker.pipeline_topics import KnownPipelines
from tailrace.worker.schemas import wire_format
from tailrace.worker.wiring import Wiring

PENDING = 10_000
CACHE_KBYTES = 65_536


class CertainFingerprints(Fingerprints):
    """Says nothing of a record in another format than today's: its payload would seem to be another one."""

    def __init__(self, processor: EventProcessor, format: RecordFormat) -> None:
        super().__init__(processor, format)
        self._form = "structured" if format.cloudevents == "structured" else format.schema_id
        self._is_text = format.value == "json" and format.schema_id != "none"

    def of_record(self, value: bytes | None, headers: Headers) -> Fingerprint:
        if value is not None and _form_of(value, headers) != self._form:
            return UNTOLD
        if value is not None and self._is_text and not (value[-1:] == b"}" and b"{" in (value[:1], value[5:6])):
            return UNTOLD  # perhaps Avro
        return super().of_record(value, headers)


class PublishedRecord(NamedTuple):
    """Something that Kafka holds under an id. `identity` is of key and type, if they are known; a letter has no topic
    that would matter.
    """

    frame: int
    digest: int
    whose: int = RecordOwner.OWN
    identity: int = UNKNOWN_IDENTITY
    topic: str = ""


class IdIndex:
    """Names of events with what is known of them; takes facts as a `KafkaSide` gives them."""

    def __init__(self, ownership: OwnerRules | None = None) -> None:
        self._ownership = ownership or OwnerRules()
        self.first_ms: float = inf
        """The earliest commit of what this pipeline published for the first time, as far as records tell."""
        self._file = sqlite3.connect("", check_same_thread=False)  # an empty name: a temporary file, gone with us
        self._file.execute(f"PRAGMA cache_size = -{CACHE_KBYTES}")
        self._file.execute(
            "CREATE TABLE seen (name TEXT, frame INTEGER, digest INTEGER, whose INTEGER, identity INTEGER, topic TEXT, "
            "PRIMARY KEY (name, frame, digest, whose, identity, topic)) WITHOUT ROWID"
        )
        self._pending: list[tuple[str, int, int, int, int, str]] = []

    def add(self, stream: int, name: object, fact: tuple[Any, ...]) -> None:
        if stream == ORDER:
            return
        # What a person changed for a redrive, or what waits, is compared with nothing.
        told = stream != WAITING and not fact[3] & EDITED
        frame, digest = (fact[1], fact[2]) if told else UNTOLD
        found = PublishedRecord(frame, digest)
        if stream == PUBLISHED:
            origin: RecordOrigin = fact[6]
            whose = self._ownership.judge(str(name), fact[3], origin)
            if whose is None:
                return
            if whose <= RecordOwner.UNSAID and not fact[3] & AGAIN and origin.timestamp and origin.timestamp.isdigit():
                self.first_ms = min(self.first_ms, int(origin.timestamp))
            if whose is not RecordOwner.OWN:
                found = PublishedRecord(frame, digest, whose, identity(origin.key, origin.type), origin.topic)
        self._pending.append((_storable(str(name)), *found))
        if len(self._pending) >= PENDING:
            self._write()

    def clear(self, stream: int) -> None:
        """What was seen once stays seen: a letter that is marked meanwhile, an event that waits no longer."""

    def find(self, name: str) -> list[PublishedRecord]:
        """One for each payload that was published under the name, and whose it is."""
        self._write()
        wanted = "SELECT frame, digest, whose, identity, topic FROM seen WHERE name = ?"
        try:
            found = self._file.execute(wanted, (_storable(name),)).fetchall()
        except sqlite3.Error as error:
            raise _no_room(error) from None
        return [PublishedRecord(*each) for each in found]

    def __len__(self) -> int:
        self._write()
        return int(self._file.execute("SELECT count(DISTINCT name) FROM seen").fetchone()[0])

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        if not self._pending:
            return
        try:
            self._file.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?, ?, ?)", self._pending)
        except sqlite3.Error as error:
            raise _no_room(error) from None
        self._pending.clear()


class PublishedIndex:
    """What Kafka holds by now: `read` again adds what came meanwhile."""

    def __init__(
        self,
        wiring: Wiring,
        processor: EventProcessor,
        evidence: Evidence,
        reached: Mapping[str, TopicEnds] | None = None,
        known: KnownPipelines | None = None,
        ownership: OwnerRules | None = None,
    ) -> None:
        """`reached` are the topics that the pipeline has written to, whatever its rules say today, and how far."""
        self._wiring = wiring
        self._known_topics = known or KnownPipelines()
        self._forgot_topics = known is not None and (known.is_empty or not known.is_complete)
        self._reached = dict(reached or {})
        self._written = set(self._reached)
        self._known = evidence.offsets
        # What was made anew holds only what was published since.
        remade = [each.since_ms + SKEW_MS for each in self._reached.values() if each.since_ms]
        self._gone_until: float = max(remade, default=0)
        self._prints = CertainFingerprints(processor, wire_format(wiring.settings))
        self._compares_keys = wire_format(wiring.settings).key == "bytes"
        self._ids = IdIndex(ownership)
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
        side.read(topics_of(self._wiring, side, self._known_topics), to_the_end=True)
        self._letters_since = self._letters_kept()
        if self._written - side.existing(lambda topic: topic in self._written).keys():
            self._gone_until = inf

    @property
    def lost_fronts(self) -> str:
        """What to say about parked keys whose letter in front is gone; empty if there are none."""
        return lost_fronts_note(self._side)

    def suffices(self, created_ms: int | None) -> bool:
        """Whether the event of a row of that time would have been seen, had it been published and kept."""
        return self.whole or (created_ms is not None and created_ms >= self._from_ms)

    def deepen(self) -> None:
        """Reads the topics from their beginning, from now on."""
        self._from_ms = 0
        self._side = self._begin({})
        self.read()

    def find(self, name: str, event: OutboxEvent | None) -> list[PublishedRecord]:
        """What Kafka holds under the name of a row's event; None for a row that cannot be read.

        What another pipeline published counts only if consumers could not tell it from this event.
        """
        found = self._ids.find(name)
        if all(each.whose != RecordOwner.OTHERS for each in found):
            return found
        own = [each for each in found if each.whose != RecordOwner.OTHERS]
        if event is None:
            return own
        now, mine, topic = self._mine(event)
        alike = [
            each
            for each in found
            if each.whose == RecordOwner.OTHERS
            and each.topic == topic
            and (each.identity == mine or not self._compares_keys)
            and not (now.frame == each.frame != UNKNOWN and now.digest != each.digest)
        ]
        return own + alike

    @property
    def kept_since(self) -> float:
        """Since when an event would be there, had it been published or set aside; 0 for always.

        By all topics: rules change, and a row may have gone to another one than it would today.
        """
        since = max(self._letters_since, self._gone_until, *self._side.kept_since.values())
        # Rules that nobody remembers: what was committed since the first record under today's went there, too.
        return max(since, self._ids.first_ms) if self._forgot_topics else since

    def differs(self, event: OutboxEvent, seen: Sequence[PublishedRecord]) -> bool:
        """Whether none of it is this event as it was published, as far as that can be told."""
        now, mine, _ = self._mine(event)
        for each in seen:
            if each.whose in (RecordOwner.DOUBTFUL, RecordOwner.OTHERS):
                continue
            if now.frame == each.frame != UNKNOWN and now.digest != each.digest:
                continue
            if each.whose == RecordOwner.UNSAID and self._compares_keys and each.identity != mine:
                continue
            return False
        return True

    def _mine(self, event: OutboxEvent) -> tuple[Fingerprint, int, str]:
        """The print of a row's event, its identity, and its topic today."""
        try:
            to = self._wiring.route(event)
            key = event.key if to.key_column is None else chosen_key(event, to.key_column)
        except Rejected:
            to, key = None, event.key
        return self._prints.of_row(event, to), identity(key, event.type), to.topic if to else ""

    def close(self) -> None:
        self._ids.close()

    def _begin(self, offsets: Offsets) -> KafkaRecords:
        side = KafkaRecords(self._wiring.kafka, self._prints, lambda _: None, Window(), self._ids)
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
        topic, admin = self._wiring.kafka.dead_letter_topic, self._wiring.admin()
        partitions = self._side.existing(lambda name: name == topic).get(topic, 0)
        if not any(topic_retention(admin, topic, partitions).starts.values() if partitions else ()):
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
