"""Rows that were changed since the snapshot of an unfinished first read.

A row whose transaction is later than the snapshot was inserted since, and the stream sends it; or it was in the table
before and was updated since, and only the first read can publish it. The log shows which.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from tailrace.errors import TableRewritten
from tailrace.event import Row


class ChangedRows:
    """The rows that are not inserts of the log. The log is read when the first row is looked up."""

    def __init__(self, find_inserted: Callable[[], Container[Row]]) -> None:
        self._find = find_inserted
        self._inserted: Container[Row] | None = None

    def __contains__(self, row: Row) -> bool:
        if self._inserted is None:
            self._inserted = self._find()
        return row not in self._inserted


def changed_rows(table: str, order_by: Sequence[str]) -> TableRewritten:
    """Returns the error for changed rows of a table that is read in an order which an UPDATE changes."""
    return TableRewritten(
        f"rows of {table} were changed before its first read was complete",
        why=f"Rows are read in the order of {', '.join(order_by)}, in which an UPDATE gives a row another place: it is "
        "not known which of them were published.",
        remedy="`tailrace recover plan FILE` compares the table with the topics, `recover apply` publishes the rest of "
        "it. If source.order_by names only the time and the id, rows may be changed during the first read.",
    )
