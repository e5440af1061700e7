"""Which catalog changes count as lost rows, which do not, and what the check costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tailrace.errors import PublicationBroken
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition
from tailrace.sources.postgres import catalog, publication, unpublished_rows
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.source import PostgresSource
from tailrace.sources.postgres.unpublished_rows import OutboxPartition, UnpublishedRowsCheck
from tailrace.wakeup import Wakeup

TABLE = "CREATE TABLE outbox (id int PRIMARY KEY, seq int NOT NULL, payload text); INSERT INTO outbox VALUES (1, 1, '')"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def options(database: str, table: str = "public.outbox") -> PostgresOptions:
    return PostgresOptions(database, table, "looks", "looks", event_columns=frozenset({"id"}))


def test_maintenance_of_a_table_in_a_published_schema_is_allowed(
    database: str, connection: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """Much that is not a move to another schema gives constraints new oids."""
    connection.execute(TABLE)
    connection.execute("CREATE UNIQUE INDEX by_seq ON outbox (seq); CREATE SCHEMA away")
    connection.execute("CREATE PUBLICATION looks FOR TABLES IN SCHEMA public WITH (publish = 'insert')")
    outbox = options(database)
    with PgConnection(database, replication=False, timeout=20) as link:
        watch = UnpublishedRowsCheck(outbox.table, catalog.oldest_running(link))
        for statement in (
            "REINDEX TABLE CONCURRENTLY outbox",
            "ALTER TABLE outbox ADD CONSTRAINT one_seq UNIQUE USING INDEX by_seq",
            "ALTER TABLE outbox RENAME CONSTRAINT one_seq TO seq_once",
            "ALTER TABLE outbox OWNER TO CURRENT_USER",
            "VACUUM FULL outbox",
        ):
            connection.execute(statement)
            assert watch.verify(link, publication.read_published(link, outbox)), statement
        for statement in ("SET SCHEMA away", "SET SCHEMA public"):
            connection.execute(f"ALTER TABLE {'away.' if 'public' in statement else ''}outbox {statement}")
        connection.execute(
            "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, DROP CONSTRAINT seq_once, ADD PRIMARY KEY (id)"
        )
        with pytest.raises(PublicationBroken, match="moved to another schema"):
            watch.verify(link, publication.read_published(link, outbox))


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the tables that a plan scans sequentially, and how many times."""
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"], plan["Actual Loops"]
    for below in plan.get("Plans", []):
        yield from scans(below)


def test_a_check_does_not_scan_the_whole_catalog(
    database: str, connection: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """It runs every few seconds in the thread that reads the log; the database may have many tables."""
    connection.execute(
        "CREATE TABLE outbox (id int, day int, done bool, PRIMARY KEY (id, day)) PARTITION BY LIST (day)"
    )
    for day in range(150):
        connection.execute(f"CREATE TABLE outbox_{day} PARTITION OF outbox FOR VALUES IN ({day})")
    connection.execute(TABLE.replace("outbox", "plain"))
    connection.execute("VACUUM ANALYZE pg_class, pg_attribute, pg_inherits, pg_depend, pg_index")
    with PgConnection(database, replication=False, timeout=20) as link:
        assert link.query("SHOW jit") == [("off",)], "to compile such a query takes a second"
        for table in ("outbox", "plain"):
            ((oid,),) = link.query("SELECT $1::regclass::oid", [table])
            for query, parameters in ((unpublished_rows._TREE, [oid]), (publication._MOVES, ["public", table, "id"])):
                ((explained,),) = link.query(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", parameters)
                found = dict(scans(json.loads(str(explained))[0]["Plan"]))
                assert not found.keys() & {"pg_class", "pg_attribute", "pg_depend", "pg_index"}, (table, found)
                assert found.get("pg_inherits", 0) <= 2, "once per level, not once per partition"


def test_a_table_that_was_read_at_the_start_is_not_read_again(
    database: str, connection: psycopg.Connection[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a start, reading a large table may take long; while streaming it would end the stream."""
    looked: list[str] = []
    has_row = UnpublishedRowsCheck._has_row

    def noted(
        self: UnpublishedRowsCheck,
        control: PgConnection,
        member: OutboxPartition,
        condition: str,
        timeout: float | None,
    ) -> bool | None:
        looked.append(member.name)
        return has_row(self, control, member, condition, timeout)

    connection.execute(TABLE)
    connection.execute("CREATE PUBLICATION looks FOR ALL TABLES WITH (publish = 'insert')")
    stored: list[Position] = []
    wakeup = Wakeup()
    source = PostgresSource(options(database), wakeup=wakeup)
    try:
        source.open(None, stored.append)
        source.close()
        connection.execute("VACUUM FULL outbox")
        monkeypatch.setattr(UnpublishedRowsCheck, "_has_row", noted)
        source = PostgresSource(options(database), wakeup=wakeup)
        assert isinstance(stored[-1], LsnPosition)
        assert stored[-1].watched
        source.open(stored[-1], stored.append)
        source.read(100, 1 << 20, 0.1)
        assert source._feedback.verified, "there was no probe"
        assert looked == ["outbox"]
    finally:
        source.close()
        wakeup.close()
        connection.execute("SELECT pg_drop_replication_slot('looks')")
