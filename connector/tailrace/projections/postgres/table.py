"""Tables that handlers write to: their catalog data, and the SQL that writes many rows at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psycopg import AsyncConnection

from tailrace.errors import ConfigError
from tailrace.projections.postgres.values import identities
from tailrace.sql_names import quote, split_table

Row = tuple[Any, ...]
Names = tuple[str, ...]


class ProjectionColumn(NamedTuple):
    """A column. `exact`: its collation is deterministic. `required`: NOT NULL without a default."""

    type: str
    length: int
    exact: bool
    required: bool


@dataclass(slots=True)
class Table:
    """A table. `bound`: its rows depend on other rows (triggers, foreign keys). `checked`: it has CHECK constraints."""

    name: str
    columns: Mapping[str, ProjectionColumn]
    bound: bool
    checked: bool
    _statements: dict[tuple[Names, Names | None], bytes] = field(default_factory=dict)

    def identities(self, key: Names, rows: Iterable[Row]) -> Sequence[Any] | None:
        """Returns for each row a value that is equal for equal keys only; None if that is not certain.

        `key` names the first columns of the rows.
        """
        found = []
        for name, values in zip(key, zip(*rows, strict=False), strict=False):
            column = self.columns.get(name)
            known = None if column is None or not column.exact else identities(values, column.type, column.length)
            if known is None:
                return None
            found.append(known)
        return found[0] if len(found) == 1 else list(zip(*found, strict=True))

    def require(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.columns:
                raise ConfigError(
                    f"the table {self.name} has no column {name!r}",
                    why="A handler writes to it. Names are case-sensitive.",
                    remedy="Add the column, or fix the name.",
                )

    def statement(self, key: Names, values: Names | None) -> bytes:
        """Returns an upsert, or a deletion if `values` is None; its parameters are a text array for each column."""
        known = self._statements.get((key, values))
        if known is None:
            known = (_delete(key, self) if values is None else _upsert(key, values, self)).encode()
            self._statements[key, values] = known
        return known


def _upsert(key: Names, values: Names, table: Table) -> str:
    names = (*key, *values)
    target, columns, given = _literal(table.name), ", ".join(map(_name, names)), _given(names, table)
    update = f"SET {', '.join(f'{_name(each)} = EXCLUDED.{_name(each)}' for each in values)}"
    conflict = f"ON CONFLICT ({', '.join(map(_name, key))}) DO {f'UPDATE {update}' if values else 'NOTHING'}"
    if _complete(names, table):
        return f"INSERT INTO {target} ({columns}) {given} {conflict}"
    # An INSERT of an incomplete row would fail before ON CONFLICT finds that the row exists.
    if values:
        update = f"SET {', '.join(f'{_name(each)} = given.{_name(each)}' for each in values)}"
        known = f"UPDATE {target} AS it {update} FROM given WHERE {_same('it', key)} RETURNING given.*"
    else:
        known = f"SELECT given.* FROM {target} AS it, given WHERE {_same('it', key)}"  # noqa: S608
    new = f"SELECT * FROM given WHERE NOT EXISTS (SELECT FROM known WHERE {_same('known', key)})"  # noqa: S608
    return f"WITH given AS MATERIALIZED ({given}), known AS ({known}) INSERT INTO {target} ({columns}) {new} {conflict}"


def _complete(names: Sequence[str], table: Table) -> bool:
    """Whether a row with only these columns can be inserted."""
    missing = table.columns.keys() - set(names)
    return not missing or not (table.checked or any(table.columns[name].required for name in missing))


def _delete(key: Names, table: Table) -> str:
    given, same = _given(key, table), _same("it", key)
    return f"DELETE FROM {_literal(table.name)} AS it USING ({given}) AS given WHERE {same}"  # noqa: S608


def _same(other: str, key: Sequence[str]) -> str:
    return " AND ".join(f"{other}.{_name(each)} = given.{_name(each)}" for each in key)


def _given(names: Sequence[str], table: Table) -> str:
    casts = ", ".join(f"c{at}::{_literal(table.columns[each].type)} AS {_name(each)}" for at, each in enumerate(names))
    arrays = ", ".join("%s::text[]" for _ in names)
    return f"SELECT {casts} FROM unnest({arrays}) AS u({', '.join(f'c{at}' for at in range(len(names)))})"  # noqa: S608


def _name(column: str) -> str:
    return _literal(quote(column))


def _literal(sql: str) -> str:
    """Escapes %, which psycopg reads as a placeholder."""
    return sql.replace("%", "%%")


# The type without its length: a cast to varchar(3) would truncate what an insert refuses.
_COLUMNS = """
    SELECT attname, format_type(atttypid, -1),
           CASE WHEN atttypid = 'varchar'::regtype AND atttypmod >= 0 THEN atttypmod - 4 ELSE atttypmod END,
           coalesce(collisdeterministic, true), attnotnull AND NOT atthasdef AND attidentity = ''
    FROM pg_attribute LEFT JOIN pg_collation c ON c.oid = attcollation
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
# Foreign keys are triggers, on both sides.
_TABLE = """
    SELECT relkind NOT IN ('r', 'p') OR relhastriggers OR relhasrules OR 1 < (
               SELECT count(*) FROM pg_index WHERE indrelid = r.oid AND (indisunique OR indisexclusion)),
           EXISTS (SELECT FROM pg_constraint WHERE conrelid = r.oid AND contype = 'c')
    FROM pg_class r WHERE oid = to_regclass(%s)
"""


async def look_up(connection: AsyncConnection[Any], table: str) -> Table:
    """Loads a table by name: `table`, found by the search path, or `schema.table`."""
    schema, bare = split_table(table)
    name = quote(bare) if table in (bare, quote(bare)) else f"{quote(schema)}.{quote(bare)}"
    columns = await (await connection.execute(_COLUMNS, [name])).fetchall()
    found = await (await connection.execute(_TABLE, [name])).fetchone()
    if found is None:
        raise ConfigError(
            f"there is no table {name}",
            why="A handler writes to it. Names are case-sensitive.",
            remedy="Create it (PostgresStore's `tables` does at each start), or fix the name.",
        )
    return Table(name, {each: ProjectionColumn(*about) for each, *about in columns}, *found)
