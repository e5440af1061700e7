"""Layouts, statements and adapters of the writer, without a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tailrace.outbox
from tailrace.errors import ConfigError, EventInvalid
from tailrace.outbox import Outbox
from tailrace.outbox.specs import layout_map
from tailrace.outbox.writer.drivers.base import driver_for, numbered, percent_style
from tailrace.outbox.writer.requests import PARAMETER
from tailrace.outbox.writer.rows import LAYOUTS, column_map, layout_named
from tailrace.outbox.writer.table import ColumnInfo, plan_insert

ID = ColumnInfo("uuid", is_text=False, length=None, not_null=True, required=True, writable=True, unique=True)
TABLE = {
    "id": ID,
    "name": ColumnInfo(
        "character varying", is_text=True, length=3, not_null=True, required=True, writable=True, unique=False
    ),
    "payload": ColumnInfo(
        "bytea", is_text=False, length=None, not_null=False, required=False, writable=True, unique=False
    ),
}


def test_the_writer_fills_the_columns_that_the_connector_reads() -> None:
    for name, layout in LAYOUTS.items():
        for database, columns in layout.columns.items():
            assert columns == layout_map(name, database)


def test_unknown_layouts_parts_and_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="'debezum' is not a layout"):
        Outbox(layout="debezum")
    for own in ({"ident": "id"}, {"version": "headers#/version"}):
        with pytest.raises(ConfigError, match="is not possible"):
            column_map(layout_named("debezium"), "postgres", own)
    assert column_map(layout_named("debezium"), "postgres", {"key": "order_id"}).key == "order_id"


def test_statements_cast_but_never_cut() -> None:
    plan = plan_insert("outbox", TABLE, TABLE, id_column="id", many=False, skip_existing=False)
    assert numbered(plan.sql) == (
        'INSERT INTO "public"."outbox" ("id", "name", "payload") VALUES (CAST(CAST($1 AS text) AS uuid), '
        "CAST($2 AS text), convert_to(CAST($3 AS text), 'UTF8'))"
    )
    assert plan.statement([{"id": "1", "name": "abc", "payload": b"{}"}]).parameters == ["1", "abc", "{}"]
    assert plan.statement([{"id": "1", "name": "abc", "payload": None}]).parameters == ["1", "abc", None]
    with pytest.raises(EventInvalid, match="no value for the column 'name'"):
        plan.statement([{"id": "1", "name": None, "payload": None}])
    with pytest.raises(EventInvalid, match="4 characters do not fit into the column 'name'"):
        plan.statement([{"id": "1", "name": "abcd", "payload": None}])


@pytest.mark.parametrize(("unique", "end"), [(True, 'ON CONFLICT ("id") DO NOTHING'), (False, "= CAST(r.c0 AS uuid))")])
def test_rows_that_exist_are_skipped(unique: bool, end: str) -> None:
    table = {**TABLE, "id": ID._replace(unique=unique)}
    plan = plan_insert("outbox", table, table, id_column="id", many=True, skip_existing=True)
    assert plan.sql.endswith(end)
    assert plan.sql.count(PARAMETER) == 3


def test_placeholders_leave_names_alone() -> None:
    sql = f'INSERT INTO "100%" ("$1", ":x") VALUES ({PARAMETER}, {PARAMETER})'
    assert numbered(sql) == 'INSERT INTO "100%" ("$1", ":x") VALUES ($1, $2)'
    assert percent_style(sql) % ("a", "b") == 'INSERT INTO "100%" ("$1", ":x") VALUES (a, b)'


def test_what_is_no_connection_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"builtins\.str is not a connection or session that the writer knows"):
        driver_for("postgresql://localhost")


def test_the_package_exports_the_writer() -> None:
    assert sorted(tailrace.outbox.__all__) == tailrace.outbox.__all__
    for name in tailrace.outbox.__all__:
        assert getattr(tailrace.outbox, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Inbox'"):
        tailrace.outbox.Inbox  # noqa: B018


def test_no_driver_is_imported() -> None:
    script = (
        "import sys; from tailrace.outbox import Outbox; Outbox(); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'psycopg', 'asyncpg', 'sqlalchemy', 'django', 'pymongo', 'opentelemetry', 'confluent_kafka', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
