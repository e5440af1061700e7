"""Tests of ddl.py: quoting, and no privilege too many."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.outbox.ddl import grants_ddl, outbox_ddl, quote, quote_table, split_table, table_ddl
from tailrace.outbox.layouts import DEBEZIUM
from tailrace.outbox.specs import LAYOUTS


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
    assert 'CREATE TABLE IF NOT EXISTS "shop"."outbox" (' in sql
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
    assert '"ver" varchar(32)' in sql
    assert '"at" timestamptz' in sql
    assert "aggregate" not in sql.partition("CREATE TABLE")[2]


def test_the_role_gets_only_the_privileges_it_needs() -> None:
    sql = grants_ddl("shop.outbox", "tail race", "pub")
    statements = [line for line in sql.splitlines() if line and not line.startswith("--")]
    assert statements == [
        "DO $do$",
        "BEGIN",
        "    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = E'tail race') THEN",
        '        CREATE ROLE "tail race" WITH LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;',
        "    END IF;",
        "END $do$;",
        'GRANT USAGE ON SCHEMA "shop" TO "tail race";',
        'GRANT SELECT ON TABLE "shop"."outbox" TO "tail race";',
        "DO $do$",
        "BEGIN",
        "    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = E'pub') THEN",
        '        CREATE PUBLICATION "pub" FOR TABLE "shop"."outbox"',
        "            WITH (publish = 'insert', publish_via_partition_root = true);",
        "    END IF;",
        "END $do$;",
    ]


def test_a_name_cannot_end_the_block_that_quotes_it() -> None:
    name = "a$do$ '; \\' b$do_$"
    sql = grants_ddl("outbox", name, name)
    assert sql.count("$do__$") == 4
    assert f"rolname = E'{name.replace(chr(92), chr(92) * 2).replace(chr(39), chr(39) * 2)}'" in sql


@pytest.mark.parametrize("layout", ["document", "streams", "storage"])
def test_a_layout_defines_every_column_once(layout: str) -> None:
    sql = outbox_ddl(layout, "shop.events", "r", "p")
    first = sql.partition("CREATE TABLE")[2].partition(");")[0]
    for column in LAYOUTS[layout].table:
        assert first.count(f'    "{column.name}" {column.type}') == 1
    assert sql.count("CREATE TABLE") == sql.count("CREATE TABLE IF NOT EXISTS")
    assert sql.count("CREATE INDEX") == sql.count("CREATE INDEX IF NOT EXISTS")
    assert max(map(len, sql.splitlines())) <= 120


def test_a_storage_outbox_has_three_tables_beside_it() -> None:
    sql = outbox_ddl("storage", 'shop."Out Box"', "r", "p")
    for suffix in ("", "_dlq", "_wal", "_counters"):
        assert f'CREATE TABLE IF NOT EXISTS "shop"."Out Box{suffix}" (' in sql


def test_long_index_names_are_shortened_and_stay_unique() -> None:
    sql = outbox_ddl("storage", "o" * 50, "r", "p")
    names = re.findall(r'CREATE INDEX IF NOT EXISTS "(.*)"', sql)
    assert len(set(names)) == len(names) == 11
    assert max(map(len, names)) <= 63


def test_a_line_break_in_a_name_does_not_end_a_comment() -> None:
    sql = grants_ddl('s."a\nDROP TABLE b;"', "r", "p")
    assert quote_table('s."a\nDROP TABLE b;"') in sql
    assert sql.splitlines()[0].startswith("-- Run as the owner of")
    assert "DROP TABLE b" in sql.splitlines()[0]
