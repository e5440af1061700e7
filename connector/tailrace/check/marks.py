"""The check of delivery marks in Postgres: whether the role may write them. Publishing works without them."""

from __future__ import annotations

from tailrace.check.result import CheckResult, ok, warn
from tailrace.outbox.marks.sql import UNDELIVERED, WATERMARK, array, beside
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sql_names import quote, quote_table, split_table


def check_marks(link: PgConnection, options: PostgresOptions) -> CheckResult | None:
    """Returns None if the pipeline writes no marks."""
    if options.marks == "none":
        return None
    who = quote(link.pgconn.user.decode())
    schema, _ = split_table(options.table)
    lacking = _columns_without_update(link, options)
    if lacking:
        names = ", ".join(map(quote, lacking))
        return warn(
            "marks",
            f"{who} may not update {names}, or the table has no such column: rows are not marked",
            f"Add missing columns, then GRANT UPDATE ({names}) ON {quote_table(options.table)} TO {who};",
        )
    ((may_create, missing, unwritable),) = link.query(
        "SELECT has_schema_privilege($1, 'CREATE'), bool_or(to_regclass(n) IS NULL), coalesce(bool_or(NOT "
        "(has_table_privilege(to_regclass(n), 'SELECT') AND has_table_privilege(to_regclass(n), 'INSERT') "
        "AND has_table_privilege(to_regclass(n), 'UPDATE') AND has_table_privilege(to_regclass(n), 'DELETE'))), false) "
        "FROM unnest($2::text[]) AS n",
        [schema, array(beside(options.table, name) for name in (WATERMARK, UNDELIVERED))],
    )
    if missing == "t" and may_create != "t":
        return warn(
            "marks",
            f"{who} may not create the tables of delivery marks in {schema}: nothing is marked",
            f"GRANT CREATE ON SCHEMA {quote(schema)} TO {who};",
        )
    if unwritable == "t":
        tables = f"{beside(options.table, WATERMARK)}, {beside(options.table, UNDELIVERED)}"
        return warn(
            "marks",
            f"{who} may not write the tables of delivery marks: nothing is marked",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {who};",
        )
    return ok("marks", f"{options.marks}; the role may write them")


def _columns_without_update(link: PgConnection, options: PostgresOptions) -> list[str]:
    """Returns the mark columns that are missing or may not be updated."""
    found = link.query(
        "SELECT attname FROM pg_attribute WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass "
        "AND attname = ANY ($3::text[]) AND has_column_privilege(attrelid, attnum, 'UPDATE')",
        [*split_table(options.table), array(options.mark_columns)],
    )
    return sorted(options.mark_columns - {str(name) for (name,) in found})
