"""The predicate for rows that are not published yet, by the status columns of a layout.

A polling publisher, or Tailrace with row marks, keeps these columns. Everything that is not marked as published counts
as pending, also what a publisher has given up on (`failed`): it was never published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tailrace.sql_names import quote

_DONE: dict[str, tuple[str, tuple[str | bool, ...]]] = {
    "streams": ("processed", (True,)),
    "storage": ("delivery_status", ("delivered", "dlq")),
    "document": ("status", ("published",)),
}
"""The status column of each layout, and its values for rows that are published, or in the dead-letter table."""


def pending_predicate(layout: str, database: str = "postgres", names: Mapping[str, str] | None = None) -> str:
    """Returns the predicate as SQL, for `mongo` as a JSON filter; empty if the layout has no status column.

    `names` maps columns of the layout to the table's own names. A table of the layout `debezium` may have the column
    `processed` of `streams`, if `names` says so.
    """
    names = names or {}
    known = _DONE.get(layout) or (_DONE["streams"] if "processed" in names else None)
    if known is None:
        return ""
    column, done = names.get(known[0], known[0]), known[1]
    if database == "mongo":
        return json.dumps({column: {"$nin": list(done)} if len(done) > 1 else {"$ne": done[0]}}, sort_keys=True)
    # True also for NULL: a row without a status was never published.
    if done == (True,):
        return f"{quote(column)} IS NOT TRUE"
    values = ", ".join(f"'{value}'" for value in done)
    return f"({quote(column)} IN ({values})) IS NOT TRUE"
