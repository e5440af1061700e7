"""Checks `source.start_where` against the server before anything is created, read or published."""

from __future__ import annotations

from tailrace.errors import AccessRefused, SourceError, StartWhereInvalid
from tailrace.positions.postgres import LsnPosition
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.predicate import parse_predicate
from tailrace.sources.postgres.snapshot import SORT_TIMEOUT
from tailrace.sources.start_where import require_same
from tailrace.sql_names import quote_table

_CHANGING = """
SELECT 'the function ' || p.proname FROM pg_proc p WHERE p.proname = ANY ($1::text[])
AND (p.provolatile = 'v' OR (p.provolatile = 's' AND (p.pronargs = 0 OR p.proname IN ('age', 'current_setting'))))
UNION ALL
SELECT 'the operator ' || o.oprname FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
WHERE o.oprname = ANY ($2::text[]) AND p.provolatile = 'v'
ORDER BY 1 LIMIT 1
"""


def require_valid(link: PgConnection, table: str, where: str, *, every_row: bool) -> None:
    """Raises StartWhereInvalid if the predicate cannot be used. Changes nothing.

    `every_row` also evaluates it for each row: it may fail for some, and must be true or false for all of them. That
    reads the whole table.
    """
    try:
        used = parse_predicate(where)
    except ValueError as error:
        raise invalid(where, str(error)) from None
    link.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        link.query("SET LOCAL row_security = off")
        found = f"FROM {quote_table(table)} AS o WHERE (({where}) IS UNKNOWN)"
        # Parsed and planned, not run: wrong names, types and constants are reported here.
        link.query(f"EXPLAIN SELECT {found}")
        changing = link.query(_CHANGING, [_array(used.functions), _array(used.operators)])
        if changing:
            raise invalid(where, f"{changing[0][0]} does not depend on the row alone (it is volatile, or its value "
                          "changes from session to session)")  # fmt: skip
        unknown = link.query(f"SELECT EXISTS (SELECT {found})", timeout=SORT_TIMEOUT)[0][0] if every_row else "f"
    except AccessRefused:
        raise
    except SourceError as error:
        raise invalid(where, error.what) from None
    finally:
        link.query("ROLLBACK")
    if unknown == "t":
        raise invalid(
            where,
            "it is neither true nor false (NULL) for some rows, which would be left out silently",
            "Say what NULL means, such as `processed IS NOT TRUE` instead of `processed = false`.",
        )


def count_rows(link: PgConnection, table: str, where: str, timeout: float) -> tuple[int, int, int] | None:
    """Returns for how many rows the predicate is true, false and NULL; None if that takes too long."""
    link.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        link.query("SET LOCAL row_security = off")
        link.query(f"SET LOCAL statement_timeout = {int(timeout * 800)}")
        ((true, false, unknown),) = link.query(
            f"SELECT count(*) FILTER (WHERE ({where})), count(*) FILTER (WHERE NOT ({where})), "  # noqa: S608 - checked
            f"count(*) FILTER (WHERE ({where}) IS UNKNOWN) FROM {quote_table(table)} AS o",
        )
    except AccessRefused:
        raise
    except SourceError as error:
        if error.what.endswith("[57014]"):  # the timeout
            return None
        raise invalid(where, error.what) from None
    finally:
        link.query("ROLLBACK")
    return int(true or 0), int(false or 0), int(unknown or 0)


def require_unchanged(stored: LsnPosition | None, options: PostgresOptions) -> None:
    """Raises if a first read is under way with another predicate."""
    if stored is not None and stored.table_read is not None:
        require_same(stored.table_read.where, options.start_where, is_default=options.default_where)


def invalid(where: str, why: str, remedy: str = "") -> StartWhereInvalid:
    return StartWhereInvalid(
        f"source.start_where cannot be used: {where.strip()[:200]}",
        why=why[:1].upper() + why[1:] + ".",
        remedy=remedy or "Write a condition on columns of the outbox alone, such as `processed IS NOT TRUE`.",
    )


def _array(names: frozenset[str]) -> str:
    return "{" + ",".join('"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in sorted(names)) + "}"
