"""Reads the sizes, dead rows and indexes of the outbox from Postgres' own statistics; no table is scanned."""

from __future__ import annotations

import json

from tailrace.check.doctor.outbox_rules import IndexFacts, OutboxFacts, TableFacts
from tailrace.errors import TailraceError
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sql_names import quote, quote_table

MOST_PARTITIONS = 50
"""Only the largest partitions are looked at."""
MEASURED_BYTES = 1 << 30
"""Larger indexes are estimated, even if pgstattuple could measure them: it reads the whole index."""
PAGE, FILLED = 8192, 0.9
ENTRY_BYTES = 20
"""Header, item pointer and alignment of an index entry."""


def read_outbox_facts(link: PgConnection, options: PostgresOptions) -> OutboxFacts | None:
    """Returns None if the table does not exist, or if events are messages."""
    if options.messages is not None:
        return None
    full = quote_table(options.table)
    root = link.query("SELECT oid, relkind FROM pg_class WHERE oid = to_regclass($1)", [full])
    if not root:
        return None
    oid, kind = str(root[0][0]), root[0][1]
    autovacuum, old = link.query(
        "SELECT current_setting('autovacuum'), (SELECT count(*) FROM pg_stat_activity "
        "WHERE xact_start < now() - interval '1 hour' AND backend_xmin IS NOT NULL)"
    )[0]
    return OutboxFacts(
        name=full,
        tables=tuple(_tables(link, oid)),
        indexes=tuple(_indexes(link, oid, 0, measured=False)),
        partitioned=kind == "p",
        autovacuum=autovacuum == "on",
        old_transactions=int(old or 0),
    )


def _tables(link: PgConnection, root: str) -> list[TableFacts]:
    can_measure = bool(
        link.query(
            "SELECT 1 FROM pg_proc p JOIN pg_extension e ON e.extname = 'pgstattuple' WHERE p.proname = 'pgstatindex' "
            "AND has_function_privilege(p.oid, 'EXECUTE')"
        )
    )
    rows = link.query(
        "SELECT c.oid, n.nspname, c.relname, coalesce(s.n_live_tup, greatest(c.reltuples, 0))::bigint, "
        "coalesce(s.n_dead_tup, 0), pg_table_size(c.oid), to_json(coalesce(c.reloptions, '{}')), "
        "current_setting('autovacuum_vacuum_scale_factor') "
        "FROM (SELECT relid FROM pg_partition_tree($1::oid) WHERE isleaf UNION SELECT $1::oid) t "
        "JOIN pg_class c ON c.oid = t.relid AND c.relkind = 'r' JOIN pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid ORDER BY pg_table_size(c.oid) DESC LIMIT $2::int",
        [root, str(MOST_PARTITIONS)],
    )
    tables = []
    for oid, schema, name, live, dead, size, options, factor in rows:
        own = dict(option.partition("=")[::2] for option in json.loads(options or "[]"))
        tables.append(
            TableFacts(
                name=f"{quote(str(schema))}.{quote(str(name))}",
                rows=int(live or 0),
                dead=int(dead or 0),
                bytes=int(size or 0),
                indexes=tuple(_indexes(link, str(oid), int(live or 0), measured=can_measure)),
                autovacuum=own.get("autovacuum_enabled", "true") not in ("false", "off", "0", "no"),
                scale_factor=float(own.get("autovacuum_vacuum_scale_factor", factor or "0.2")),
            )
        )
    return tables


def _indexes(link: PgConnection, table: str, rows: int, *, measured: bool) -> list[IndexFacts]:
    found = link.query(
        "SELECT c.oid, c.relname, to_json(ARRAY(SELECT coalesce(a.attname::text, '') FROM unnest(i.indkey) "  # noqa: S608 - ours
        "WITH ORDINALITY k (attnum, at) LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
        "AND k.attnum > 0 ORDER BY k.at)), pg_relation_size(c.oid), i.indisvalid, i.indpred IS NOT NULL, m.amname, "
        f"{_WIDTH} FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam "
        "WHERE i.indrelid = $1::oid",
        [table],
    )
    indexes = []
    for oid, name, columns, size, valid, partial, method, width in found:
        names, size_bytes = tuple(json.loads(columns or "[]")), int(size or 0)
        needed: int | None = None
        if method == "btree" and size_bytes:
            needed = _measure(link, str(oid), size_bytes) if measured and size_bytes <= MEASURED_BYTES else None
            if needed is None and partial != "t" and width is not None:
                needed = int(rows * (float(width) + ENTRY_BYTES) / FILLED) + PAGE
        indexes.append(IndexFacts(str(name), names, size_bytes, needed, valid == "t", partial == "t"))
    return indexes


_WIDTH = (
    "(SELECT CASE WHEN count(*) = count(w.avg_width) THEN sum(w.avg_width) END FROM unnest(i.indkey) k (attnum) "
    "LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
    "LEFT JOIN pg_stats w ON w.schemaname = (SELECT relnamespace::regnamespace::name FROM pg_class WHERE oid = "
    "i.indrelid) AND w.tablename = (SELECT relname FROM pg_class WHERE oid = i.indrelid) AND w.attname = a.attname)"
)
"""The average width of the indexed columns; NULL if one has no statistics, or is an expression."""


def _measure(link: PgConnection, index: str, size: int) -> int | None:
    """Returns the bytes that the entries of an index fill; None if pgstattuple may not be used."""
    try:
        ((leaves, density, internal),) = link.query(
            "SELECT leaf_pages, avg_leaf_density, internal_pages FROM pgstatindex($1::oid::regclass)", [index]
        )
    except TailraceError:
        return None
    if not leaves or str(density) == "NaN":
        return None
    filled = int(leaves) * PAGE * float(density or 0) / 100 / FILLED
    return min(size, int(filled) + int(internal or 0) * PAGE + PAGE)
