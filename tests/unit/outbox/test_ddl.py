"""Tests of ddl.py: quoting, and no privilege too many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.outbox.ddl import grants_ddl, quote, quote_table, split_table, table_ddl
from tailrace.outbox.layouts import DEBEZIUM


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("outbox", ("public", "outbox")),
        ("shop.outbox", ("shop", "outbox")),
        ("Shop.OutBox", ("Shop", "OutBox")),
        ('shop."out.box"', ("shop", "out.box")),
        ('"a""b".c', ('a"b', "c")),
        ("select", ("public", "select")),
        ("shop.my outbox", ("shop", "my outbox")),
    ],
)
def test_names_are_split_as_people_write_them(table: str, parts: tuple[str, str]) -> None:
    assert split_table(table) == parts


@pytest.mark.parametrize("table", ["", ".", "a.", ".a", "a.b.c", 'a"b', '"a', '""', 'a."b"c'])
def test_invalid_table_names_are_refused(table: str) -> None:
    with pytest.raises(ConfigError):
        split_table(table)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "é" * 32])
def test_names_that_postgres_would_truncate_or_refuse_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        quote(name)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=15))
def test_a_quoted_name_is_escaped_and_parsed_unchanged(name: str) -> None:
    quoted = quote(name)
    assert quoted[0] == quoted[-1] == '"'
    assert quoted[1:-1].replace('""', "").count('"') == 0
    assert split_table(f"s.{quoted}") == ("s", name)


def test_the_table_has_the_debezium_columns() -> None:
    sql = table_ddl("shop.outbox")
    assert 'CREATE TABLE "shop"."outbox" (' in sql
    for line in [
        '"id" uuid PRIMARY KEY',
        '"aggregatetype" varchar(255) NOT NULL',
        '"aggregateid" varchar(255) NOT NULL',
        '"type" varchar(255) NOT NULL',
        '"payload" jsonb',
        '"created_at" timestamptz NOT NULL DEFAULT now()',
    ]:
        assert f"    {line}" in sql
    assert "version" not in sql


def test_the_table_follows_the_map_and_defines_no_column_twice() -> None:
    column_map = replace(DEBEZIUM, key="id", aggregate=None, version="ver", timestamp="at")
    sql = table_ddl("outbox", column_map)
    assert sql.count('"id"') == 1
    assert '"ver" integer' in sql
    assert '"at" timestamptz' in sql
    assert "aggregate" not in sql.partition("CREATE TABLE")[2]


def test_the_role_gets_only_the_privileges_it_needs() -> None:
    sql = grants_ddl("shop.outbox", "tail race", "pub")
    statements = [line for line in sql.splitlines() if line and not line.startswith("--")]
    assert statements == [
        'CREATE ROLE "tail race" WITH LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;',
        'GRANT USAGE ON SCHEMA "shop" TO "tail race";',
        'GRANT SELECT ON TABLE "shop"."outbox" TO "tail race";',
        'CREATE PUBLICATION "pub" FOR TABLE "shop"."outbox"',
        "    WITH (publish = 'insert', publish_via_partition_root = true);",
    ]


def test_a_line_break_in_a_name_does_not_end_a_comment() -> None:
    sql = grants_ddl('s."a\nDROP TABLE b;"', "r", "p")
    assert quote_table('s."a\nDROP TABLE b;"') in sql
    assert sql.splitlines()[0].startswith("-- Run as the owner of")
    assert "DROP TABLE b" in sql.splitlines()[0]
