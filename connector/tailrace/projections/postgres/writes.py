"""Combines deferred writes into as few statements as their order allows. Pure.

Writes of one row are merged, and rows of one table are written together: first all deletions, then the upserts of each
set of columns. The result is the same as long as rows are independent. If they are not (foreign keys, triggers, a
second unique index), or if it is uncertain whether two keys are equal, the order is kept and only neighbours are
combined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.projections.postgres.table import Row, Table


class Write(NamedTuple):
    """An upsert, or a deletion if `values` is None."""

    table: str
    key: Mapping[str, Any]
    values: Mapping[str, Any] | None


class WriteStatement(NamedTuple):
    """Rows for one statement: an upsert, or a deletion if `values` is None. Keys come first in each row."""

    table: str
    key: tuple[str, ...]
    values: tuple[str, ...] | None
    rows: Sequence[Row]


def plan(writes: Sequence[Write], tables: Mapping[str, Table]) -> Iterator[WriteStatement]:
    """Yields statements with the same result as executing `writes` one by one."""
    by_table: dict[str, list[Write]] = {}
    for write in writes:
        by_table.setdefault(write.table, []).append(write)
    free: set[str] = set()
    for name, own in by_table.items():
        identities = _independent(own, tables[name])
        if identities is not None:
            free.add(name)
            yield from _merged(name, own, identities)
    yield from _in_order([write for write in writes if write.table not in free], tables)


def _independent(writes: Sequence[Write], table: Table) -> list[Row] | None:
    """Returns the identity of each write's row if the order of rows does not matter, else None."""
    # Keys of different columns, such as a deletion by a part of the key, may select the same rows.
    if table.bound or len({frozenset(write.key) for write in writes}) > 1:
        return None
    identities = [table.identity(write.key) for write in writes]
    known = [each for each in identities if each is not None]
    return known if len(known) == len(identities) else None


def _merged(table: str, writes: Sequence[Write], identities: Sequence[Row]) -> Iterator[WriteStatement]:
    key = tuple(sorted(writes[0].key))
    deleted: dict[Row, Row] = {}
    upserts: dict[Row, dict[str, Any]] = {}
    for write, row in zip(writes, identities, strict=True):
        if write.values is None:
            upserts.pop(row, None)
            deleted[row] = tuple([write.key[name] for name in key])
        elif row in upserts:
            upserts[row].update(write.values)
        else:
            upserts[row] = {**write.key, **write.values}
    if deleted:
        yield WriteStatement(table, key, None, [deleted[row] for row in sorted(deleted)])
    shapes: dict[tuple[str, ...], list[Row]] = {}
    for row in sorted(upserts):  # so that two workers lock rows in the same order
        columns = upserts[row]
        names = tuple(sorted(columns.keys() - set(key)))
        shapes.setdefault(names, []).append(tuple([columns[name] for name in (*key, *names)]))
    for names, rows in shapes.items():
        yield WriteStatement(table, key, names, rows)


def _in_order(writes: Iterable[Write], tables: Mapping[str, Table]) -> Iterator[WriteStatement]:
    statement: WriteStatement | None = None
    rows: list[Row] = []
    seen: set[Row | None] = set()
    for write in writes:
        key = tuple(sorted(write.key))
        values = None if write.values is None else tuple(sorted(write.values.keys() - set(key)))
        whole = {**(write.values or {}), **write.key}
        identity = tables[write.table].identity(write.key)
        # One statement must not write a row twice; a row with an uncertain identity may be any other.
        alone = identity is None or identity in seen or None in seen
        if statement is None or statement[:3] != (write.table, key, values) or alone:
            if statement is not None:
                yield statement
            rows, seen = [], set()
            statement = WriteStatement(write.table, key, values, rows)
        rows.append(tuple([whole[name] for name in (*key, *(values or ()))]))
        seen.add(identity)
    if statement is not None:
        yield statement
