"""A bounded sample of the rows in an outbox: some of the newest, and some of the whole table. No table is scanned.

Of each combination of type, version, aggregate and columns that routing rules use, a few rows are read completely.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tailrace.event import Column, Row
from tailrace.outbox.layouts import INSIDE, JSON_TYPES, ColumnMap
from tailrace.outbox.marks.sql import literal
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sql_names import quote, quote_table

PAGES = 400
"""About 3 MB of the table. A smaller table is read completely."""
NEWEST_PAGES = 100
SAMPLED_ROWS = 20_000
PER_KIND = 2
MOST_KINDS = 500
MOST_BYTES = 65_536
"""Rows with larger payloads are counted, but not validated."""


class EventSample(NamedTuple):
    """`rows` are rows with their number of similar rows in the sample; `described` says what was sampled."""

    rows: list[tuple[Row, int]]
    described: str


def sample_rows(
    link: PgConnection, options: PostgresOptions, columns: ColumnMap, routed_by: Collection[str]
) -> EventSample | None:
    """Returns None if there is no table."""
    full = quote_table(options.table)
    if options.messages is not None or link.query("SELECT to_regclass($1)", [full])[0][0] is None:
        return None
    found = link.query(
        "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 "
        "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
        [full],
    )
    table = tuple(Column(str(name), int(oid or 0)) for name, oid in found)
    pages = int(
        link.query(
            "SELECT coalesce(sum(pg_relation_size(relid)), 0)::bigint / current_setting('block_size')::bigint "
            "FROM (SELECT relid FROM pg_partition_tree(to_regclass($1)) UNION SELECT to_regclass($1)) t",
            [full],
        )[0][0]
        or 0
    )
    parts, described = _parts(link, full, pages)
    kinds = ", ".join(_kinds(columns, dict(table), routed_by))
    picked = ", ".join(f"{quote(column.name)}::text" for column in table)
    statement = (
        f"SELECT similar_rows, {picked} FROM (SELECT *, "  # noqa: S608 - quoted
        f"count(*) OVER (PARTITION BY {kinds}) AS similar_rows, "
        f"row_number() OVER (PARTITION BY {kinds} ORDER BY sampled_at DESC) AS sampled_number "
        f"FROM ({parts}) p) k WHERE sampled_number <= {PER_KIND} "
        f"AND octet_length({quote(columns.payload)}::text) <= {MOST_BYTES} LIMIT {PER_KIND * MOST_KINDS}"
    )
    rows = []
    for number, *values in link.query(statement):
        encoded = tuple(None if value is None else value.encode() for value in values)
        rows.append((Row(table, encoded, "0/0:0", 0), int(number or 0)))
    return EventSample(rows, described)


def _parts(link: PgConnection, full: str, pages: int) -> tuple[str, str]:
    """Returns the query of the sampled rows, and what it reads."""
    whole = f"SELECT *, ctid AS sampled_at FROM {full}"  # noqa: S608 - quoted
    if pages <= PAGES:
        return f"{whole} LIMIT {SAMPLED_ROWS}", f"the whole table, at most {SAMPLED_ROWS:,} rows"
    share = 100 * PAGES / pages
    sampled = f"SELECT *, ctid AS sampled_at FROM {full} TABLESAMPLE SYSTEM ({share:.6f})"  # noqa: S608 - quoted
    parts = [f"({sampled} LIMIT {SAMPLED_ROWS})"]
    newest = _newest(link, full)
    if newest:
        parts.append(f"({newest} LIMIT {SAMPLED_ROWS})")
    return " UNION ALL ".join(parts), f"{share:.2g} % of the table and the end of its newest part"


def _newest(link: PgConnection, full: str) -> str:
    """Returns the query of the last pages of the table, or of its newest partition with rows; reads only these."""
    found = link.query(
        "SELECT n.nspname, c.relname, pg_relation_size(c.oid) / current_setting('block_size')::bigint "
        "FROM (SELECT relid FROM pg_partition_tree(to_regclass($1)) WHERE isleaf UNION SELECT to_regclass($1)) t "
        "JOIN pg_class c ON c.oid = t.relid AND c.relkind = 'r' JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE pg_relation_size(c.oid) > 0 ORDER BY c.oid DESC LIMIT 1",
        [full],
    )
    if not found:
        return ""
    schema, name, pages = found[0]
    first = max(0, int(pages or 0) - NEWEST_PAGES)
    # The columns of the parent: a partition may have them in another order.
    columns = json.loads(
        str(
            link.query(
                "SELECT to_json(array_agg(attname ORDER BY attnum)) FROM pg_attribute "
                "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
                [full],
            )[0][0]
        )
    )
    listed = ", ".join(map(quote, columns))
    table = f"{quote(str(schema))}.{quote(str(name))}"
    return f"SELECT {listed}, ctid AS sampled_at FROM {table} WHERE ctid >= '({first},0)'"  # noqa: S608 - quoted


def _kinds(columns: ColumnMap, present: Mapping[str, int], routed_by: Collection[str]) -> list[str]:
    """Returns the expressions whose values decide about schema and route. `present` maps columns to types."""
    wanted = [columns.type, columns.aggregate, columns.stream, columns.subject, *sorted(routed_by)]
    found = [f"{quote(name)}::text" for name in dict.fromkeys(wanted) if name is not None and name in present]
    column, inside, path = (columns.version or "").partition(INSIDE)
    # Text that is not JSON would end the query.
    if column in present and (not inside or present[column] in JSON_TYPES):
        steps = ",".join(path.split("/")) if inside else ""
        found.append(f"{quote(column)}::jsonb #>> {literal('{' + steps + '}')}" if inside else f"{quote(column)}::text")
    return found
