"""What an outbox table of Postgres is like: its columns, and which of them tell its rows apart."""

from __future__ import annotations

import json

from tailrace.errors import LayoutMismatch
from tailrace.event import Column, Columns
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import split_table


def described(link: PgConnection, table: str) -> tuple[Columns, dict[str, str]]:
    """As the log announces them; and their types by name."""
    found = link.query(
        "SELECT attname, atttypid, format_type(atttypid, -1) FROM pg_attribute "
        "WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        list(split_table(table)),
    )
    columns = tuple(Column(str(name), int(oid or 0)) for name, oid, _ in found)
    return columns, {str(name): str(kind) for name, _, kind in found}


def key_columns(link: PgConnection, table: str) -> list[str]:
    found = link.query(
        "SELECT to_json(array(SELECT a.attname::text FROM unnest(i.indkey[0:i.indnkeyatts - 1]) k "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k)) FROM pg_index i "
        "WHERE i.indrelid = format('%I.%I', $1::text, $2::text)::regclass "
        "AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS "
        "(SELECT FROM unnest(i.indkey[0:i.indnkeyatts - 1]) k JOIN pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = k WHERE NOT a.attnotnull) ORDER BY i.indisprimary DESC, i.indnkeyatts LIMIT 1",
        list(split_table(table)),
    )
    if not found:
        raise LayoutMismatch(
            f"{table} has no primary key and no unique index of columns that are NOT NULL",
            why="A row that is archived must be told from every other.",
            remedy="Give the table a primary key.",
        )
    return [str(name) for name in json.loads(str(found[0][0]))]


def has_changed(table: str) -> LayoutMismatch:
    """To be raised where the columns are no longer those that a file was begun with."""
    return LayoutMismatch(f"the columns of {table} have changed meanwhile", remedy="Run it again.")
