"""Extracts the OutboxEvent from a row: maps columns, or fields of a document, to the parts of an event.

A ColumnMap names the columns. A Layout compiles it for the columns of a row and reuses that plan as long as rows have
the same `columns` object; after an ALTER TABLE the next row has a new object. Documents have varying fields, so the
last plans are cached. Payload and key bytes are passed on unchanged, except bytea, whose text form is decoded. A
missing mapped column stops the pipeline (LayoutMismatch); an unreadable row is dead-lettered (Rejected).
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import orjson

from tailrace.errors import LayoutMismatch, Reason, Rejected
from tailrace.event import JSONB, TEXT, UNREADABLE, Columns, Headers, OutboxEvent, Row, Undecodable
from tailrace.outbox.json_path import JsonPath, path_to
from tailrace.schema_versions import version_at

BYTEA = 17
JSON = 114
PAYLOAD_TYPES = {BYTEA: "bytea", TEXT: "text", JSON: "json", 1043: "varchar", JSONB: "jsonb"}
"""The types whose text form can be a payload; a number or timestamp would be a mapping mistake."""
FIRST_OWN_OID = 16_384
"""Built-in types have lower OIDs."""
JSON_TYPES = {JSONB: "jsonb", JSON: "json"}
INTEGER_TYPES = {20: "bigint", 23: "integer", 21: "smallint"}
INSIDE = "#/"
"""Separates a JSON column and a path in it: `version: headers#/schema/version`, `key: payload#/team_id`."""
KNOWN_NAMES = 4096
"""How many type and aggregate names are cached. Real systems have hundreds."""
MEMORABLE_BYTES = 256
"""Longer names are not cached."""
NAME_BYTES = 1000
"""The longest type or aggregate; an event with a longer one is dead-lettered."""

_new_event = tuple.__new__
"""Builds the event without the constructor's argument handling: 0.2 µs instead of 0.4."""


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """The column of each part of an event; None if the table has no such column."""

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
        """Returns (part, column) for every mapped part."""
        named = [(part.name, getattr(self, part.name)) for part in fields(self)]
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
"""An outbox whose rows name their topic and key, with the columns of a polling publisher."""
PLANS = 64
"""How many sets of columns are cached; documents of one service have a handful."""
WIDTH = 200
"""Sets with more columns are not cached,"""
NAMES_CHARS = 16_384
"""nor sets whose names have more characters in total."""


class _Plan(NamedTuple):
    """The indexes of the mapped columns in rows with certain columns."""

    pick: Callable[[tuple[bytes | None, ...]], tuple[bytes | None, bytes | None, bytes | None, bytes | None]]
    aggregate_at: int | None
    version_at: int | None
    version: Callable[[bytes], str | None]
    no_version: str | None
    extra: list[tuple[str, int]]
    convert: Callable[[bytes | None, bytes | None, Headers], tuple[bytes | None, bytes | None, Headers]] | None
    """Converts key, payload and further columns where the event has another form than the row."""
    keys_unique: bool


class Layout:
    """Reads rows by a ColumnMap. Belongs to one thread: it caches plans."""

    def __init__(
        self,
        column_map: ColumnMap,
        *,
        setting: str = "outbox.columns",
        ignored: frozenset[str] = frozenset(),
        needed: Mapping[str, Mapping[int, str]] | None = None,
        no_version: str | None = None,
    ) -> None:
        """`setting` names the setting of the map, for error texts.

        Columns in `ignored` are not part of the event. `needed` has further columns that rows must have, each with the
        types it may have. `no_version` is the version of an event that names none; None is the latest.
        """
        self._map = column_map
        self._setting = setting
        self._ignored = ignored
        self._needed = needed or {}
        self._no_version = no_version
        self._columns: Columns | None = None
        self._plan: _Plan
        self._plans: dict[Columns, _Plan] = {}
        self._names: dict[bytes, str] = {}

    def require(self, columns: Columns) -> None:
        """Raises LayoutMismatch if rows with these columns cannot be read."""
        self._compile(columns)

    def read(self, row: Row) -> OutboxEvent:
        """Returns the event in `row`; raises Rejected for a bad row, LayoutMismatch for a bad table."""
        columns, values, place, committed_ms = row
        if columns is not self._columns:
            self._turn_to(row)
        pick, aggregate_at, version_at, version_of, version, further, convert, keys_unique = self._plan
        raw_id, raw_type, key, payload = pick(values)
        names = self._names
        if raw_id is None or raw_type is None:
            raise self._unreadable(row)
        try:
            type_name = names.get(raw_type) or self._name(raw_type, "type")
            aggregate = ""
            if aggregate_at is not None:
                raw = values[aggregate_at]
                if raw is not None:
                    aggregate = names.get(raw) or self._name(raw, "aggregate")
            if version_at is not None:
                raw = values[version_at]
                if raw is not None:
                    version = version_of(raw)
            event_id = raw_id.decode()
        except ValueError:
            raise self._unreadable(row) from None
        extra: Headers = []
        for name, at in further:
            if (value := values[at]) is not None:
                extra.append((name, value))
        if convert is not None:
            key, payload, extra = convert(key, payload, extra)
        parts = (event_id, type_name, aggregate, key, payload, version, place, committed_ms, extra, keys_unique)
        return _new_event(OutboxEvent, parts)

    def _turn_to(self, row: Row) -> None:
        """Makes the plan for the row's columns, or takes it from the cache. Changes nothing if it raises."""
        columns = row.columns
        if columns == UNREADABLE:
            raise Rejected(
                Reason.POISON_MESSAGE,
                (row.values[1] or b"").decode(errors="replace"),
                remedy="Have the service write a corrected event, then discard this dead letter.",
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
        """Finds the index of every mapped column; rows are then read by index."""
        at = {column.name: index for index, column in enumerate(columns)}
        for part, name in self._map.parts():
            if name not in at:
                raise self._missing(part, name, columns)
        for name, types in self._needed.items():
            if name not in at:
                raise self._missing("", name, columns)
            if types and columns[at[name]].type_oid not in types:
                usual, *_ = types.values()
                raise LayoutMismatch(
                    f"column {name!r} has the wrong type: {_type_named(columns[at[name]].type_oid)}",
                    why=f"This layout needs {' or '.join(types.values())} there.",
                    remedy=f"Change the type: ALTER TABLE … ALTER COLUMN {name} TYPE {usual} USING {name}::{usual};",
                )
        mapped = self._map
        payload_type = columns[at[mapped.payload]].type_oid
        if payload_type not in PAYLOAD_TYPES:
            raise LayoutMismatch(
                f"column {mapped.payload!r} cannot hold payloads: {_type_named(payload_type)}",
                why=f"A payload is published byte for byte, which works for {', '.join(PAYLOAD_TYPES.values())}.",
                remedy=f"Change the column's type, or name another column in {self._setting}.payload.",
            )
        version_column, inside, path = (mapped.version or "").partition(INSIDE)
        key_column, key_inside, key_path = mapped.key.partition(INSIDE)
        # Version, timestamp, subject and stream are also sent as extra headers: no other header has them.
        consumed = {mapped.id, mapped.type, mapped.aggregate, mapped.payload} | self._ignored
        if not key_inside and mapped.key != mapped.stream:
            consumed.add(mapped.key)
        binary = {column.name for column in columns if column.type_oid == BYTEA}
        binary -= {mapped.id, mapped.type, mapped.aggregate}
        convert = None
        if binary or key_inside:
            convert = partial(self._convert, key_column, path_to(key_path) if key_inside else None, binary)
        return _Plan(
            pick=itemgetter(at[mapped.id], at[mapped.type], at[key_column], at[mapped.payload]),
            aggregate_at=at[mapped.aggregate] if mapped.aggregate else None,
            version_at=at[version_column] if version_column else None,
            version=partial(_version_inside, path=path.split("/"), absent=self._no_version) if inside else bytes.decode,
            no_version=self._no_version,
            extra=[(name, index) for name, index in at.items() if name not in consumed],
            convert=convert,
            keys_unique=payload_type == JSONB,
        )

    def _missing(self, part: str, name: str, columns: Columns) -> LayoutMismatch:
        """`part` is empty for a column that the layout needs under its own name."""
        present = ", ".join(column.name for column in columns) or "none"
        whose = f"{self._setting}.{part} names it as the event's {part}" if part else "This layout needs it"
        other = f", or name another in {self._setting}.{part}" if part else ""
        return LayoutMismatch(
            f"rows of the outbox have no column {name!r}",
            why=f"{whose}; rows have: {present}. The log omits "
            "generated columns, and columns that are not in the publication's column list.",
            remedy=f"Add the column to the table or to that list{other}.",
        )

    def _name(self, raw: bytes, part: str) -> str:
        """Decodes a type or aggregate and caches it, so that equal names are the same object."""
        if not raw:
            # An empty aggregate is allowed: only a topic template may need it.
            if part == "aggregate":
                return ""
            raise ValueError(part)
        if len(raw) > NAME_BYTES:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"the {part} has {len(raw):,} bytes, more than the {NAME_BYTES:,} that a name may have",
                remedy=f"Have the service write a shorter {part}; further data belongs in the payload.",
            )
        name = raw.decode()
        if len(raw) <= MEMORABLE_BYTES:
            if len(self._names) >= KNOWN_NAMES:
                self._names.clear()
            self._names[raw] = name
        return name

    def _convert(
        self,
        key_column: str,
        key_path: JsonPath | None,
        binary: set[str],
        key: bytes | None,
        payload: bytes | None,
        extra: Headers,
    ) -> tuple[bytes | None, bytes | None, Headers]:
        """Returns the values with the text form of every bytea column decoded, and the key taken from its path."""
        if key_column in binary:
            key = _from_hex(key, key_column)
        if self._map.payload in binary:
            payload = _from_hex(payload, self._map.payload)
        if binary:
            extra = [
                (name, _from_hex(value, name)) if name in binary and isinstance(value, bytes) else (name, value)
                for name, value in extra
            ]
        if key_path is not None:
            key = key_path.text(key, self._map.key, f"{self._setting}.key")
        return key, payload, extra

    def _unreadable(self, row: Row) -> Rejected:
        """Returns the error that names the bad column; called only if there is one."""
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
        return Rejected(Reason.POISON_MESSAGE, f"not valid UTF-8: column {undecodable}")


def undecodable(columns: Undecodable) -> Rejected:
    return Rejected(
        Reason.POISON_MESSAGE,
        f"not valid text in {columns.encoding}, the encoding of the database: column {', '.join(columns.names)}",
        remedy="Have the service write the event again with valid text, then discard this dead letter; or redrive it "
        "with corrected columns.",
    )


def _type_named(oid: int) -> str:
    if oid >= FIRST_OWN_OID:
        return "its type was made in this database (a domain, an enum, an extension's type)"
    return f"its type has OID {oid} (SELECT {oid}::regtype)"


def _version_inside(raw: bytes, *, path: list[str], absent: str | None = None) -> str | None:
    """Returns the version at `path` of a JSON text; `absent`, or None for the latest, if there is none."""
    try:
        found = orjson.loads(raw)
    except ValueError:
        raise Rejected(
            Reason.POISON_MESSAGE,
            "the column that holds the schema's version is not JSON",
            remedy="Have the service write JSON there, or change outbox.columns.version.",
        ) from None
    return version_at(found, path, absent=absent)


def _from_hex(text: bytes | None, column: str) -> bytes | None:
    """Decodes the hex output of bytea: `\\x` and two digits per byte."""
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
