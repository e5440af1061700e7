"""`tailrace outbox ddl --by-day` on a real server: partitions of the next days, made again and again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tailrace.outbox.daily import DAYS_AHEAD
from tailrace.outbox.ddl import outbox_ddl
from tailrace.outbox.specs import LAYOUTS
from tailrace.sql_names import quote_table

PARTITIONS = """
SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = %s::regclass ORDER BY 1
"""
INSERTS = {
    "debezium": "(id, aggregatetype, aggregateid, type, payload) VALUES (gen_random_uuid(), 'order', 'o', 'T', '{}')",
    "document": "(event_id, event_type, entity_type, entity_id, entity_version, topic, partition_key, payload) "
    "VALUES ('e', 'T', 'order', 'o', 1, 'orders', 'o', '{}')",
    "streams": "(id, stream, topic, payload) VALUES ('e', 'orders', 'order.placed', '{}')",
    "storage": "(outbox_id, aggregate_id, aggregate_type, event_type, event_payload, sequence_number, target_topic) "
    "VALUES ('e', 'o', 'order', 'T', '{}', 1, 'orders')",
}


@pytest.fixture
def role(database: str) -> Iterator[str]:
    name = f"r_{uuid.uuid4().hex[:8]}"
    yield name
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("layout", "table"),
    [*((layout, 'public."Out\'s 100% Box"') for layout in LAYOUTS), ("streams", f"public.{'long' * 15}")],
)
def test_it_may_run_every_day(database: str, role: str, layout: str, table: str) -> None:
    sql: Any = outbox_ddl(layout, table, role, "tailrace_x", by_day=True)
    with psycopg.connect(database, autocommit=True) as connection:

        def partitions() -> list[tuple[str, str]]:
            return connection.execute(PARTITIONS, [quote_table(table)]).fetchall()

        connection.execute(sql)
        before = partitions()
        assert len(before) == DAYS_AHEAD + 1
        # In another time zone the days are the same.
        connection.execute("SET TimeZone = 'Pacific/Kiritimati'")
        connection.execute(sql)
        connection.execute("SET TimeZone = DEFAULT")
        assert partitions() == before
        (last, _) = before[-1]
        connection.execute(f'DROP TABLE public."{last}"')  # type: ignore[call-overload]
        connection.execute(sql)
        assert partitions() == before, "only what is missing is created"
        connection.execute(f"INSERT INTO {quote_table(table)} {INSERTS[layout]}")  # type: ignore[call-overload]
        ((held,),) = connection.execute(f"SELECT tableoid::regclass::text FROM {quote_table(table)}").fetchall()  # type: ignore[call-overload]
        assert held.strip('"') == before[0][0], "today"
        ((root,),) = connection.execute("SELECT pubviaroot FROM pg_publication WHERE pubname = 'tailrace_x'").fetchall()
        assert root
