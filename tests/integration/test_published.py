"""Why a table is not published: each cause with its remedy, which is then executed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tailrace.errors import AccessRefused, LayoutMismatch, PublicationBroken
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.publication import read_published, require_columns

PARTITIONED = "CREATE TABLE outbox (id int PRIMARY KEY, payload text) PARTITION BY RANGE (id)"
CAUSES = {
    "no table": ([], "there is no table public.outbox", ""),
    "not in it": (
        ["CREATE TABLE outbox (id int)", "CREATE PUBLICATION pub"],
        'does not contain "public"."outbox"',
        "ADD TABLE",
    ),
    "unlogged": (
        ["CREATE UNLOGGED TABLE outbox (id int)", "CREATE PUBLICATION pub FOR ALL TABLES"],
        '"public"."outbox" is unlogged',
        "SET LOGGED",
    ),
    "partitions instead": (
        [PARTITIONED, "CREATE TABLE part PARTITION OF outbox DEFAULT", "CREATE PUBLICATION pub FOR ALL TABLES"],
        "publishes the partitions",
        "publish_via_partition_root = true",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_reported_with_a_remedy_that_works(database: str, cause: str) -> None:
    statements, problem, fix = CAUSES[cause]
    outbox: Any = SimpleNamespace(
        publication="pub", table="public.outbox", id_column="id", event_columns={"id"}, messages=None
    )
    with (
        psycopg.connect(database, autocommit=True) as connection,
        PgConnection(database, replication=False, timeout=20) as link,
    ):
        for statement in statements or ["CREATE PUBLICATION pub"]:
            connection.execute(statement)
        with pytest.raises(PublicationBroken, match=problem) as caught:
            read_published(link, outbox)
        remedy = caught.value.remedy
        assert fix in remedy
        if not fix:
            assert "--adopt" not in remedy
            return
        connection.execute(remedy.partition(";")[0])
        assert read_published(link, outbox).fingerprint


def test_row_security_is_reported(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE outbox (id int)")
        connection.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        connection.execute("CREATE ROLE hidden_reader; GRANT SELECT ON outbox TO hidden_reader")
    try:
        with PgConnection(database, replication=False, timeout=20) as link:
            link.query("SET ROLE hidden_reader")
            link.query("SET row_security = off")
            with pytest.raises(AccessRefused) as caught:
                link.query("SELECT * FROM outbox")
        assert "BYPASSRLS" in caught.value.remedy
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("DROP OWNED BY hidden_reader; DROP ROLE hidden_reader")


@pytest.mark.parametrize(
    ("columns", "members", "cause"),
    [
        ("id int, payload text, key text GENERATED ALWAYS AS ('k') STORED", "outbox", "'key' .* it is generated"),
        ("id int, payload text, key text", "outbox (id, key)", "'payload' .* not in the publication's column list"),
        ("id int, payload text, key text, more text", "outbox (id, key, payload)", ""),
    ],
)
def test_columns_that_are_not_in_the_log_are_reported(database: str, columns: str, members: str, cause: str) -> None:
    outbox: Any = SimpleNamespace(
        publication="pub",
        table="public.outbox",
        id_column="id",
        event_columns=frozenset({"id", "key", "payload"}),
        messages=None,
    )
    with (
        psycopg.connect(database, autocommit=True) as connection,
        PgConnection(database, replication=False, timeout=20) as link,
    ):
        connection.execute(f"CREATE TABLE outbox ({columns})")
        connection.execute(f"CREATE PUBLICATION pub FOR TABLE {members} WITH (publish = 'insert')")
        if cause:
            with pytest.raises(LayoutMismatch, match=cause):
                require_columns(link, outbox)
        else:
            require_columns(link, outbox)
