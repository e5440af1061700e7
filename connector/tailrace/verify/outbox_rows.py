"""Rows of an outbox, put by for the comparison.

What a row means is told by the pipeline's own line. For most tables that can be told once for each kind of row: where
an event goes depends on its type and aggregate alone, and its payload is published as it stands. Such rows are read by
their id and payload, as soon as the line has read one of their kind; all others go through the line one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple
from zlib import crc32

from tailrace.errors import Rejected
from tailrace.event import Columns, OutboxEvent, Route, Row
from tailrace.outbox.layouts import BYTEA, INSIDE, ColumnMap
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.plain import chosen_key
from tailrace.sources.postgres.copy_rows import Fields
from tailrace.verify import fingerprints
from tailrace.verify.backend import OutboxReader, OutboxRow
from tailrace.verify.compare import UNKNOWN, WRITTEN
from tailrace.verify.kafka_records import row_name
from tailrace.verify.postgres_outbox import BEFORE, PostgresOutboxReader
from tailrace.verify.spill import SpillFile
from tailrace.verify.value_fingerprint import DIGEST_BYTES, NOTHING, Fingerprints, of_payload
from tailrace.worker.wiring import Wiring

AT_ONCE = 1000
UNSAID_LABEL = bytes(4)
KNOWN_KINDS = 4096
"""How many kinds are remembered; no table may fill memory."""


class ColumnIndexes(NamedTuple):
    """Where things stand in what COPY brings of a row; `kind` picks what the line's answer depends on.

    `keys_at` has the columns that may be a record's key: under None the event's own.
    """

    id_at: int
    payload_at: int
    keys_at: dict[str | None, int]
    kind: Callable[[Fields], object]


class Destination(NamedTuple):
    """The topic's number, or UNKNOWN for what goes nowhere, and the column of the key, if not the event's own.

    `type_label` is the checksum of the event's type.
    """

    topic: int
    key_column: str | None = None
    type_label: bytes = UNSAID_LABEL


class Rows:
    """Puts rows by, each as `seals.judge_bucket` has them."""

    def __init__(
        self, processor: EventProcessor, prints: Fingerprints, number: Callable[[str], int], spool: SpillFile
    ) -> None:
        """`number` gives the number of a topic."""
        self._processor = processor
        self._prints = prints
        self._number = number
        self._spool = spool
        self._buckets = spool.open(WRITTEN)

    def read(self, outbox: OutboxReader, by_kind: ColumnMap | None) -> None:
        """All rows of the outbox. `by_kind` is the table's map, if its rows may be read by their kinds."""
        if by_kind is not None and isinstance(outbox, PostgresOutboxReader) and outbox.sends_utf8:
            plan = plan_of(outbox.begin(), by_kind)
            if plan is not None:
                self._read_kinds(outbox, plan)
                for large in outbox.large():
                    self.put(large)
                    self._spool.added(1)
                return
        pending = 0
        for row in outbox.rows():
            self.put(row)
            pending += 1
            if pending >= AT_ONCE:
                self._spool.added(pending)
                pending = 0
        self._spool.added(pending)

    def put(self, found: OutboxRow) -> Destination | None:
        """By the line. Where it goes; None if the row cannot be read."""
        row, transaction, created_ms = found
        known = key = None
        labels = fingerprints.NO_LABELS
        try:
            event = self._processor.layout.read(row)
        except Rejected as rejected:
            name, print_, topic = unreadable_name(self._processor, row, rejected), of_payload(None), UNKNOWN
        else:
            try:
                to = self._processor.route(event)
                known = Destination(self._number(to.topic), to.key_column, fingerprints.label(event.type.encode()))
                labels = self._key_label(event, to) + known.type_label
            except Rejected:
                to, known = None, Destination(UNKNOWN)
            name, print_, topic, key = event.id, self._prints.of_row(event, to), known.topic, _key(event, to)
        seal = fingerprints.of_row(name, print_, labels)
        bucket = self._buckets[crc32(seal[fingerprints.HEAD :]) % len(self._buckets)]
        bucket.extend((seal, transaction, created_ms, topic, key))
        return known

    def _key_label(self, event: OutboxEvent, to: Route) -> bytes:
        """Of the key that the record must have."""
        try:
            if self._prints.keys_are_plain:
                return fingerprints.label(event.key if to.key_column is None else chosen_key(event, to.key_column))
            made = self._processor.make_record(event, to, self._processor.validate(event, to.topic))
        except Rejected:
            return UNSAID_LABEL
        return fingerprints.label(self._prints.of_key(made.key))

    def _read_kinds(self, outbox: PostgresOutboxReader, plan: ColumnIndexes) -> None:
        id_at, payload_at, keys_at, kind_of = plan
        buckets, count, plain = self._buckets, len(self._buckets), fingerprints.PLAIN
        kinds: dict[object, tuple[int, int, bytes, bytes]] = {}
        # An event may have no key; with a column for it, one that is NULL makes no record.
        without = {True: fingerprints.label(None), False: UNSAID_LABEL}
        pending = 0
        for found in outbox.copied():
            kind, event, payload = kind_of(found), found[id_at], found[payload_at]
            known = kinds.get(kind)
            if known is not None and event is not None and event.isascii():
                topic, key_at, type_label, no_key = known
                key = found[key_at]
                digest = NOTHING if payload is None else blake2b(payload, digest_size=DIGEST_BYTES).digest()
                # As `seals.label` has it; a call for every row would be felt.
                key_label = no_key if key is None else crc32(key, 1).to_bytes(4, "little")
                seal = plain + digest + key_label + type_label + event
                buckets[crc32(event) % count].extend((seal, found[0], found[1], topic, key))
            else:
                goes = self.put(outbox.row(found))
                if goes is not None and goes.topic != UNKNOWN and goes.key_column in keys_at:
                    if len(kinds) >= KNOWN_KINDS:
                        kinds.clear()
                    no_key = without[goes.key_column is None]
                    kinds[kind] = goes.topic, keys_at[goes.key_column], goes.type_label, no_key
            pending += 1
            if pending >= AT_ONCE:
                self._spool.added(pending)
                pending = 0
        self._spool.added(pending)


def _key(event: OutboxEvent, to: Route | None) -> bytes | None:
    """The record's key, before it is written in a format; None if there is none."""
    if to is None or to.key_column is None:
        return event.key
    try:
        return chosen_key(event, to.key_column)
    except Rejected:
        return None


def may_go_by_kind(wiring: Wiring, mapped: ColumnMap) -> bool:
    """Whether the line's answer depends on type, aggregate and version alone, and the payload goes out as it stands."""
    rules = [spec.rule for spec in wiring.specs.values() if spec.rule is not None]
    looked_at = {condition.field for rule in rules for condition in rule.conditions}
    by_name = looked_at <= {"type", "aggregate"} and "{stream}" not in (wiring.settings.topics.template or "")
    return by_name and INSIDE not in (mapped.version or "")


def plan_of(columns: Columns, mapped: ColumnMap) -> ColumnIndexes | None:
    """None for a table that has to be read by the line: it is not as the map has it, or has bytes as text."""
    at: dict[str | None, int] = {column.name: number for number, column in enumerate(columns, start=BEFORE)}
    if any(name not in at for _, name in mapped.parts()) or any(column.type_oid == BYTEA for column in columns):
        return None
    kind = [at[name] for name in (mapped.type, mapped.aggregate, mapped.version) if name is not None]
    return ColumnIndexes(at[mapped.id], at[mapped.payload], at | {None: at[mapped.key]}, itemgetter(*kind))


def unreadable_name(processor: EventProcessor, row: Row, rejected: Rejected) -> str:
    """By the hash that the pipeline's own letter of this row has."""
    said = dict(processor.make_dead_letter(row, None, None, rejected).headers)
    return row_name(str(said["tailrace.payload.sha256"]))
