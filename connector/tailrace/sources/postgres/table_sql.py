"""SQL for reading the rows of an outbox table: their order, time limits, and rows that are too large to send.

The server builds the text form of a row in one buffer of at most 1 GB; a bytea takes two bytes of text for each byte.
A larger row is read without its large values and becomes a dead letter with its small columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from tailrace.errors import LayoutMismatch
from tailrace.event import TEXT, UNREADABLE, Column, Columns, Row
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import quote, split_table

WRITTEN = "xmin"
"""The column for ordering by the transaction that wrote the row: close to commit order, and stable while the row is
not changed.
"""
TIMELESS = ("uuid", "text", "character", "bytea")
"""Prefixes of types whose order says nothing about when a row was written."""

LIMIT = 1_000_000_000
"""Bytes of text in a row; the server's limit is slightly higher."""
SMALL = 65_536
"""Values up to this size are kept of such a row."""
_TEXT_BYTES = {17: 2, TEXT: 1, 1042: 1, 1043: 1}
"""Bytes of text for each byte of a value, by type: bytea, text, char and varchar."""


def too_large(columns: Sequence[Column]) -> str:
    """Returns the SQL condition for rows that are too large."""
    sizes = [
        f"{_TEXT_BYTES[kind]} * coalesce(octet_length({quote(name)}), 0)::bigint"
        for name, kind in columns
        if kind in _TEXT_BYTES
    ]
    return f"{' + '.join(sizes)} > {LIMIT}" if sizes else "false"


def small_value(column: Column) -> str:
    """Returns the SQL expression for a value, NULL if it is not small."""
    name = quote(column.name)
    if column.type_oid not in _TEXT_BYTES:
        return name
    return f"CASE WHEN octet_length({name}) <= {SMALL} THEN {name} END"


def oversized_row(columns: Columns, values: Sequence[bytes | None], position: str, committed_ms: int) -> Row:
    """Returns the row that stands for one that is too large; `values` are those of `small_value`."""
    named = zip((column.name for column in columns), values, strict=True)
    document = {name: value.decode(errors="replace") for name, value in named if value is not None}
    why = f"the row has more than {LIMIT:,} bytes as text, which the server cannot send"
    return Row(UNREADABLE, (orjson.dumps(document), why.encode()), position, committed_ms)


def require_order(
    link: PgConnection, table: str, order_by: list[str], timestamp: str | None
) -> tuple[tuple[Column, ...], dict[str, str]]:
    """Returns the columns of the table and their types; raises if its rows cannot be read in this order."""
    schema, name = split_table(table)
    found = link.query(
        "SELECT attname, atttypid, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        [schema, name],
    )
    types = {str(column): str(kind) for column, _, kind in found}
    for column in [*order_by, *([timestamp] if timestamp else [])]:
        if column not in types:
            raise LayoutMismatch(
                f"{table} has no column {column} to order its rows by",
                why=f"Its columns are {', '.join(types)}.",
                remedy="Set source.order_by to columns that order the rows, the unique id last.",
            )
    # Rows with the same sort key could be missed if a read is resumed between them.
    unique = link.query(
        "SELECT FROM pg_index i WHERE i.indrelid = format('%I.%I', $1::text, $2::text)::regclass "
        "AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL "
        "AND NOT EXISTS (SELECT FROM unnest(i.indkey[0:i.indnkeyatts - 1]) k JOIN pg_attribute a "
        "ON a.attrelid = i.indrelid AND a.attnum = k WHERE a.attname <> ALL ($3::text[]) "
        "OR NOT (a.attnotnull OR i.indnullsnotdistinct))",
        [schema, name, "{" + ",".join(_element(column) for column in order_by) + "}"],
    )
    if not unique:
        raise LayoutMismatch(
            f"{table} has no unique index on {', '.join(order_by)} or on some of them",
            why="Rows already in the table are read in this order, and it must be unique for every row.",
            remedy="Give the table a primary key, and name its columns last in source.order_by.",
        )
    return tuple(Column(str(column), int(oid or 0)) for column, oid, _ in found), types


def reading_order(order_by: Sequence[str], types: dict[str, str]) -> list[str]:
    """Returns the columns to order by; the transaction comes first if a single column says nothing about time."""
    timeless = len(order_by) == 1 and types[order_by[0]].startswith(TIMELESS)
    return [WRITTEN, *order_by] if timeless else list(order_by)


def rows_after(names: dict[str, str], after: list[str | None], types: dict[str, str]) -> str:
    """Returns the condition for rows that sort after `after`. NULL sorts last and equals NULL."""
    ways: list[str] = []
    same: list[str] = []
    for (column, name), value in zip(names.items(), after, strict=True):
        if value is None:
            same.append(f"{name} IS NULL")
            continue
        literal = f"{_literal(value)}::{types[column]}"
        ways.append(" AND ".join([*same, f"({name} > {literal} OR {name} IS NULL)"]))
        same.append(f"{name} = {literal}")
    return "(" + " OR ".join(ways or ["false"]) + ")"


def rows_between(timestamp: str, since_ms: int | None, until_ms: int | None) -> list[str]:
    bounds = [(sign, at) for sign, at in ((">=", since_ms), ("<", until_ms)) if at is not None]
    finite = [f"isfinite({quote(timestamp)})"] if bounds else []
    return finite + [f"{quote(timestamp)} {sign} to_timestamp({at} / 1000.0)" for sign, at in bounds]


def milliseconds(timestamp: str) -> str:
    """Returns the expression for a time in ms; an infinite time gives NULL."""
    name = quote(timestamp)
    return f"CASE WHEN isfinite({name}) THEN (extract(epoch FROM {name}) * 1000)::bigint END"


def _element(text: str) -> str:
    """Quotes an element for the text form of an array."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f" E'{escaped}'"
