"""Row -> OutboxEvent: which column of the outbox plays which part; for a document, which field.

A ColumnMap names the columns. A Layout compiles it against the columns the log announces and keeps that plan
for as long as it is handed the same `columns` object; a table may be altered in mid-stream, and the next row
then simply brings a new object. Documents differ from one to the next, so the last few plans are kept.
Payload and key bytes pass through untouched, bytea excepted: its text form is decoded. A table that lacks a mapped
column is the table's fault and stops the pipeline (LayoutMismatch); a row that cannot be read is that row's fault alone
(Rejected).
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import orjson

from tailrace.errors import LayoutMismatch, Reason, Rejected
from tailrace.event import JSONB, TEXT, UNREADABLE, Columns, Headers, OutboxEvent, Row, Undecodable

BYTEA = 17
PAYLOAD_TYPES = {BYTEA: "bytea", TEXT: "text", 114: "json", 1043: "varchar", JSONB: "jsonb"}
"""The types whose text form is the payload itself; a number or a timestamp would be a mapping mistake."""
FIRST_OWN_OID = 16_384
"""Postgres's own types have lower numbers."""
INSIDE = "#/"
"""`version: headers#/schema/version` is a place inside a JSON column."""
KNOWN_NAMES = 4096
"""How many type and aggregate names are remembered. Real systems have hundreds; no table may fill memory."""
MEMORABLE_BYTES = 256
"""Longer names are not remembered."""
NAME_BYTES = 1000
"""Of a type or an aggregate: an event with a longer one is set aside. Names are kept in memory and in addresses."""

_new_event = tuple.__new__
"""Builds the event without its constructor's argument handling: 0.2 µs instead of 0.4."""


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """The column that plays each part; None where the table has no such column."""

    id: str
    type: str
    aggregate: str | None
    key: str
    payload: str
    version: str | None = None
    timestamp: str | None = None
    subject: str | None = None
    stream: str | None = None

    def parts(self) -> list[tuple[str, str]]:
        """(part, column) for every part that is mapped."""
        named = [(part, getattr(self, part)) for part in self.__slots__]
        return [(part, column.partition(INSIDE)[0]) for part, column in named if column is not None]


DEBEZIUM = ColumnMap(id="id", type="type", aggregate="aggregatetype", key="aggregateid", payload="payload")
DOCUMENT = ColumnMap(
    id="event_id",
    type="event_type",
    aggregate="entity_type",
    key="partition_key",
    payload="payload",
    timestamp="created_at",
    stream="topic",
)
"""An outbox whose documents name their own topic and key, with the bookkeeping of a publisher that polls."""
POLLING = frozenset(
    {
        "_id", "status", "retry_count", "max_retries", "last_error", "last_error_at", "processing_started_at",
        "published_at", "locked_by", "locked_until",
    }
)  # fmt: skip
"""What a publisher that polls writes beside an event: no news for those who consume it."""
PLANS = 64
"""How many sets of columns are remembered; the documents of one service have a handful."""
WIDTH = 200
"""Wider ones are not remembered,"""
NAMES_CHARS = 16_384
"""nor those whose names have more characters together."""


def layout_map(layout: str, database: str) -> ColumnMap:
    """The map of a named layout. MongoDB gives every document an `_id`, and Debezium's own layout takes that one."""
    if layout == "document":
        return DOCUMENT
    return replace(DEBEZIUM, id="_id") if database == "mongo" else DEBEZIUM


def bookkeeping(layout: str) -> frozenset[str]:
    """Fields of the layout that are no part of the event."""
    return POLLING if layout == "document" else frozenset()


class _Plan(NamedTuple):
    """Where things stand in a row of certain columns."""

    pick: Callable[[tuple[bytes | None, ...]], tuple[bytes, bytes, bytes | None, bytes | None]]
    aggregate_at: int | None
    version_at: int | None
    version: Callable[[bytes], str | None]
    extra: list[tuple[str, int]]
    binary: set[str]
    keys_unique: bool


class Layout:
    """Reads rows by a ColumnMap. Belongs to one thread: it remembers the columns it saw last."""

    def __init__(self, column_map: ColumnMap, *, setting: str = "outbox.columns") -> None:
        """`setting` is where the user wrote the map; errors point there."""
        self._map = column_map
        self._setting = setting
        self._columns: Columns | None = None
        self._plan: _Plan
        self._plans: dict[Columns, _Plan] = {}
        self._names: dict[bytes, str] = {}

    def read(self, row: Row) -> OutboxEvent:
        """The event that `row` means. Raises Rejected for this row, LayoutMismatch for its table."""
        columns, values, place, committed_ms = row
        if columns is not self._columns:
            self._turn_to(row)
        pick, aggregate_at, version_at, version_of, further, binary, keys_unique = self._plan
        raw_id, raw_type, key, payload = pick(values)
        names = self._names
        try:
            # A missing name and a NULL both land in `_name`, off the usual path.
            type_name = names.get(raw_type) or self._name(raw_type, "type")
            aggregate = ""
            if aggregate_at is not None:
                raw = values[aggregate_at]
                if raw is not None:
                    aggregate = names.get(raw) or self._name(raw, "aggregate")
            version = None
            if version_at is not None:
                raw = values[version_at]
                version = None if raw is None else version_of(raw)
            event_id = raw_id.decode()
        except (UnicodeDecodeError, AttributeError):
            raise self._unreadable(row) from None
        extra: Headers = []
        for name, at in further:
            if (value := values[at]) is not None:
                extra.append((name, value))
        if binary:
            key, payload, extra = self._decode_binary(key, payload, extra, binary)
        parts = (event_id, type_name, aggregate, key, payload, version, place, committed_ms, extra, keys_unique)
        return _new_event(OutboxEvent, parts)

    def _turn_to(self, row: Row) -> None:
        """Makes the plan for the row's columns, or takes it up again. Changes nothing if it raises."""
        columns = row.columns
        if columns == UNREADABLE:
            raise Rejected(
                Reason.POISON_MESSAGE,
                (row.values[1] or b"").decode(errors="replace"),
                remedy="Have the service write a corrected one, then discard this letter.",
            )
        if isinstance(columns, Undecodable):
            raise undecodable(columns)
        plan = self._plans.get(columns)
        if plan is None:
            plan = self._compile(columns)
            if len(self._plans) >= PLANS:
                self._plans.clear()
            if len(columns) <= WIDTH and sum(len(column.name) for column in columns) <= NAMES_CHARS:
                self._plans[columns] = plan
        self._plan, self._columns = plan, columns

    def _compile(self, columns: Columns) -> _Plan:
        """Looks every mapped column up once; rows are then read by index."""
        at = {column.name: index for index, column in enumerate(columns)}
        for part, name in self._map.parts():
            if name not in at:
                raise self._missing(part, name, columns)
        mapped = self._map
        payload_type = columns[at[mapped.payload]].type_oid
        if payload_type not in PAYLOAD_TYPES:
            raise LayoutMismatch(
                f"column {mapped.payload!r} cannot hold payloads: {_type_named(payload_type)}",
                why=f"A payload is published byte for byte: {', '.join(PAYLOAD_TYPES.values())} can be.",
                remedy=f"Change the column's type, or name another column in {self._setting}.payload.",
            )
        version_column, inside, path = (mapped.version or "").partition(INSIDE)
        # No header of ours repeats what version, timestamp, subject and stream say: they travel as extra headers, too.
        consumed = {mapped.id, mapped.type, mapped.aggregate, mapped.key, mapped.payload}
        names = {mapped.id, mapped.type, mapped.aggregate}
        return _Plan(
            pick=itemgetter(at[mapped.id], at[mapped.type], at[mapped.key], at[mapped.payload]),
            aggregate_at=at[mapped.aggregate] if mapped.aggregate else None,
            version_at=at[version_column] if version_column else None,
            version=partial(_version_inside, path=path.split("/")) if inside else bytes.decode,
            extra=[(name, index) for name, index in at.items() if name not in consumed],
            binary={column.name for column in columns if column.type_oid == BYTEA} - names,
            keys_unique=payload_type == JSONB,
        )

    def _missing(self, part: str, name: str, columns: Columns) -> LayoutMismatch:
        present = ", ".join(column.name for column in columns) or "none"
        return LayoutMismatch(
            f"rows of the outbox have no column {name!r}",
            why=f"{self._setting}.{part} names it as the event's {part}; rows come with: {present}. The log leaves out "
            "generated columns, and those that are not in the publication's column list.",
            remedy=f"Add the column to the table or to that list, or name another in {self._setting}.{part}.",
        )

    def _name(self, raw: bytes | None, part: str) -> str:
        """Decodes a type or aggregate and remembers it, so that equal names are one object."""
        if not raw:
            # An empty aggregate is allowed: it only matters to a template that wants one.
            if part == "aggregate":
                return ""
            raise AttributeError(part)
        if len(raw) > NAME_BYTES:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"the {part} has {len(raw):,} bytes, more than the {NAME_BYTES:,} that a name may have",
                remedy=f"Have the service write a shorter {part}; further data belongs into the payload.",
            )
        name = raw.decode()
        if len(raw) <= MEMORABLE_BYTES:
            if len(self._names) >= KNOWN_NAMES:
                self._names.clear()
            self._names[raw] = name
        return name

    def _decode_binary(
        self, key: bytes | None, payload: bytes | None, extra: Headers, binary: set[str]
    ) -> tuple[bytes | None, bytes | None, Headers]:
        """The same with every bytea column turned from its text form into its bytes."""
        mapped = self._map
        if mapped.key in binary:
            key = _from_hex(key, mapped.key)
        if mapped.payload in binary:
            payload = _from_hex(payload, mapped.payload)
        decoded: Headers = [
            (name, _from_hex(value, name)) if name in binary and isinstance(value, bytes) else (name, value)
            for name, value in extra
        ]
        return key, payload, decoded

    def _unreadable(self, row: Row) -> Rejected:
        """Says which column stood in the way; only called when one did."""
        found = dict(zip((column.name for column in row.columns), row.values, strict=True))
        for part in ("id", "type"):
            name = getattr(self._map, part)
            if found[name] is None or (part == "type" and not found[name]):
                kind = "NULL" if found[name] is None else "empty"
                return Rejected(
                    Reason.POISON_MESSAGE,
                    f"column {name!r}, the event's {part}, is {kind}",
                    remedy=f"Have the service fill the column, or name another in {self._setting}.{part}.",
                )
        undecodable = ", ".join(name for _, name in self._map.parts() if not _is_utf8(found[name]))
        return Rejected(Reason.POISON_MESSAGE, f"not valid UTF-8, which the server was asked for: column {undecodable}")


def undecodable(columns: Undecodable) -> Rejected:
    return Rejected(
        Reason.POISON_MESSAGE,
        f"not valid text in {columns.encoding}, the encoding of the database: column {', '.join(columns.names)}",
        remedy="Have the service write the event again with valid text, then discard this letter; or redrive it with "
        "the columns corrected.",
    )


def _type_named(oid: int) -> str:
    if oid >= FIRST_OWN_OID:
        return "its type was made in this database (a domain, an enum, an extension's type)"
    return f"its type has number {oid} (SELECT {oid}::regtype)"


def _version_inside(raw: bytes, *, path: list[str]) -> str | None:
    """The version that stands at `path` of a JSON text; None if there is none, which means the latest."""
    try:
        found = orjson.loads(raw)
    except ValueError:
        raise Rejected(
            Reason.POISON_MESSAGE,
            "the column that holds the schema's version is not JSON",
            remedy="Have the service write JSON there, or name another place in outbox.columns.version.",
        ) from None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return None if found is None else str(found)


def _from_hex(text: bytes | None, column: str) -> bytes | None:
    """Postgres's hex output of bytea, `\\x` and two digits a byte, as the bytes it stands for."""
    if text is None:
        return None
    if not text.startswith(b"\\x"):
        raise Rejected(
            Reason.POISON_MESSAGE,
            f"column {column!r} is bytea, but its value does not start with \\x",
            remedy="Run ALTER ROLE … SET bytea_output = 'hex' for the replication role.",
        )
    try:
        return binascii.unhexlify(text[2:])
    except binascii.Error:
        raise Rejected(Reason.POISON_MESSAGE, f"column {column!r} is bytea, but its value is not hexadecimal") from None


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
