"""Reads the rows of an outbox and spills them for the comparison.

The pipeline's own processor decides what a row means. For most tables the result depends only on type and aggregate,
and the payload is published unchanged. Then the processor is asked once per kind of row, and all further rows of that
kind need only their id, key and payload. Other tables go through the processor row by row.
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
from tailrace.verify.backend import OutboxReader, OutboxRow
from tailrace.verify.dead_letters import row_name
from tailrace.verify.findings import UNKNOWN, WRITTEN
from tailrace.verify.fingerprints import (
    DIGEST_BYTES,
    HEAD,
    NO_CHECKSUM,
    NO_CHECKSUMS,
    NO_PAYLOAD,
    PLAIN,
    Fingerprinter,
    checksum,
    of_payload,
    pack_row,
)
from tailrace.verify.postgres_outbox import BEFORE, PostgresOutboxReader
from tailrace.verify.spill import SpillFile
from tailrace.worker.wiring import Wiring

AT_ONCE = 1000
KNOWN_KINDS = 4096
"""Limit of remembered kinds, so that no table fills the memory."""


class ColumnIndexes(NamedTuple):
    """The column indexes of a row in COPY output; `kind` picks the columns that the route depends on.

    `keys_at` has the columns that may be a record's key; None stands for the event's own key.
    """

    id_at: int
    payload_at: int
    keys_at: dict[str | None, int]
    kind: Callable[[Fields], object]


class Destination(NamedTuple):
    """The number of the topic (UNKNOWN if the event is not published) and the key column, if not the event's own.

    `type_checksum` is the checksum of the event's type.
    """

    topic: int
    key_column: str | None = None
    type_checksum: bytes = NO_CHECKSUM


class Rows:
    """Spills rows in the form that `compare.compare_bucket` reads."""

    def __init__(
        self, processor: EventProcessor, fingerprinter: Fingerprinter, number: Callable[[str], int], spill: SpillFile
    ) -> None:
        """`number` returns the number of a topic."""
        self._processor = processor
        self._fingerprinter = fingerprinter
        self._number = number
        self._spill = spill
        self._buckets = spill.open(WRITTEN)

    def read(self, outbox: OutboxReader, by_kind: ColumnMap | None) -> None:
        """Reads all rows. `by_kind` is the column map of the table if its rows may be read by kind."""
        if by_kind is not None and isinstance(outbox, PostgresOutboxReader) and outbox.sends_utf8:
            plan = plan_of(outbox.begin(), by_kind)
            if plan is not None:
                self._read_kinds(outbox, plan)
                for large in outbox.large():
                    self.put(large)
                    self._spill.added(1)
                return
        pending = 0
        for row in outbox.rows():
            self.put(row)
            pending += 1
            if pending >= AT_ONCE:
                self._spill.added(pending)
                pending = 0
        self._spill.added(pending)

    def put(self, found: OutboxRow) -> Destination | None:
        """Spills a row through the processor. Returns its destination, or None if the row cannot be decoded."""
        row, transaction, created_ms = found
        known = key = None
        checksums = NO_CHECKSUMS
        try:
            event = self._processor.layout.read(row)
        except Rejected as rejected:
            name, payload, topic = unreadable_name(self._processor, row, rejected), of_payload(None), UNKNOWN
        else:
            try:
                to = self._processor.route(event)
                known = Destination(self._number(to.topic), to.key_column, checksum(event.type.encode()))
                checksums = self._key_checksum(event, to) + known.type_checksum
            except Rejected:
                to, known = None, Destination(UNKNOWN)
            name, payload, topic, key = event.id, self._fingerprinter.of_row(event, to), known.topic, _key(event, to)
        packed = pack_row(name, payload, checksums)
        bucket = self._buckets[crc32(packed[HEAD.size :]) % len(self._buckets)]
        bucket.extend((packed, transaction, created_ms, topic, key))
        return known

    def _key_checksum(self, event: OutboxEvent, to: Route) -> bytes:
        """Returns the checksum of the key that the record must have."""
        try:
            if self._fingerprinter.keys_are_plain:
                return checksum(event.key if to.key_column is None else chosen_key(event, to.key_column))
            made = self._processor.make_record(event, to, self._processor.validate(event, to.topic))
        except Rejected:
            return NO_CHECKSUM
        return checksum(self._fingerprinter.of_key(made.key))

    def _read_kinds(self, outbox: PostgresOutboxReader, plan: ColumnIndexes) -> None:
        id_at, payload_at, keys_at, kind_of = plan
        buckets, count, plain = self._buckets, len(self._buckets), PLAIN
        kinds: dict[object, tuple[int, int, bytes, bytes]] = {}
        # An event may have no key. If a key column is configured, NULL in it means that no record is published.
        without = {True: checksum(None), False: NO_CHECKSUM}
        pending = 0
        for found in outbox.copied():
            kind, event, payload = kind_of(found), found[id_at], found[payload_at]
            known = kinds.get(kind)
            if known is not None and event is not None and event.isascii():
                topic, key_at, type_checksum, no_key = known
                key = found[key_at]
                digest = NO_PAYLOAD if payload is None else blake2b(payload, digest_size=DIGEST_BYTES).digest()
                # The same as `checksum`, inlined because a call per row is too slow.
                key_checksum = no_key if key is None else crc32(key, 1).to_bytes(4, "little")
                packed = plain + digest + key_checksum + type_checksum + event
                buckets[crc32(event) % count].extend((packed, found[0], found[1], topic, key))
            else:
                goes = self.put(outbox.row(found))
                if goes is not None and goes.topic != UNKNOWN and goes.key_column in keys_at:
                    if len(kinds) >= KNOWN_KINDS:
                        kinds.clear()
                    no_key = without[goes.key_column is None]
                    kinds[kind] = goes.topic, keys_at[goes.key_column], goes.type_checksum, no_key
            pending += 1
            if pending >= AT_ONCE:
                self._spill.added(pending)
                pending = 0
        self._spill.added(pending)


def _key(event: OutboxEvent, to: Route | None) -> bytes | None:
    """Returns the key of the record before it is encoded, or None."""
    if to is None or to.key_column is None:
        return event.key
    try:
        return chosen_key(event, to.key_column)
    except Rejected:
        return None


def may_go_by_kind(wiring: Wiring, mapped: ColumnMap) -> bool:
    """Returns whether the route depends on type, aggregate and version only, and the payload is published unchanged."""
    rules = [spec.rule for spec in wiring.specs.values() if spec.rule is not None]
    looked_at = {condition.field for rule in rules for condition in rule.conditions}
    by_name = looked_at <= {"type", "aggregate"} and "{stream}" not in (wiring.settings.topics.template or "")
    return by_name and INSIDE not in (mapped.version or "") + mapped.key


def plan_of(columns: Columns, mapped: ColumnMap) -> ColumnIndexes | None:
    """Returns None if the table must be read through the processor: columns are missing, or some are BYTEA."""
    at: dict[str | None, int] = {column.name: number for number, column in enumerate(columns, start=BEFORE)}
    if any(name not in at for _, name in mapped.parts()) or any(column.type_oid == BYTEA for column in columns):
        return None
    kind = [at[name] for name in (mapped.type, mapped.aggregate, mapped.version) if name is not None]
    return ColumnIndexes(at[mapped.id], at[mapped.payload], at | {None: at[mapped.key]}, itemgetter(*kind))


def unreadable_name(processor: EventProcessor, row: Row, rejected: Rejected) -> str:
    """Returns the name of a row that cannot be decoded: the hash that is in its dead letter as well."""
    said = dict(processor.make_dead_letter(row, None, None, rejected).headers)
    return row_name(str(said["tailrace.payload.sha256"]))


def event_name(processor: EventProcessor, row: Row) -> str:
    """Returns the id of a row's event; for a row that cannot be decoded, the name of its dead letter."""
    try:
        return processor.layout.read(row).id
    except Rejected as rejected:
        return unreadable_name(processor, row, rejected)
