"""Combines deferred writes into as few statements as their order allows. Pure.

Writes of one row are merged, and rows of one table are written together: first all deletions, then the upserts of each
set of columns. The result is the same as long as rows are independent. If they are not (foreign keys, triggers, a
second unique index), or if it is uncertain whether two keys are equal, the order is kept and only neighbours are
combined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from tailrace.projections.postgres.table import Names, Row, Table


@dataclass(frozen=True, slots=True, eq=False)
class WriteShape:
    """The columns of an upsert, or of a deletion if `values` is None. Writes to the same columns share one object."""

    table: str
    key: Names
    values: Names | None

    @property
    def names(self) -> Names:
        return (*self.key, *(self.values or ()))


Write = tuple[WriteShape, Row]
"""The columns of a write and their values, those of the key first."""


class WriteStatement(NamedTuple):
    """Rows for one statement."""

    shape: WriteShape
    rows: Sequence[Row]


@lru_cache(maxsize=1024)
def write_shape(table: str, key: Names, values: Names | None) -> WriteShape:
    return WriteShape(table, key, values)


def plan(writes: Sequence[Write], tables: Mapping[str, Table]) -> Iterator[WriteStatement]:
    """Yields statements with the same result as executing `writes` one by one."""
    by_table: dict[str, list[Write]] = {}
    for write in writes:
        by_table.setdefault(write[0].table, []).append(write)
    free: set[str] = set()
    for name, own in by_table.items():
        identities = _independent(own, tables[name])
        if identities is not None:
            free.add(name)
            yield from _merged(own, identities)
    if len(free) < len(by_table):
        yield from _in_order([write for write in writes if write[0].table not in free], tables)


def _independent(writes: Sequence[Write], table: Table) -> Sequence[Any] | None:
    """Returns the identity of each write's row if the order of rows does not matter, else None."""
    # Keys of different columns, such as a deletion by a part of the key, may select the same rows.
    if table.bound or len(keys := {shape.key for shape, _ in writes}) > 1:
        return None
    return table.identities(keys.pop(), [row for _, row in writes])


def _merged(writes: Sequence[Write], identities: Sequence[Any]) -> Iterator[WriteStatement]:
    deleted: dict[Any, Write] = {}
    upserts: dict[Any, Write] = {}
    for write, identity in zip(writes, identities, strict=True):
        shape = write[0]
        if shape.values is None:
            upserts.pop(identity, None)
            deleted[identity] = write
        elif (earlier := upserts.get(identity)) is None or earlier[0] is shape:
            upserts[identity] = write
        else:
            upserts[identity] = _union(earlier, write)
    for chosen in (deleted, upserts):
        by_shape: dict[WriteShape, list[Row]] = {}
        for identity in sorted(chosen):  # so that two workers lock rows in the same order
            shape, row = chosen[identity]
            by_shape.setdefault(shape, []).append(row)
        for shape, rows in by_shape.items():
            yield WriteStatement(shape, rows)


def _union(earlier: Write, later: Write) -> Write:
    """Returns one upsert for two of the same row: of the columns in both, the later values."""
    shape, row = earlier
    columns = dict(zip(shape.names, row, strict=True)) | dict(zip(later[0].names, later[1], strict=True))
    names = tuple(columns)
    return write_shape(shape.table, shape.key, names[len(shape.key) :]), tuple(columns.values())


def _in_order(writes: Iterable[Write], tables: Mapping[str, Table]) -> Iterator[WriteStatement]:
    statement: WriteStatement | None = None
    rows: list[Row] = []
    seen: set[Any] = set()
    for shape, row in writes:
        identities = tables[shape.table].identities(shape.key, [row])
        identity = None if identities is None else identities[0]
        # One statement must not write a row twice; a row with an uncertain identity may be any other.
        alone = identity is None or identity in seen or None in seen
        if statement is None or statement.shape is not shape or alone:
            if statement is not None:
                yield statement
            rows, seen = [], set()
            statement = WriteStatement(shape, rows)
        rows.append(row)
        seen.add(identity)
    if statement is not None:
        yield statement
