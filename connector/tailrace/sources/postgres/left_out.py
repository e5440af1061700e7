"""SQL that finds the rows which a first read with `source.start_where` has left out."""

from __future__ import annotations

from dataclasses import replace

from tailrace.errors import AccessRefused, SourceError
from tailrace.positions.first_read import LEFT_OUT, UNCERTAIN, FirstRead
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import quote_table


def evaluable(link: PgConnection, table: str, first_read: FirstRead | None, *, complete: bool) -> FirstRead | None:
    """Returns `first_read` with a predicate that the table still allows; call it outside of a transaction.

    Once its columns are dropped, the predicate counts as false for every row. That is safe if the first read is
    `complete`: the rows it selected are published. Otherwise the error of the server is raised.
    """
    if first_read is None:
        return None
    try:
        link.query(f"EXPLAIN SELECT FROM {quote_table(table)} AS o WHERE ({first_read.where})")
    except AccessRefused:
        raise
    except SourceError:
        if not complete:
            raise
        return replace(first_read, where="false")
    return first_read


def left_out_mark(first_read: FirstRead, unchanged: str, when: str | None) -> str:
    """Returns the SQL expression for how a row relates to the first read: LEFT_OUT, UNCERTAIN, or NULL for other rows.

    A row for which the predicate is false was left out if it is unchanged since the snapshot (the condition
    `unchanged`) or was created before it. `when` is the expression of its time of creation in ms.
    """
    earlier = f"{when} <= {first_read.at_ms}" if when and first_read.at_ms else "NULL::boolean"
    return (
        f"CASE WHEN ({first_read.where}) IS NOT FALSE THEN NULL WHEN {unchanged} OR {earlier} THEN {LEFT_OUT} "
        f"WHEN {earlier} IS NULL THEN {UNCERTAIN} END"
    )


def not_left_out(first_read: FirstRead, unchanged: str) -> str:
    """Returns the SQL condition for rows that the first read has certainly not left out.

    Only unchanged rows are certain: the predicate may have become false for a row that was published.
    """
    return f"NOT (({first_read.where}) IS FALSE AND {unchanged})"
