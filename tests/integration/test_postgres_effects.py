"""The effects of Postgres handlers: every type as psycopg writes it, in order, in few statements."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Json, Jsonb
from psycopg.types.range import Range

from helpers.store_scenarios import P0, P1, Boom, in_loop, still_waits
from tailrace.errors import ConfigError, Rejected
from tailrace.projections.postgres.effects import PostgresEffects
from tailrace.projections.postgres.store import PostgresStore

ORDERS = """
    CREATE TABLE orders (id text PRIMARY KEY, status text, total numeric, note text DEFAULT 'none');
    CREATE TABLE lines (order_id text, line int, sku text, PRIMARY KEY (order_id, line));
"""


@asynccontextmanager
async def writing(database: str, ddl: str = "") -> AsyncIterator[PostgresEffects]:
    """Effects of one transaction, committed at the end."""
    store = PostgresStore(database, tables=ddl)
    await store.open("effects")
    try:
        async with store.transaction(P0) as transaction:
            yield transaction.effects
    finally:
        await store.close()


def rows(database: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(sql.encode()).fetchall()


class Colour(StrEnum):
    RED = "red"


AWARE = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
VALUES: list[tuple[str, list[Any]]] = [
    ("text", ["", "NULL", 'a"b\\c{},', "ä€😀\n", "%s", Colour.RED]),
    ("text", ["", "NULL", "null", 'a"b\\c{},', "ä€😀", "%s", "\x7f", "'"]),
    ("text", ["\t", "\\n", "\r\n", "\x01"]),
    ("text", [5, UUID(int=5), "t"]),
    ("text", [5, 2.5, "t"]),
    ("varchar(5)", ["abc  ", "NULL"]),
    ("char(4)", ["ab"]),
    ('"char"', ["x"]),
    ("smallint", [0, -32768]),
    ("bigint", [2**63 - 1, -(2**63)]),
    ("numeric", [Decimal("0.1000"), 12345678901234567890123, Decimal("1E-20"), Decimal("NaN"), 7, 2.5]),
    ("numeric", [2**64, -(2**64), 1]),
    ("numeric(10,2)", [Decimal("3.14159")]),
    ("double precision", [0.1, float("inf"), float("nan"), 1e300, 3]),
    ("boolean", [True, False]),
    ("bytea", [b"", b"\x00\xff\\x", bytearray(b"a"), memoryview(b"b")]),
    ("uuid", [UUID(int=5), "0f0e0d0c-0b0a-0908-0706-050403020100"]),
    ("timestamptz", [AWARE, datetime(2024, 1, 1), datetime.max.replace(tzinfo=UTC), "infinity"]),  # noqa: DTZ001
    ("timestamp", [datetime(2024, 1, 1, 0, 0, 0, 1)]),  # noqa: DTZ001
    ("date", [date(1, 1, 1), "2024-02-29"]),
    ("time", [time(23, 59, 59, 999999)]),
    ("timetz", [time(1, tzinfo=UTC)]),
    ("interval", [timedelta(days=-1, seconds=5, microseconds=7)]),
    ("inet", [ip_address("::1"), "10.0.0.1/8"]),
    ("json", [{"a": 1}, [1, {"b": None}], '{"k" :  1}', Json("text"), True]),
    ("jsonb", [{"a": [1.5, None, "ü"], "n": 10**30}, [], [[1], "x"], '"text"', Jsonb("text"), True, 5, Jsonb(None)]),
    ("integer[]", [[1, None, 3], [], [[1, 2], [3, 4]], "{7,8}"]),
    ("text[]", [["a,b", 'q"', "\\", "NULL", None, ""], [""]]),
    ("timestamptz[]", [[AWARE]]),
    ("jsonb[]", [[Jsonb({"a": "x,y"}), Jsonb(None)]]),
    ("int4range", [Range(1, 5), Range(empty=True)]),
    ("box", ["(1,1),(0,0)"]),
    ("box[]", ["{(1,1),(0,0);(2,2),(0,0)}"]),
    ("colour", ["red"]),
    ("colour[]", [["red", "dark blue"]]),
    ("positive", [3]),
    ("pair", ["(1,\"a b\")"]),
]  # fmt: skip
KINDS = """
    CREATE TYPE colour AS ENUM ('red', 'dark blue'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE TYPE pair AS (a int, b text);
"""


@in_loop
async def test_every_type_is_written_as_psycopg_writes_it(database: str) -> None:
    """Compares one upsert of many rows with one plain insert for each."""
    tables = "".join(
        f"CREATE TABLE {kind}{at} (id int PRIMARY KEY, v {type});"
        for at, (type, _) in enumerate(VALUES)
        for kind in ("many", "single")
    )
    async with writing(database, KINDS + tables) as effects:
        for at, (_, values) in enumerate(VALUES):
            for number, value in enumerate([*values, None]):
                effects.upsert(f"many{at}", {"id": number}, {"v": value})
        for at, (type, values) in enumerate(VALUES):
            for number, value in enumerate([*values, None]):
                # psycopg does not adapt these by itself; `upsert` writes them as JSON to JSON columns.
                json = type in {"json", "jsonb"} and isinstance(value, (dict, list, bool, int, float))
                given = Jsonb(value) if json else value
                await effects.execute(f"INSERT INTO single{at} VALUES (%s, %s::{type})".encode(), [number, given])
        for at, (type, values) in enumerate(VALUES):
            found = {
                kind: await effects.fetch_all(f"SELECT id, v::text FROM {kind}{at} ORDER BY id".encode())
                for kind in ("many", "single")
            }
            if type == "json":  # it keeps spaces, and orjson writes none
                for row in (row for each in found.values() for row in each if row["id"] != 2):
                    row["v"] = row["v"] and row["v"].replace(" ", "")
            assert found["many"] == found["single"], type
            assert len(found["many"]) == len(values) + 1


@pytest.mark.parametrize(
    ("type", "value"),
    [("varchar(3)", "abcd"), ("char(3)", "abcd"), ("smallint", 40000), ("int", "x"), ("text", "a\0b"), ("jsonb", "{")],
)
@in_loop
async def test_a_value_that_a_column_does_not_accept_is_rejected(database: str, type: str, value: Any) -> None:
    with pytest.raises(Rejected, match="does not accept"):  # noqa: PT012
        async with writing(database, f"CREATE TABLE t (id int PRIMARY KEY, v {type})") as effects:
            effects.upsert("t", {"id": 1}, {"v": None})
            effects.upsert("t", {"id": 2}, {"v": value})
    assert rows(database, "SELECT * FROM pg_tables WHERE tablename = 't'") != []
    assert rows(database, "SELECT * FROM t") == []


@in_loop
async def test_the_last_upsert_wins_for_each_column(database: str) -> None:
    async with writing(database, ORDERS) as effects:
        effects.upsert("orders", {"id": "a"}, {"status": "new", "total": 1})
        effects.upsert("orders", {"id": "b"}, {"id": "b", "status": "new"})
        effects.upsert("orders", {"id": "a"}, {"status": "paid"})
        effects.upsert("orders", {"id": "c"}, {})
        effects.upsert("lines", {"line": 1, "order_id": "a"}, {"sku": "x"})
        effects.upsert("lines", {"order_id": "a", "line": 1}, {"sku": "y"})
    assert rows(database, "SELECT * FROM orders ORDER BY id") == [
        ("a", "paid", 1, "none"),
        ("b", "new", None, "none"),
        ("c", None, None, "none"),
    ]
    assert rows(database, "SELECT * FROM lines") == [("a", 1, "y")]


@in_loop
async def test_deletions_keep_their_order_among_upserts(database: str) -> None:
    async with writing(database, ORDERS) as effects:
        for name in "abcd":
            effects.upsert("orders", {"id": name}, {"status": "old", "total": 1})
        await effects.flush()
        effects.delete("orders", {"id": "a"})
        effects.upsert("orders", {"id": "a"}, {"status": "new"})
        effects.upsert("orders", {"id": "b"}, {"status": "new"})
        effects.delete("orders", {"id": "b"})
        effects.upsert("orders", {"id": "c"}, {"status": "x"})
        effects.delete("orders", {"id": "c"})
        effects.upsert("orders", {"id": "c"}, {"note": "again"})
        effects.delete("orders", {"id": "nobody"})
    assert rows(database, "SELECT * FROM orders ORDER BY id") == [
        ("a", "new", None, "none"),
        ("c", None, None, "again"),
        ("d", "old", 1, "none"),
    ]


@in_loop
async def test_a_deletion_by_a_part_of_the_key(database: str) -> None:
    async with writing(database, ORDERS) as effects:
        for order, line in (("a", 1), ("a", 2), ("b", 1)):
            effects.upsert("lines", {"order_id": order, "line": line}, {"sku": "x"})
        effects.delete("lines", {"order_id": "a"})
        effects.upsert("lines", {"order_id": "a", "line": 3}, {"sku": "y"})
    assert rows(database, "SELECT * FROM lines ORDER BY 1, 2") == [("a", 3, "y"), ("b", 1, "x")]


@in_loop
async def test_a_handler_reads_its_own_writes_and_others_do_not(database: str) -> None:
    async with writing(database, ORDERS) as effects:
        effects.upsert("orders", {"id": "a"}, {"status": "new"})
        assert await effects.fetch_one("SELECT status FROM orders WHERE id = %s", ["a"]) == {"status": "new"}
        effects.upsert("orders", {"id": "b"}, {"status": "new"})
        assert await effects.fetch_all("SELECT id FROM orders ORDER BY id") == [{"id": "a"}, {"id": "b"}]
        effects.upsert("orders", {"id": "c"}, {"status": "new"})
        assert await effects.execute("UPDATE orders SET status = %(to)s", {"to": "paid"}) == 3
        effects.delete("orders", {"id": "a"})
        connection = await effects.connection()
        assert await (await connection.execute("SELECT count(*) FROM orders")).fetchone() == (2,)
        assert await effects.fetch_one("SELECT 1 FROM orders WHERE id = 'a'") is None
        assert rows(database, "SELECT * FROM orders") == []
    assert rows(database, "SELECT id, status FROM orders ORDER BY id") == [("b", "paid"), ("c", "paid")]


@in_loop
async def test_some_columns_of_an_existing_row_are_upserted(database: str) -> None:
    ddl = "CREATE TABLE t (id int PRIMARY KEY, must text NOT NULL, a int, CHECK (must <> '' AND (a > 0) IS TRUE))"
    async with writing(database, ddl) as effects:
        effects.upsert("t", {"id": 1}, {"must": "x", "a": 1})
        await effects.flush()
        effects.upsert("t", {"id": 1}, {"a": 2})
        effects.upsert("t", {"id": 2}, {"must": "y"})
        effects.upsert("t", {"id": 2}, {"a": 3})
        await effects.flush()
        effects.upsert("t", {"id": 1}, {})
        effects.upsert("t", {"id": 2}, {"must": "z"})
    assert rows(database, "SELECT * FROM t ORDER BY id") == [(1, "x", 2), (2, "z", 3)]
    with pytest.raises(psycopg.errors.NotNullViolation):
        async with writing(database) as effects:
            effects.upsert("t", {"id": 3}, {"a": 2})


@in_loop
async def test_a_key_in_two_notations_is_one_row(database: str) -> None:
    ddl = """
        CREATE TABLE by_uuid (id uuid PRIMARY KEY, v int); CREATE TABLE by_int (id int PRIMARY KEY, v int);
        CREATE TABLE by_numeric (id numeric PRIMARY KEY, v int); CREATE TABLE by_day (id date PRIMARY KEY, v int);
        CREATE TABLE by_code (id varchar(2) PRIMARY KEY, v int);
    """
    spellings: dict[str, tuple[Any, Any]] = {
        "by_uuid": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        "by_int": (1, "1"),
        "by_numeric": (1, Decimal("1.00")),
        "by_day": (date(2024, 1, 1), "Jan 1 2024"),
        "by_code": ("ab", "ab  "),
    }
    async with writing(database, ddl) as effects:
        for table, (one, other) in spellings.items():
            effects.upsert(table, {"id": one}, {"v": 1})
            effects.delete(table, {"id": other})
            effects.upsert(table, {"id": other}, {"v": 2})
            effects.upsert(table, {"id": one}, {"v": 3})
            effects.upsert(table, {"id": other}, {"v": 4})
        for table in spellings:
            assert await effects.fetch_all(f"SELECT v FROM {table}".encode()) == [{"v": 4}], table


@in_loop
async def test_dependent_rows_are_written_in_order(database: str) -> None:
    ddl = """
        CREATE TABLE parent (id int PRIMARY KEY, email text UNIQUE);
        CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE, note text);
    """
    async with writing(database, ddl) as effects:
        effects.upsert("parent", {"id": 1}, {"email": "x"})
        effects.upsert("child", {"id": 1}, {"parent": 1, "note": "kept"})
        effects.upsert("parent", {"id": 2}, {"email": "w"})
        effects.upsert("child", {"id": 1}, {"parent": 2})
        effects.delete("parent", {"id": 1})  # deletes no child: it has another parent now
        effects.upsert("parent", {"id": 3}, {"email": "x"})  # the email is free now
        effects.upsert("parent", {"id": 3}, {"email": "y"})
        effects.upsert("parent", {"id": 2}, {"email": "x"})
        effects.upsert("parent", {"id": 3}, {"email": "w"})
    assert rows(database, "SELECT * FROM parent ORDER BY id") == [(2, "x"), (3, "w")]
    assert rows(database, "SELECT * FROM child") == [(1, 2, "kept")]


@pytest.mark.parametrize("seed", range(5))
@in_loop
async def test_deferred_and_immediate_writes_have_the_same_result(database: str, seed: int) -> None:
    chance = random.Random(seed)
    kinds = {
        "free": "id int PRIMARY KEY, a int DEFAULT 5, b text",
        "needy": "id int PRIMARY KEY, a int NOT NULL DEFAULT 7, b text CHECK (b <> 'x')",
        "bound": "id int PRIMARY KEY, a int, b text, up int REFERENCES {} (id)",
    }
    ddl = "".join(
        f"CREATE TABLE {kind}_{way} ({columns.format(f'{kind}_{way}')});"
        for kind, columns in kinds.items()
        for way in ("later", "now")
    )
    async with writing(database, ddl) as later, writing(database) as now:
        for _ in range(200):
            table, key = chance.choice(list(kinds)), {"id": chance.randrange(6)}
            values = {name: chance.randrange(100) for name in ("a", "b") if chance.random() < 0.6}
            deletes = chance.random() < 0.25
            for way, effects in (("later", later), ("now", now)):
                if deletes:
                    effects.delete(f"{table}_{way}", key)
                else:
                    effects.upsert(f"{table}_{way}", key, values)
            await now.flush()
            if chance.random() < 0.05:
                await later.flush()
    for kind in kinds:
        found = rows(database, f"SELECT * FROM {kind}_now ORDER BY id")
        assert found
        assert rows(database, f"SELECT * FROM {kind}_later ORDER BY id") == found


@in_loop
async def test_a_batch_needs_one_statement_for_each_table_and_set_of_columns(database: str) -> None:
    async with writing(database, ORDERS) as effects:
        for number in range(300):
            effects.upsert("orders", {"id": str(number)}, {"status": "new"} if number % 2 else {"total": 5})
            effects.upsert("lines", {"order_id": str(number), "line": 1}, {"sku": "x"})
        # Each row shows which statement of its transaction wrote it.
        for table, statements in (("orders", 2), ("lines", 1)):
            counted = await effects.fetch_one(
                f"SELECT count(*), count(DISTINCT cmin::text) AS by FROM {table}".encode()
            )
            assert counted == {"count": 300, "by": statements}


@pytest.mark.parametrize(
    ("table", "key", "values", "said"),
    [
        ("nothing", {"id": "1"}, {}, 'no table "nothing"'),
        ("Orders", {"id": "1"}, {}, 'no table "Orders"'),
        ("orders", {"id": "1"}, {"colour": 1}, "no column 'colour'"),
        ("orders", {"nr": "1"}, {"status": "x"}, "no column 'nr'"),
    ],
)
@in_loop
async def test_a_missing_table_or_column_is_reported(
    database: str, table: str, key: dict[str, Any], values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        async with writing(database, ORDERS) as effects:
            effects.upsert(table, key, values)


@in_loop
async def test_quoted_names_and_other_schemas(database: str) -> None:
    ddl = """CREATE SCHEMA "a.b"; CREATE TABLE "a.b"."T%s" ("Id" int PRIMARY KEY, "100%" text, "q""uote" int)"""
    async with writing(database, ddl) as effects:
        for number in (1, 2, 1):
            effects.upsert('"a.b".T%s', {"Id": number}, {"100%": "x", 'q"uote': number})
        effects.delete('"a.b".T%s', {"Id": 2})
    assert rows(database, 'SELECT * FROM "a.b"."T%s"') == [(1, "x", 1)]


@in_loop
async def test_a_column_added_while_a_worker_runs_is_found(database: str) -> None:
    store = PostgresStore(database, tables=ORDERS)
    await store.open("effects")

    async def write() -> None:
        async with store.transaction(P0) as transaction:
            transaction.effects.upsert("orders", {"id": "a"}, {"colour": "red"})

    try:
        with pytest.raises(ConfigError):
            await write()
        with psycopg.connect(database) as connection:
            connection.execute("ALTER TABLE orders ADD COLUMN colour text")
        await write()
    finally:
        await store.close()
    assert rows(database, "SELECT id, colour FROM orders") == [("a", "red")]


@pytest.mark.parametrize("tables", [["orders"], ["lines", "orders", "more"]])
@in_loop
async def test_a_flush_can_be_cancelled(database: str, tables: list[str]) -> None:
    """As for a handler that takes too long; here a row is locked."""
    store = PostgresStore(database, tables=f"{ORDERS} CREATE TABLE more (id text PRIMARY KEY)")
    await store.open("effects")
    keys = {"lines": {"order_id": "a", "line": 1}}

    async def write() -> None:
        async with store.transaction(P1) as transaction:
            for table in tables:
                transaction.effects.upsert(table, keys.get(table, {"id": "a"}), {})
            await transaction.flush()

    try:
        async with store.transaction(P0) as holder:
            holder.effects.upsert("orders", {"id": "a"}, {"status": "mine"})
            await holder.flush()
            task = asyncio.create_task(write())
            assert await still_waits(task)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert rows(database, "SELECT * FROM lines") == []
        await write()
    finally:
        await store.close()
    assert rows(database, "SELECT id, status FROM orders") == [("a", "mine")]
    assert len(rows(database, "SELECT * FROM lines")) == len(tables) // 2


@in_loop
async def test_a_savepoint_of_a_handler(database: str) -> None:
    async with writing(database, ORDERS) as effects:
        connection = await effects.connection()
        with pytest.raises(Boom):  # noqa: PT012
            async with connection.transaction():
                await effects.execute("INSERT INTO orders (id) VALUES ('lost')")
                raise Boom
        effects.upsert("orders", {"id": "kept"}, {})
    assert rows(database, "SELECT id FROM orders") == [("kept",)]


@in_loop
async def test_effects_are_refused_after_their_transaction_and_without_a_key(database: str) -> None:
    async with writing(database, ORDERS) as effects:
        with pytest.raises(ValueError, match="needs a key"):
            effects.delete("orders", {})
        with pytest.raises(ValueError, match="is None"):
            effects.upsert("orders", {"id": None}, {"status": "x"})
        with pytest.raises(ValueError, match="two values"):
            effects.upsert("orders", {"id": "a"}, {"id": "b"})
    with pytest.raises(RuntimeError, match="has ended"):
        effects.upsert("orders", {"id": "a"}, {})
    with pytest.raises(RuntimeError, match="has ended"):
        await effects.execute("SELECT 1")
