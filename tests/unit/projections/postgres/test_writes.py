"""How deferred writes are combined: by table if rows are independent, else in order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tailrace.projections.postgres.table import ProjectionColumn, Table
from tailrace.projections.postgres.values import array, identity, numbers
from tailrace.projections.postgres.writes import plan, write_shape


def table(*, bound: bool = False, key: str = "integer", exact: bool = True) -> Table:
    columns = {"id": ProjectionColumn(key, -1, exact, required=True)}
    columns |= {name: ProjectionColumn("text", -1, exact=True, required=False) for name in "abc"}
    return Table('"t"', columns, bound, checked=False)


def steps(tables: Mapping[str, Table], *writes: tuple[str, Any, Mapping[str, Any] | None]) -> list[tuple[Any, ...]]:
    """Returns (table, columns besides the key, rows) of each statement."""
    asked = [
        (write_shape(name, ("id",), None if values is None else tuple(values)), (row, *(values or {}).values()))
        for name, row, values in writes
    ]
    return [(step.shape.table, step.shape.values, list(step.rows)) for step in plan(asked, tables)]


def test_rows_of_a_table_are_written_together() -> None:
    tables = {"t": table(), "u": table()}
    assert steps(
        tables, ("t", 2, {"a": "x"}), ("u", 1, {"a": "y"}), ("t", 1, {"a": "z"}), ("t", 2, {"b": "w"}), ("t", 3, None)
    ) == [
        ("t", None, [(3,)]),
        ("t", ("a",), [(1, "z")]),
        ("t", ("a", "b"), [(2, "x", "w")]),
        ("u", ("a",), [(1, "y")]),
    ]


def test_a_row_that_is_deleted_and_written_again_is_new() -> None:
    assert steps({"t": table()}, ("t", 1, {"a": "x"}), ("t", 1, None), ("t", 1, {"b": "y"})) == [
        ("t", None, [(1,)]),
        ("t", ("b",), [(1, "y")]),
    ]
    assert steps({"t": table()}, ("t", 1, {"a": "x"}), ("t", 1, None)) == [("t", None, [(1,)])]


def test_dependent_rows_keep_their_order() -> None:
    tables = {"t": table(bound=True), "u": table(bound=True), "free": table()}
    assert steps(
        tables, ("t", 2, {"a": "x"}), ("t", 1, {"a": "y"}), ("free", 1, {}), ("t", 2, {"a": "z"}), ("u", 1, {"a": "v"}),
        ("t", 3, {"a": "w"}), ("t", 3, None), ("t", 4, None),
    ) == [
        ("free", (), [(1,)]),
        ("t", ("a",), [(2, "x"), (1, "y")]),
        ("t", ("a",), [(2, "z")]),
        ("u", ("a",), [(1, "v")]),
        ("t", ("a",), [(3, "w")]),
        ("t", None, [(3,), (4,)]),
    ]  # fmt: skip


@pytest.mark.parametrize("tables", [{"t": table(key="numeric")}, {"t": table(key="text", exact=False)}])
def test_keys_that_cannot_be_compared_are_written_one_by_one(tables: dict[str, Table]) -> None:
    writes = [("t", "a", {"a": "x"}), ("t", "A", {"a": "y"}), ("t", "b", None)]
    assert steps(tables, *writes) == [
        ("t", ("a",), [("a", "x")]),
        ("t", ("a",), [("A", "y")]),
        ("t", None, [("b",)]),
    ]


def test_one_key_that_cannot_be_compared_is_written_alone() -> None:
    writes = [("t", number, {"a": "x"}) for number in (1, 2, Decimal(3), 4, 5)]
    assert [rows for _, _, rows in steps({"t": table()}, *writes)] == [
        [(1, "x"), (2, "x")],
        [(Decimal(3), "x")],
        [(4, "x"), (5, "x")],
    ]


@pytest.mark.parametrize(
    ("value", "kind", "length", "expected"),
    [
        (5, "bigint", -1, 5),
        ("5", "bigint", -1, 5),
        (True, "bigint", -1, None),
        ("five", "integer", -1, None),
        ("00000000-0000-0000-0000-000000000005", "uuid", -1, UUID(int=5)),
        ("x", "uuid", -1, None),
        ("a", "text", -1, "a"),
        (5, "text", -1, None),
        ("ab", "character varying", 2, "ab"),
        ("ab ", "character varying", 2, None),
        ("ab", "character", -1, None),
        (Decimal(1), "numeric", -1, None),
        (date(2024, 1, 1), "date", -1, date(2024, 1, 1)),
        (datetime(2024, 1, 1, tzinfo=UTC), "date", -1, None),
        (datetime(2024, 1, 1, tzinfo=UTC), "timestamp with time zone", 3, None),
        (datetime(2024, 1, 1), "timestamp with time zone", -1, None),  # noqa: DTZ001 - the session's zone decides
        ("2024-01-01", "date", -1, None),
        (b"a", "bytea", -1, b"a"),
    ],
)
def test_identity(value: Any, kind: str, length: int, expected: Any) -> None:
    assert identity(value, kind, length) == expected
    assert type(identity(value, kind, length)) is type(expected)


@pytest.mark.parametrize(
    ("texts", "literal"),
    [
        (["a", None, "", 'q"', "b\\", "{,}", "NULL"], '{"a",null,"","q\\"","b\\\\","{,}","NULL"}'),
        (["a\nb", None, "é"], '{"a\nb",NULL,"é"}'),
        (["\\n", "\x7f\t"], '{"\\\\n","\x7f\t"}'),
        ([], "{}"),
    ],
)
def test_a_literal_of_texts(texts: list[str | None], literal: str) -> None:
    assert array(texts) == literal


def test_a_literal_of_numbers() -> None:
    assert numbers([1, None, -(2**63)]) == "{1,null,-9223372036854775808}"
    assert numbers([2**70, None]) == "{1180591620717411303424,NULL}", "Postgres refuses it, not the encoder"


def test_columns_of_one_shape_and_of_several() -> None:
    """The later values of a row count, in the columns that both writes have."""
    first, again, other = {"a": "1", "b": "2"}, {"a": "3", "b": "4"}, {"b": "5", "c": "6"}
    assert steps({"t": table()}, ("t", 1, first), ("t", 1, again)) == [("t", ("a", "b"), [(1, "3", "4")])]
    assert steps({"t": table()}, ("t", 1, first), ("t", "1", other)) == [("t", ("a", "b", "c"), [("1", "1", "5", "6")])]
