"""The outbox table in Postgres: its columns as the catalog describes them, and the INSERT statements for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from tailrace.errors import EventInvalid, LayoutMismatch
from tailrace.outbox.writer.requests import PARAMETER, InsertRows, Query
from tailrace.sql_names import quote, quote_table

_COLUMNS = f"""\
SELECT a.attname, format_type(a.atttypid, NULL), t.typcategory = 'S',
       CASE WHEN t.typname IN ('varchar', 'bpchar') AND a.atttypmod > 4 THEN a.atttypmod - 4 END,
       a.attnotnull, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = '',
       a.attgenerated = '',
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid
               AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum AND i.indimmediate)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(CAST({PARAMETER} AS text)) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""  # noqa: S608 - the marker of a parameter


_VERSIONS = ("aggregate_version", "entity_version")


class ColumnInfo(NamedTuple):
    """A column: its type without a length, the length of text, whether NULL is refused, whether an INSERT must fill
    it, whether it may, and whether it is unique by itself."""

    type: str
    is_text: bool
    length: int | None
    not_null: bool
    required: bool
    writable: bool
    unique: bool


Table = dict[str, ColumnInfo]


def catalog_query(table: str) -> Query:
    return Query(_COLUMNS, (quote_table(table),))


def read_catalog(table: str, rows: Iterable[tuple[Any, ...]]) -> Table:
    found = {name: ColumnInfo(*described) for name, *described in rows}
    if not found:
        raise LayoutMismatch(
            f"there is no table {table}",
            why="The connection's database has no table of this name, or the role may not use its schema.",
            remedy="Create it (`tailrace init` writes the SQL), or name the outbox table in Outbox(table=…).",
        )
    return found


class InsertPlan(NamedTuple):
    """An INSERT for rows with certain columns. `limits` are the indexes and lengths of bounded
    columns, `not_null` the indexes of those that refuse NULL."""

    sql: str
    columns: tuple[str, ...]
    limits: tuple[tuple[int, int], ...]
    not_null: tuple[int, ...]
    many: bool

    def statement(self, rows: list[dict[str, Any]]) -> InsertRows:
        """Returns the statement for these rows. Raises EventInvalid if a value does not fit into its column."""
        texts = [
            [value if value.__class__ is str else to_text(value) for value in map(row.__getitem__, self.columns)]
            for row in rows
        ]
        for row in texts:
            if None in row:
                for index in self.not_null:
                    if row[index] is None:
                        raise EventInvalid(
                            f"the event has no value for the column {self.columns[index]!r}",
                            why="The column is NOT NULL.",
                            remedy="Give the value, such as topic=… or extra={…}, or let the column be NULL.",
                        )
            for index, limit in self.limits:
                if (value := row[index]) is not None and len(value) > limit:
                    raise EventInvalid(
                        f"{len(value):,} characters do not fit into the column {self.columns[index]!r}",
                        why=f"The column has room for {limit:,}.",
                        remedy="Use a shorter value, or make the column text.",
                    )
        return InsertRows(self.sql, list(map(list, zip(*texts, strict=True))) if self.many else texts[0])


def plan_insert(
    name: str, table: Table, columns: Iterable[str], *, id_column: str, many: bool, skip_existing: bool
) -> InsertPlan:
    """Returns the INSERT of these columns. `skip_existing` leaves out rows whose id is in the table already.

    All values are sent as text and cast on the server, so that codecs registered on the connection do not matter. An
    explicit cast to varchar(n) would cut the text, so text is not cast further.
    """
    columns = tuple(columns)
    unique = table[id_column].unique
    # Without a unique index the statement looks for the id itself, which only the form for several rows can.
    many = many or (skip_existing and not unique)
    names = ", ".join(quote(column) for column in columns)
    into = f"INSERT INTO {quote_table(name)} ({names})"
    conflict = f" ON CONFLICT ({quote(id_column)}) DO NOTHING" if skip_existing and unique else ""
    checks = checks_of(table, columns)
    if not many:
        values = ", ".join(cast_text(f"CAST({PARAMETER} AS text)", table[column]) for column in columns)
        sql = f"{into} VALUES ({values}){conflict}"
        return InsertPlan(sql, columns, *checks, many=False)
    values = ", ".join(cast_text(f"r.c{number}", table[column]) for number, column in enumerate(columns))
    arrays = ", ".join(f"CAST({PARAMETER} AS text[])" for _ in columns)
    aliases = ", ".join(f"c{number}" for number in range(len(columns)))
    where = ""
    if skip_existing and not unique:
        wanted = cast_text(f"r.c{columns.index(id_column)}", table[id_column])
        where = f" WHERE NOT EXISTS (SELECT FROM {quote_table(name)} o WHERE o.{quote(id_column)} = {wanted})"
    sql = f"{into} SELECT {values} FROM unnest({arrays}) AS r({aliases}){where}{conflict}"  # noqa: S608 - names are quoted
    return InsertPlan(sql, columns, *checks, many=True)


def checks_of(table: Table, columns: tuple[str, ...]) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Returns what an InsertPlan checks: the columns with a bounded length, and those that are NOT NULL."""
    limits = tuple((at, length) for at, column in enumerate(columns) if (length := table[column].length) is not None)
    return limits, tuple(at for at, column in enumerate(columns) if table[column].not_null)


def exists_condition(name: str, id_column: str, id_type: ColumnInfo, also: str = "") -> str:
    """Returns the SQL condition that a table has a row with an id, for which `also` holds; it has one parameter."""
    wanted = cast_text(f"CAST({PARAMETER} AS text)", id_type)
    return f"EXISTS (SELECT FROM {quote_table(name)} WHERE {quote(id_column)} = {wanted}{also})"


def require_columns(name: str, table: Table, filled: Iterable[str], why: Mapping[str, str]) -> None:
    """Raises LayoutMismatch if the table lacks a filled column, or demands one that is not filled."""
    filled = list(filled)
    missing = [column for column in filled if column not in table or not table[column].writable]
    if missing:
        raise LayoutMismatch(
            f"{name} has no column {missing[0]!r} that can be written",
            why=f"{why.get(missing[0], 'The layout writes it')}; the table has: {', '.join(table)}.",
            remedy="Add the column to the table, or name another in Outbox(columns=…).",
        )
    unfilled = [column for column, each in table.items() if each.required and column not in filled]
    if unfilled:
        raise LayoutMismatch(
            f"{name} demands a value for the column {unfilled[0]!r}",
            why="It is NOT NULL without a default, and the layout does not fill it.",
            remedy=f"Give it: {_argument(unfilled[0])}. Or give the column a default.",
        )


def _argument(column: str) -> str:
    return "aggregate_version=…" if column in _VERSIONS else f"extra={{{column!r}: …}}"


def to_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    return str(value)


def cast_text(text: str, column: ColumnInfo) -> str:
    """Returns an SQL expression for a text parameter as a value of the column."""
    if column.is_text:
        return text
    if column.type == "bytea":
        return f"convert_to({text}, 'UTF8')"
    return f"CAST({text} AS {column.type})"
