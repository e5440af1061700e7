"""Everything that Kafka holds of a pipeline, by event id: records, dead letters, and events behind parked keys.

An id alone does not identify an event: other pipelines may share a topic and count their rows from 1 as well. So the
fingerprint of every payload and the owner of its record are stored with the id. Topics are read from the offset that
the position history proves to be sufficient. A row for which it is not (updated since, so that it looks new) causes
them to be read from their beginning.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import inf

from tailrace.errors import Rejected
from tailrace.event import Headers, OutboxEvent
from tailrace.kafka.topics import topic_config, topic_retention
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.cloudevents import CONTENT_TYPE, STRUCTURED
from tailrace.records.formats import RecordFormat
from tailrace.records.framing import VALUE_HEADER
from tailrace.records.plain import chosen_key
from tailrace.recovery.evidence import Evidence
from tailrace.recovery.id_index import IdIndex, OwnerRules, PublishedRecord, RecordOwner, identity
from tailrace.recovery.rules import SKEW_MS
from tailrace.state.position_history import Offsets, TopicEnds
from tailrace.verify.backend import Window
from tailrace.verify.findings import UNKNOWN
from tailrace.verify.fingerprints import UNCOMPARED, Fingerprint, Fingerprinter
from tailrace.verify.kafka_records import KafkaRecords
from tailrace.verify.verification import keys_without_dead_letter_note, topics_of
from tailrace.worker.pipeline_topics import KnownPipelines
from tailrace.worker.schemas import wire_format
from tailrace.worker.wiring import Wiring


class CertainFingerprinter(Fingerprinter):
    """Does not compare records in another format than today's, whose payload would always seem to differ."""

    def __init__(self, processor: EventProcessor, format: RecordFormat) -> None:
        super().__init__(processor, format)
        self._form = "structured" if format.cloudevents == "structured" else format.schema_id
        self._is_text = format.value == "json" and format.schema_id != "none"

    def of_record(self, value: bytes | None, headers: Headers) -> Fingerprint:
        if value is not None and _form_of(value, headers) != self._form:
            return UNCOMPARED
        if value is not None and self._is_text and not (value[-1:] == b"}" and b"{" in (value[:1], value[5:6])):
            return UNCOMPARED  # maybe Avro
        return super().of_record(value, headers)


class PublishedIndex:
    """An index of the events on Kafka; `read` adds those written meanwhile."""

    def __init__(
        self,
        wiring: Wiring,
        processor: EventProcessor,
        evidence: Evidence,
        reached: Mapping[str, TopicEnds] | None = None,
        known: KnownPipelines | None = None,
        owner_rules: OwnerRules | None = None,
    ) -> None:
        """`reached` are the topics that the pipeline has ever written to, and how far."""
        self._wiring = wiring
        self._known_topics = known or KnownPipelines()
        self._forgot_topics = known is not None and (known.is_empty or not known.is_complete)
        self._reached = dict(reached or {})
        self._written = set(self._reached)
        self._known = evidence.offsets
        # A topic that was created again holds only what was published since.
        remade = [each.since_ms + SKEW_MS for each in self._reached.values() if each.since_ms]
        self._gone_until: float = max(remade, default=0)
        self._fingerprinter = CertainFingerprinter(processor, wire_format(wiring.settings))
        self._compares_keys = wire_format(wiring.settings).key == "bytes"
        self._ids = IdIndex(owner_rules)
        self._from_ms = evidence.from_ms
        self._dead_letters_since = 0.0
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
        side.read_all(lambda: topics_of(self._wiring, side, self._known_topics), to_the_end=True)
        self._dead_letters_since = self._dead_letters_kept_since()
        if self._written - side.existing(lambda topic: topic in self._written).keys():
            self._gone_until = inf

    @property
    def keys_without_dead_letter(self) -> str:
        """A note about parked keys without a dead letter; empty if there are none."""
        return keys_without_dead_letter_note(self._side)

    def covers(self, created_ms: int | None) -> bool:
        """Returns whether the event of a row created at that time would have been read if it were on Kafka."""
        return self.whole or (created_ms is not None and created_ms >= self._from_ms)

    def read_from_beginning(self) -> None:
        """Reads the topics from their beginning from now on."""
        self._from_ms = 0
        self._side = self._begin({})
        self.read()

    def find(self, name: str, event: OutboxEvent | None) -> list[PublishedRecord]:
        """Returns what Kafka holds under the name of a row's event (`event` is None if it cannot be decoded).

        A record of another pipeline counts only if consumers could not distinguish it from this event.
        """
        found = self._ids.find(name)
        if all(each.owner != RecordOwner.OTHERS for each in found):
            return found
        own = [each for each in found if each.owner != RecordOwner.OTHERS]
        if event is None:
            return own
        now, mine, topic = self._expected(event)
        alike = [
            each
            for each in found
            if each.owner == RecordOwner.OTHERS
            and each.topic == topic
            and (each.identity == mine or not self._compares_keys)
            and not (now.frame == each.frame != UNKNOWN and now.digest != each.digest)
        ]
        return own + alike

    @property
    def kept_since(self) -> float:
        """The time since which a published or dead-lettered event is certainly still there; 0 for always.

        All topics count: rules change, so a row may have gone to another topic than today.
        """
        since = max(self._dead_letters_since, self._gone_until, *self._side.kept_since.values())
        # The earlier rules are not known. Events committed since the first record under today's rules went to these
        # topics.
        return max(since, self._ids.first_ms) if self._forgot_topics else since

    def differs(self, event: OutboxEvent, seen: Sequence[PublishedRecord]) -> bool:
        """Returns whether no record is this event as it was published."""
        now, mine, _ = self._expected(event)
        for each in seen:
            if each.owner in (RecordOwner.DOUBTFUL, RecordOwner.OTHERS):
                continue
            if now.frame == each.frame != UNKNOWN and now.digest != each.digest:
                continue
            if each.owner == RecordOwner.UNSAID and self._compares_keys and each.identity != mine:
                continue
            return False
        return True

    def _expected(self, event: OutboxEvent) -> tuple[Fingerprint, int, str]:
        """Returns the fingerprint of a row's event, its identity, and its topic today."""
        try:
            to = self._wiring.route(event)
            key = event.key if to.key_column is None else chosen_key(event, to.key_column)
        except Rejected:
            to, key = None, event.key
        return self._fingerprinter.of_row(event, to), identity(key, event.type), to.topic if to else ""

    def close(self) -> None:
        self._ids.close()

    def _begin(self, offsets: Offsets) -> KafkaRecords:
        side = KafkaRecords(self._wiring.kafka, self._fingerprinter, lambda _: None, Window(), self._ids)
        for topic in self._written:
            side.number(topic)
        for topic, reached in self._reached.items():
            side.expect(topic, reached.ends)
        for topic, ends in self._known.items():
            side.expect(topic, ends)
        for topic, starts in offsets.items():
            side.begin_at(topic, starts)
        return side

    def _dead_letters_kept_since(self) -> float:
        """Returns since when dead letters are kept; retention counts from when they were written."""
        topic, admin = self._wiring.kafka.dead_letter_topic, self._wiring.admin()
        partitions = self._side.existing(lambda name: name == topic).get(topic, 0)
        if not any(topic_retention(admin, topic, partitions).starts.values() if partitions else ()):
            return 0
        kept_ms = int(topic_config(admin, topic).get("retention.ms", "-1"))
        return 0 if kept_ms < 0 else time.time_ns() // 1_000_000 - kept_ms


def _form_of(value: bytes, headers: Headers) -> str:
    """Returns the format of a record: schema id in a header or as a prefix, structured CloudEvent, or plain."""
    said = dict(headers)
    if VALUE_HEADER in said:
        return "header"
    if said.get(CONTENT_TYPE) in (STRUCTURED, STRUCTURED.encode()):
        return "structured"
    return "prefix" if value[:1] == b"\0" else "none"
