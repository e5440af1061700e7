"""The mark columns of each layout: which columns a delivery mark writes, and what it writes. Pure.

One table for both databases and both kinds of marks: row marks write these columns, the watermark's view derives them.
A row without a mark is pending. A published row is never marked again, so the first mark counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tailrace.errors import ConfigError
from tailrace.event import Row


class Value(Enum):
    """A value that a mark writes into a column and that is not constant."""

    NOW = "the time of the mark"
    FIRST = "the time of the mark, unless the column has a time"
    PLUS_ONE = "one more than before"
    ERROR = "reason and explanation of the dead letter"
    NOTHING = "null"


Assignments = Mapping[str, Value | str | bool]
"""What is written, by column."""


@dataclass(frozen=True, slots=True)
class MarkColumns:
    """The mark columns of a layout. `status` has the value `done` once its row is published.

    `waiting` and `failed` are the values of `status` before that, and for a dead-lettered row.
    """

    status: str
    done: str | bool
    waiting: str | bool
    failed: str | bool
    published: Assignments
    dead_lettered: Assignments
    at: str | None = None
    """The column with the time of publication."""
    error: str | None = None
    """The column with the error of a dead-lettered row."""
    copies: str | None = None
    """The suffix of the table that gets a copy of a dead-lettered row, in the transaction of its mark."""

    @property
    def names(self) -> tuple[str, ...]:
        """All mark columns."""
        return tuple(dict.fromkeys((self.status, *self.published, *self.dead_lettered)))

    def is_done(self, row: Row) -> bool:
        """Returns whether the mark of a row says that it is published."""
        for column, value in zip(row.columns, row.values, strict=False):
            if column.name == self.status:
                return value == (self.done.encode() if isinstance(self.done, str) else b"t")
        return False

    def renamed(self, names: Mapping[str, str]) -> MarkColumns:
        """Returns the columns under the names of a table; `names` maps the layout's names to others."""

        def of(assignments: Assignments) -> Assignments:
            return {names.get(column, column): value for column, value in assignments.items()}

        return replace(
            self,
            status=names.get(self.status, self.status),
            published=of(self.published),
            dead_lettered=of(self.dead_lettered),
            at=self.at and names.get(self.at, self.at),
            error=self.error and names.get(self.error, self.error),
        )


STREAMS = MarkColumns(
    status="processed",
    done=True,
    waiting=False,
    failed=False,
    published={"processed": True, "processed_at": Value.NOW, "error": Value.NOTHING},
    dead_lettered={"error": Value.ERROR},
    at="processed_at",
    error="error",
)
"""Also the view's columns for a table without mark columns."""
STORAGE = MarkColumns(
    status="delivery_status",
    done="delivered",
    waiting="pending",
    failed="dlq",
    published={
        "delivery_status": "delivered",
        "delivery_attempts": Value.PLUS_ONE,
        "first_attempt_at": Value.FIRST,
        "last_attempt_at": Value.NOW,
        "delivered_at": Value.NOW,
    },
    dead_lettered={
        "delivery_status": "dlq",
        "delivery_attempts": Value.PLUS_ONE,
        "first_attempt_at": Value.FIRST,
        "last_attempt_at": Value.NOW,
    },
    at="delivered_at",
    copies="_dlq",
)
DOCUMENT = MarkColumns(
    status="status",
    done="published",
    waiting="pending",
    failed="failed",
    published={"status": "published", "published_at": Value.NOW},
    dead_lettered={
        "status": "failed",
        "retry_count": Value.PLUS_ONE,
        "last_error": Value.ERROR,
        "last_error_at": Value.NOW,
    },
    at="published_at",
    error="last_error",
)
BY_LAYOUT = {"streams": STREAMS, "storage": STORAGE, "document": DOCUMENT}


def mark_columns(layout: str, names: Mapping[str, str] | None = None) -> MarkColumns | None:
    """Returns the mark columns of a layout under the names of the table; None if the layout has none.

    A table of the layout `debezium` may have the columns of `streams`, if `names` says so.
    """
    names = names or {}
    columns = BY_LAYOUT.get(layout) or (STREAMS if names else None)
    if columns is None:
        return None
    if unknown := sorted(names.keys() - set(columns.names)):
        raise ConfigError(
            f"outbox.mark_columns names {unknown[0]}, which is no mark column of the layout {layout}",
            why=f"Its mark columns are {', '.join(columns.names)}.",
            remedy="Write one of these on the left, and the table's own name for it on the right.",
        )
    if layout not in BY_LAYOUT:
        columns = _only(columns, names)
    return columns.renamed(names)


def _only(columns: MarkColumns, names: Mapping[str, str]) -> MarkColumns:
    """Returns the columns that are named; a table need not have the others."""
    if columns.status not in names:
        raise ConfigError(
            f"outbox.mark_columns does not name {columns.status}",
            why="That column says whether a row was published.",
            remedy=f"Add it: mark_columns: {{{columns.status}: …}}.",
        )
    return replace(
        columns,
        published={column: value for column, value in columns.published.items() if column in names},
        dead_lettered={column: value for column, value in columns.dead_lettered.items() if column in names},
        at=columns.at if columns.at in names else None,
        error=columns.error if columns.error in names else None,
    )


def require_mark_columns(layout: str, names: Mapping[str, str] | None = None) -> MarkColumns:
    """Returns the mark columns; raises ConfigError if the layout has none."""
    columns = mark_columns(layout, names)
    if columns is None:
        raise ConfigError(
            f"`marks: rows` needs columns to write to, and the layout {layout} has none",
            why="Debezium's outbox table says nothing about delivery.",
            remedy="Set marks: watermark, which needs no columns; or add columns to the table and name them: "
            "outbox.mark_columns: {processed: …, processed_at: …, error: …}.",
        )
    return columns
