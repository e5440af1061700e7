"""Rows that are too large for the server to send as text: read without their large values. Pure.

The server builds a row as text in one piece of memory, of at most 1 GB; a bytea takes two bytes for each of its own. It
knows the size of a value without reading it. Such a row is a dead letter that has the columns which are small.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from tailrace.errors import LayoutMismatch
from tailrace.event import TEXT, UNREADABLE, Column, Columns, Row
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import quote, split_table

WRITTEN = "xmin"
"""Stands in an order for the number of the transaction that wrote the row: near to commit order, and the same as long
as the row is not changed.
"""
TIMELESS = ("uuid", "text", "character", "bytea")
"""How the names of types begin whose order says nothing about when a row was written."""

LIMIT = 1_000_000_000
"""Bytes of text in a row; the server's own limit is a little above."""
SMALL = 65_536
"""Bytes of a value that is kept of such a row."""
_TEXT_BYTES = {17: 2, TEXT: 1, 1042: 1, 1043: 1}
"""By the number of the type, bytea, text, char and varchar: bytes of text for each byte of a value."""


def too_large(columns: Sequence[Column]) -> str:
    """The SQL condition for such rows."""
    sizes = [
        f"{_TEXT_BYTES[kind]} * coalesce(octet_length({quote(name)}), 0)::bigint"
        for name, kind in columns
        if kind in _TEXT_BYTES
    ]
    return f"{' + '.join(sizes)} > {LIMIT}" if sizes else "false"


def small_value(column: Column) -> str:
    """The SQL expression for a value that may be too large: NULL if it is."""
    name = quote(column.name)
    if column.type_oid not in _TEXT_BYTES:
        return name
    return f"CASE WHEN octet_length({name}) <= {SMALL} THEN {name} END"


def oversized_row(columns: Columns, values: Sequence[bytes | None], place: str, committed_ms: int) -> Row:
    """The row that stands for one that is too large; `values` are those of `small`."""
    named = zip((column.name for column in columns), values, strict=True)
    document = {name: value.decode(errors="replace") for name, value in named if value is not None}
    why = f"the row has more than {LIMIT:,} bytes as text, which the server cannot send"
    return Row(UNREADABLE, (orjson.dumps(document), why.encode()), place, committed_ms)


def require_order(
    link: PgConnection, table: str, order_by: list[str], timestamp: str | None
) -> tuple[tuple[Column, ...], dict[str, str]]:
    """The columns of the table and their types; raises what keeps its rows from being read in this order."""
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
    # Rows that share a sort key could be passed over where a page ends between them and is resumed.
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
            why="Rows already in the table are read in this order, and it must tell every row from every other.",
            remedy="Give the table a primary key, and name its columns last in source.order_by.",
        )
    return tuple(Column(str(column), int(oid or 0)) for column, oid, _ in found), types


def reading_order(order_by: Sequence[str], types: dict[str, str]) -> list[str]:
    """By which columns rows are read: the transaction first, where a single one would say nothing about time."""
    timeless = len(order_by) == 1 and types[order_by[0]].startswith(TIMELESS)
    return [WRITTEN, *order_by] if timeless else list(order_by)


def rows_after(names: dict[str, str], after: list[str | None], types: dict[str, str]) -> str:
    """The condition for rows that sort behind `after`. NULL sorts last and equals NULL, which `>` alone denies."""
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
    """An infinite time is none: there is no number for it."""
    name = quote(timestamp)
    return f"CASE WHEN isfinite({name}) THEN (extract(epoch FROM {name}) * 1000)::bigint END"


def _element(text: str) -> str:
    """An element of an array's text form."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f" E'{escaped}'"
