"""How many rows retention has deleted from an outbox table, by day of their creation: a table beside the outbox."""

from __future__ import annotations

from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import quote, split_table

PURGED = "tailrace_purged"


def purged_ddl(table: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {_name(table)} (pipeline text, outbox text, day date, rows bigint NOT NULL, "
        "purged_at timestamptz NOT NULL, PRIMARY KEY (pipeline, outbox, day))"
    )


def purged_rows(link: PgConnection, table: str, within: tuple[int | None, int | None] = (None, None)) -> int:
    """Returns how many rows of these days were deleted on purpose, by any pipeline; rows without a time included."""
    ((exists,),) = link.query("SELECT to_regclass($1) IS NOT NULL", [_name(table)])
    if exists != "t":
        return 0
    conditions = ["outbox = $1"]
    for sign, at_ms in zip((">=", "<="), within, strict=True):
        if at_ms is not None:
            conditions.append(f"(day = '-infinity' OR day {sign} to_timestamp({at_ms} / 1000.0)::date)")
    ((count,),) = link.query(
        f"SELECT coalesce(sum(rows), 0)::bigint FROM {_name(table)} WHERE {' AND '.join(conditions)}",  # noqa: S608
        [table],
    )
    return int(count or 0)


def _name(table: str) -> str:
    return f"{quote(split_table(table)[0])}.{quote(PURGED)}"
