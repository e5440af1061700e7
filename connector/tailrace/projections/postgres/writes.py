"""Writes that were put off, carried out in as few steps as their order allows. Pure.

Writes of one row are merged, and rows of one table go together: all deletions, then the upserts of each set of columns.
Nobody can see the difference as long as rows do not know of each other. Where they do, by a foreign key, a trigger or a
second unique index, or where nobody can tell whether two keys are the same, the order is kept and only neighbours go
together.
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
    """The steps that come to the same as `writes`, one after the other."""
    by_table: dict[str, list[Write]] = {}
    for write in writes:
        by_table.setdefault(write.table, []).append(write)
    free: set[str] = set()
    for name, own in by_table.items():
        identities = _apart(own, tables[name])
        if identities is not None:
            free.add(name)
            yield from _merged(name, own, identities)
    yield from _in_order([write for write in writes if write.table not in free], tables)


def _apart(writes: Sequence[Write], table: Table) -> list[Row] | None:
    """The identity of each write's row, if the order of rows is of no account."""
    # Keys of other columns, such as a deletion by a part of the key, may mean the same rows.
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
    for row in sorted(upserts):  # so that two workers lock rows in one order
        columns = upserts[row]
        names = tuple(sorted(columns.keys() - set(key)))
        shapes.setdefault(names, []).append(tuple([columns[name] for name in (*key, *names)]))
    for names, rows in shapes.items():
        yield WriteStatement(table, key, names, rows)


def _in_order(writes: Iterable[Write], tables: Mapping[str, Table]) -> Iterator[WriteStatement]:
    step: WriteStatement | None = None
    rows: list[Row] = []
    seen: set[Row | None] = set()
    for write in writes:
        key = tuple(sorted(write.key))
        values = None if write.values is None else tuple(sorted(write.values.keys() - set(key)))
        whole = {**(write.values or {}), **write.key}
        identity = tables[write.table].identity(write.key)
        # No statement writes a row twice; one whose identity is not certain might be any other.
        alone = identity is None or identity in seen or None in seen
        if step is None or step[:3] != (write.table, key, values) or alone:
            if step is not None:
                yield step
            rows, seen = [], set()
            step = WriteStatement(write.table, key, values, rows)
        rows.append(tuple([whole[name] for name in (*key, *(values or ()))]))
        seen.add(identity)
    if step is not None:
        yield step
