"""Finds the row of one event in an outbox, by its id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tailrace.event import Row
from tailrace.outbox.layouts import ColumnMap
from tailrace.outbox.marks.columns import mark_columns
from tailrace.positions.base import Position, is_streaming
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.positions.postgres import LsnPosition, parse_lsn
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sql_names import quote, quote_table
from tailrace.verify.postgres_outbox import describe_table
from tailrace.worker.options import column_map
from tailrace.worker.wiring import Wiring

_INTEGERS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
_TEXTS = ("text", "character varying", "character")


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row of the outbox. `transaction` is the id of the Postgres transaction that wrote it last.

    `end` is the end of the database's log when the row was read.
    """

    row: Row
    source: str
    created_ms: int | None
    transaction: str | None = None
    marks: dict[str, Any] = field(default_factory=dict)
    end: int | ClusterTime | None = None

    def is_passed(self, stored: Position | None) -> bool:
        """Returns whether the pipeline has read the log up to where it ended when the row was read."""
        if stored is None or not is_streaming(stored):
            return False
        if isinstance(stored, LsnPosition) and isinstance(self.end, int):
            return stored.lsn >= self.end
        return (
            isinstance(stored, TokenPosition)
            and isinstance(self.end, ClusterTime)
            and stored.time.pair >= self.end.pair
        )


def find_row(wiring: Wiring, event_id: str) -> FoundRow | None:
    """Returns the row of an event; None if there is none, or if the pipeline reads messages and no table."""
    columns = column_map(wiring.settings)
    outbox = wiring.settings.outbox
    marks = mark_columns(outbox.layout, outbox.mark_columns)
    names = marks.names if marks else ()
    if isinstance(wiring.database, MongoOptions):
        from tailrace.trace.mongo_row import find_document  # optional driver

        return find_document(wiring.database, columns, event_id, names)
    if wiring.database.messages is not None:
        return None
    return _find_in_table(wiring.database, columns, event_id, names)


def _find_in_table(
    options: PostgresOptions, columns: ColumnMap, event_id: str, marks: tuple[str, ...]
) -> FoundRow | None:
    with options.connect() as link:
        announced, kinds = describe_table(link, options.table)
        condition = _condition(columns.id, kinds.get(columns.id, ""), event_id)
        if condition is None:
            return None
        when = f"(extract(epoch FROM {quote(options.timestamp)}) * 1000)::bigint" if options.timestamp else "NULL"
        named = ", ".join(quote(column.name) for column in announced)
        # One statement, so the row is not newer than the end of the log. LIMIT: an id may not be unique.
        found = link.query(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "  # noqa: S608 - quoted
            "ELSE pg_current_wal_insert_lsn() END, "
            f"o.xmin::text, {when}, {named} FROM {quote_table(options.table)} o WHERE {condition} LIMIT 1",
            [_canonical(kinds.get(columns.id, ""), event_id)],
        )
    if not found:
        return None
    end, xmin, created, *values = found[0]
    created_ms = None if created is None else int(created)
    raw = tuple(None if value is None else value.encode("utf-8", "surrogateescape") for value in values)
    by_name = dict(zip((column.name for column in announced), values, strict=True))
    return FoundRow(
        Row(announced, raw, "", created_ms or 0),
        options.table,
        created_ms,
        xmin,
        {name: by_name[name] for name in marks if name in by_name},
        parse_lsn(str(end)),
    )


def _condition(column: str, kind: str, event_id: str) -> str | None:
    """Returns the condition for the id that can use its index; None if no row can have this id."""
    if kind == "uuid":
        return f"{quote(column)} = $1::uuid" if _canonical(kind, event_id) else None
    if kind in _INTEGERS:
        is_number = event_id.isascii() and event_id.removeprefix("-").isdigit() and len(event_id) <= 20
        return f"{quote(column)} = $1::{kind}" if is_number and abs(int(event_id)) < _INTEGERS[kind] else None
    return f"{quote(column)} = $1" if kind in _TEXTS else f"{quote(column)}::text = $1"


def _canonical(kind: str, event_id: str) -> str:
    """Returns an id as the database writes it; empty if it is not one of that type."""
    if kind != "uuid":
        return event_id
    try:
        return str(UUID(event_id))
    except ValueError:
        return ""
