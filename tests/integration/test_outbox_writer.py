"""The outbox writer on Postgres with every driver: each event is committed with its transaction, or not at all."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from psycopg.rows import dict_row

from helpers.outbox_drivers import POSTGRES_CLIENTS, Asyncpg, Django, PostgresClient, RollBack, resolved, rolled_back
from tailrace.cli import main
from tailrace.errors import (
    ConfigError,
    EventDeadLettered,
    EventExists,
    EventInvalid,
    LayoutMismatch,
    NotCommitted,
    NotInTransaction,
    NotPublishedYet,
    ReceiptUnavailable,
    TailraceError,
)
from tailrace.outbox import Brake, NewEvent, Outbox, Pressure, Receipt
from tailrace.outbox.ddl import table_ddl
from tailrace.rules import RuleEvent
from tailrace.schemas.folder import load_folder
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions
from tailrace.schemas.registry.lookup import registry_schemas
from tailrace.testkit.stack import PostgresServer, RegistryServer

DDL = """
CREATE TABLE orders (id text PRIMARY KEY, revision int NOT NULL);
INSERT INTO orders VALUES ('o-1', 0), ('o-2', 0);
CREATE TABLE outbox (
    id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL, payload jsonb, created_at timestamptz NOT NULL DEFAULT now(),
    traceparent text, content_type text, schema_version int, tenant text
);
CREATE TABLE documents (
    event_id text PRIMARY KEY, event_type text NOT NULL, entity_type text NOT NULL, entity_id text NOT NULL,
    entity_version int, topic text, partition_key text, payload json, status text NOT NULL, retry_count int,
    created_at timestamptz NOT NULL
);
CREATE TABLE loose (LIKE documents);
"""
PLACED = "OrderPlaced"
ORDER = ("order", "o-1")


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> Iterator[str]:
    """A database for all tests of this file; each looks for its own events."""
    name = "test_outbox_writer"
    found = postgres.create_database(name)
    with psycopg.connect(found, autocommit=True) as connection:
        connection.execute(DDL)
    yield found
    with postgres.connect() as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def rows(dsn: str, ids: list[str] | None = None, table: str = "outbox", column: str = "id") -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        found = connection.execute(f"SELECT * FROM {table} ORDER BY {column}").fetchall()
    return [row for row in found if ids is None or str(row[column]) in ids]


def count(dsn: str, table: str = "outbox") -> int:
    return len(rows(dsn, table=table, column="id" if table == "outbox" else "event_id"))


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(table="outbox")


every_driver = pytest.mark.parametrize("kind", POSTGRES_CLIENTS, ids=lambda kind: kind.__name__)


@every_driver
def test_an_event_shares_the_fate_of_its_transaction(kind: type[PostgresClient], dsn: str, outbox: Outbox) -> None:
    async def test() -> None:
        service = kind(dsn)

        def add(handle: Any, payload: object, **given: Any) -> Any:
            return resolved(outbox.add(handle, PLACED, payload, aggregate=ORDER, **given))

        async with service.transaction() as handle:
            await service.sql(handle, "UPDATE orders SET revision = revision + 1 WHERE id = 'o-2'")
            committed = await add(handle, {"n": 1, "text": "ä 100% :x $1 ?"}, version=3, extra={"tenant": "acme"})
            undone = await rolled_back(service.savepoint(handle), lambda handle: add(handle, {"n": 2}))
            async with service.savepoint(handle):
                kept = await add(handle, {"n": 3})
            several = await resolved(
                outbox.add_many(handle, [NewEvent(PLACED, {"n": n}, ("order", f"o-{n}")) for n in range(4, 7)])
            )
            assert await resolved(outbox.exists(handle, committed.id))
            assert not await resolved(outbox.exists(handle, undone.id))
        gone = await rolled_back(service.transaction(), lambda handle: add(handle, {"n": 9}))

        expected = [committed.id, kept.id, *(receipt.id for receipt in several)]
        found = rows(dsn, [*expected, undone.id, gone.id])
        assert [str(row["id"]) for row in found] == expected  # UUIDs of version 7 are in the order of time
        assert [row["payload"]["n"] for row in found] == [1, 3, 4, 5, 6]
        first = found[0]
        assert first["payload"]["text"] == "ä 100% :x $1 ?"
        assert (first["type"], first["aggregatetype"], first["aggregateid"]) == (PLACED, "order", "o-1")
        assert (first["schema_version"], first["content_type"], first["tenant"]) == (3, "application/json", "acme")
        assert first["created_at"] is not None
        assert all(receipt.created for receipt in several)
        await service.close()

    asyncio.run(test())


@every_driver
def test_autocommit_is_refused(kind: type[PostgresClient], dsn: str, outbox: Outbox) -> None:
    async def test() -> None:
        service = kind(dsn)
        before = count(dsn)
        async with service.autocommit() as handle:
            with pytest.raises(NotInTransaction):
                await resolved(outbox.add(handle, PLACED, {}, aggregate=ORDER))
            with pytest.raises(NotInTransaction):
                await resolved(outbox.add_many(handle, [NewEvent(PLACED, {}, ORDER)]))
        assert count(dsn) == before
        await service.close()

    asyncio.run(test())


@every_driver
def test_an_aborted_transaction_is_refused(kind: type[PostgresClient], dsn: str, outbox: Outbox) -> None:
    """The first time before the table is inspected, the second time after it."""

    async def test() -> None:
        service = kind(dsn)

        async def fail(handle: Any) -> None:
            with pytest.raises(Exception, match="division by zero"):
                await service.sql(handle, "SELECT 1 / 0")
            with pytest.raises(NotInTransaction, match="aborted"):
                await resolved(outbox.add(handle, PLACED, {}, aggregate=ORDER))

        before = count(dsn)
        await rolled_back(service.transaction(), fail)
        async with service.transaction() as handle:
            await resolved(outbox.add(handle, PLACED, {}, aggregate=ORDER))
        await rolled_back(service.transaction(), fail)
        assert count(dsn) == before + 1
        await service.close()

    asyncio.run(test())


@every_driver
def test_a_retried_serializable_transaction_writes_once(kind: type[PostgresClient], dsn: str, outbox: Outbox) -> None:
    async def test() -> None:
        service = kind(dsn)
        receipts = []

        async def attempt(*, disturbed: bool) -> None:
            async with service.transaction("SERIALIZABLE") as handle:
                await service.sql(handle, "SELECT count(*) FROM orders")  # takes the snapshot
                receipts.append(await resolved(outbox.add(handle, PLACED, {}, aggregate=ORDER)))
                if disturbed:
                    with psycopg.connect(dsn) as other:
                        other.execute("UPDATE orders SET revision = revision + 1 WHERE id = 'o-1'")
                await service.sql(handle, "UPDATE orders SET revision = revision + 1 WHERE id = 'o-1'")

        with pytest.raises(Exception, match="could not serialize"):
            await attempt(disturbed=True)
        await attempt(disturbed=False)
        assert [str(row["id"]) for row in rows(dsn, [receipt.id for receipt in receipts])] == [receipts[1].id]
        await service.close()

    asyncio.run(test())


@every_driver
@pytest.mark.parametrize("table", ["documents", "loose"], ids=["unique index", "no index"])
def test_a_second_write_of_an_event_id_is_success(kind: type[PostgresClient], table: str, dsn: str) -> None:
    async def test() -> None:
        service = kind(dsn)
        outbox = Outbox(layout="document", table=table, topic="shop.orders")
        own = f"own-{kind.__name__}"

        def add(handle: Any, n: int) -> Any:
            return resolved(outbox.add(handle, PLACED, {"n": n}, aggregate=ORDER, id=own, aggregate_version=7))

        created = []
        async with service.transaction() as handle:
            created += [(await add(handle, 1)).created, (await add(handle, 2)).created]
        async with service.transaction() as handle:
            created.append((await add(handle, 3)).created)
            again = NewEvent(PLACED, {"n": 4}, ORDER, id=own)
            await resolved(outbox.add_many(handle, [again, again, NewEvent(PLACED, {"n": 5}, ORDER, id=f"{own}-2")]))
        assert created == [True, False, False]
        found = rows(dsn, [own, f"{own}-2"], table, "event_id")
        assert [row["payload"]["n"] for row in found] == [1, 5]
        assert (found[0]["status"], found[0]["entity_version"], found[0]["topic"]) == ("pending", 7, "shop.orders")
        assert (found[0]["entity_id"], found[0]["partition_key"]) == ("o-1", "o-1")
        await service.close()

    asyncio.run(test())


def test_200_concurrent_writers(dsn: str, outbox: Outbox) -> None:
    """Half of them roll back; what is committed is there once."""

    async def write(pool: asyncpg.Pool, number: int) -> str | None:
        async with pool.acquire() as connection:
            try:
                async with connection.transaction():
                    receipt = await outbox.add(connection, "Concurrent", {"n": number}, aggregate=("order", "one"))
                    await connection.execute(
                        "UPDATE orders SET revision = revision + 1 WHERE id = $1", f"o-{number % 2 + 1}"
                    )
                    if number % 2:
                        raise RollBack
            except RollBack:
                return None
            return receipt.id

    async def test() -> list[str | None]:
        given = Asyncpg(dsn).parts
        async with asyncpg.create_pool(
            host=given["host"], port=given["port"], user=given["user"], database=given["dbname"],
            password=given.get("password"), min_size=40, max_size=40,
        ) as pool:  # fmt: skip
            return await asyncio.gather(*(write(pool, number) for number in range(200)))

    written = [event for event in asyncio.run(test()) if event is not None]
    found = [row for row in rows(dsn) if row["type"] == "Concurrent"]
    assert len(written) == 100
    assert sorted(str(row["id"]) for row in found) == sorted(written)
    assert sorted(row["payload"]["n"] for row in found) == list(range(0, 200, 2))


def refused_before_anything_is_written(
    dsn: str, add: Callable[[Any], Any], error: type[TailraceError], text: str
) -> None:
    """The error explains itself, and the transaction can still be used."""
    with psycopg.connect(dsn) as connection:
        with pytest.raises(error, match=text) as caught:
            add(connection)
        assert caught.value.remedy
        assert connection.execute("SELECT 1").fetchone() == (1,)


LONG = "x" * 300
BAD_EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "an object": ({"payload": {"a": object()}}, "type is not JSON serializable: object"),
    "a key that is no text": ({"payload": {1: 2}}, "cannot be written as JSON"),
    "NaN": ({"payload": {"a": [1.5, float("nan")]}}, "NaN"),
    "an infinity": ({"payload": {"a": float("inf"), "b": None}}, "NaN or an infinity"),
    "NUL": ({"payload": {"a": "x\0"}}, re.escape("U+0000")),
    "NUL in the id of the aggregate": ({"aggregate": ("order", "\0")}, re.escape("U+0000")),
    "half a surrogate pair": ({"payload": {"a": "\ud800"}}, "cannot be written as JSON"),
    "half a surrogate pair in the type": ({"type": "\ud800"}, "half a surrogate pair"),
    "an integer beyond 64 bits": ({"payload": {"a": 2**64}}, "64"),
    "a float that jsonb makes an integer": ({"payload": {"a": 1e20}}, "1e\\+20"),
    "text that is not JSON": ({"payload": b"{"}, "not usable JSON"),
    "text with a repeated key": ({"payload": b'{"a": 1, "a": 2}'}, "more than once"),
    "too large": ({"payload": {"a": "x" * 2000}}, "more than the limit of 1,000"),
    "too large as jsonb": ({"payload": {"a": [1] * 490}}, "more than the limit of 1,000"),
    "no type": ({"type": ""}, "an empty type or id"),
    "a number as the aggregate's id": ({"aggregate": ("order", 7)}, "not text"),
    "an id that is no UUID": ({"id": "order-7"}, "'order-7' is not a UUID"),
    "no pair": ({"aggregate": "order"}, "not a pair"),
    "a name too long for its column": ({"aggregate": ("order", LONG)}, "'aggregateid'"),
}


@pytest.mark.parametrize("case", BAD_EVENTS)
def test_an_event_that_could_never_be_published_is_refused(case: str, dsn: str) -> None:
    given, text = BAD_EVENTS[case]
    outbox = Outbox(table="outbox", max_bytes=1000)
    event = {"type": PLACED, "payload": {}, "aggregate": ORDER, **given}
    refused_before_anything_is_written(dsn, lambda connection: outbox.add(connection, **event), EventInvalid, text)


FITTING = "id uuid, type text, aggregatetype text, aggregateid text, payload text"
BAD_TABLES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no table": ("", {}, "there is no table bad"),
    "no column": ("id uuid, type text, aggregatetype text, aggregateid text", {}, "'payload'"),
    "no id": ("number uuid", {}, "'id'"),
    "generated": (
        f"{FITTING}, content_type text GENERATED ALWAYS AS ('x') STORED",
        {},
        "'content_type'",
    ),
    "an unfilled column": (
        f"{FITTING}, tenant text NOT NULL",
        {},
        "demands a value for the column 'tenant'",
    ),
    "no version of the entity": (f"{FITTING}, entity_version bigint NOT NULL", {}, "aggregate_version=…"),
    "no column for an extra value": (
        FITTING,
        {"extra": {"tenant": "acme"}},
        "The event's extra names it",
    ),
    "no column for the aggregate's version": (
        FITTING,
        {"aggregate_version": 3},
        "'aggregate_version'",
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_does_not_fit_is_refused(case: str, dsn: str) -> None:
    columns, given, text = BAD_TABLES[case]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS bad")
        if columns:
            connection.execute(f"CREATE TABLE bad ({columns})")
    outbox = Outbox(table="bad")
    refused_before_anything_is_written(
        dsn, lambda connection: outbox.add(connection, PLACED, {}, aggregate=ORDER, **given), LayoutMismatch, text
    )


def test_a_changed_table_is_inspected_again(dsn: str) -> None:
    outbox = Outbox(table="changed")
    drop = "ALTER TABLE changed DROP COLUMN content_type"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE changed (LIKE outbox)")
    with psycopg.connect(dsn) as connection:
        outbox.add(connection, PLACED, {}, aggregate=ORDER)
        connection.execute(drop)
        with pytest.raises(LayoutMismatch, match="has changed"):
            outbox.add(connection, PLACED, {}, aggregate=ORDER)
        connection.rollback()
        connection.execute(drop)
        outbox.add(connection, PLACED, {}, aggregate=ORDER)
    assert len(rows(dsn, table="changed")) == 1


def test_a_second_event_with_the_same_id_is_an_error_in_the_debezium_layout(dsn: str, outbox: Outbox) -> None:
    with psycopg.connect(dsn) as connection:
        receipt = outbox.add(connection, PLACED, {}, aggregate=ORDER)
    with psycopg.connect(dsn) as connection, pytest.raises(EventExists):
        outbox.add(connection, PLACED, {}, aggregate=ORDER, id=receipt.id)


def test_schemas_are_checked_in_the_transaction(dsn: str, tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}}
    for version in ("1", "2"):
        (tmp_path / PLACED).mkdir(exist_ok=True)
        (tmp_path / PLACED / f"{version}.json").write_text(json.dumps(schema))
    strict = Outbox(table="outbox", schemas=load_folder(tmp_path))
    lenient = Outbox(table="outbox", schemas=str(tmp_path), without_schema="allow")

    def add(outbox: Outbox, kind: str, payload: object) -> Callable[[Any], Any]:
        return lambda connection: outbox.add(connection, kind, payload, aggregate=ORDER)

    refused_before_anything_is_written(
        dsn, add(strict, PLACED, {"total": "much"}), EventInvalid, r"\$\.total: expected integer, got \"much\""
    )
    refused_before_anything_is_written(dsn, add(strict, "Unknown", {}), EventInvalid, "no schema for version 1")
    refused_before_anything_is_written(dsn, add(lenient, PLACED, {}), EventInvalid, "expected the field 'total'")
    with psycopg.connect(dsn) as connection:
        latest = strict.add(connection, PLACED, {"total": 1}, aggregate=ORDER)
        older = strict.add(connection, PLACED, {"total": 1}, aggregate=ORDER, version=1)
        tombstone = strict.add(connection, PLACED, None, aggregate=ORDER)
        unknown = lenient.add(connection, "Unknown", {}, aggregate=ORDER)
    found = {str(row["id"]): row["schema_version"] for row in rows(dsn)}
    assert [found[each.id] for each in (latest, older, tombstone, unknown)] == [2, 1, None, None]


def test_rules_are_checked_in_the_transaction(dsn: str) -> None:
    def amount_is_positive(event: RuleEvent) -> str | None:
        return None if event.payload["amount"] > 0 else f"{event.key} has the amount {event.payload['amount']}"

    outbox = Outbox(table="outbox", rules={"Order*": [amount_is_positive]})
    for kind, amount, text in ((PLACED, 0, "o-1 has the amount 0"), (PLACED, "x", "raised an error: TypeError")):
        refused_before_anything_is_written(
            dsn,
            lambda connection, kind=kind, amount=amount: outbox.add(
                connection, kind, {"amount": amount}, aggregate=ORDER
            ),
            EventInvalid,
            text,
        )
    with psycopg.connect(dsn) as connection:
        outbox.add(connection, PLACED, {"amount": 1}, aggregate=ORDER)
        outbox.add(connection, "Other", {"amount": 0}, aggregate=ORDER)


def test_the_trace_context_is_captured(dsn: str, outbox: Outbox) -> None:
    given = f"00-{'a' * 32}-{'b' * 16}-01"
    with psycopg.connect(dsn) as connection:
        with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
            inside = outbox.add(connection, PLACED, {}, aggregate=ORDER)
        passed_on = outbox.add(connection, PLACED, {}, aggregate=ORDER, traceparent=given)
        malformed = outbox.add(connection, PLACED, {}, aggregate=ORDER, traceparent="00-1-2-3")
    found = {str(row["id"]): row["traceparent"] for row in rows(dsn)}
    context = span.get_span_context()
    assert found[inside.id] == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert found[passed_on.id] == given
    assert found[malformed.id] is None


def test_connections_with_other_factories_and_codecs(dsn: str, outbox: Outbox) -> None:
    """What a service has registered on its connection does not change what is written."""

    async def with_asyncpg() -> str:
        connection = await Asyncpg(dsn).connect()
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        async with connection.transaction():
            receipt = await outbox.add(connection, PLACED, {"a": 1}, aggregate=ORDER)
        await connection.close()
        return receipt.id

    with psycopg.connect(dsn, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        first = outbox.add(connection, PLACED, {"a": 1}, aggregate=ORDER)
    found = rows(dsn, [first.id, asyncio.run(with_asyncpg())])
    assert [row["payload"] for row in found] == [{"a": 1}, {"a": 1}]


def test_pipeline_mode(dsn: str, outbox: Outbox) -> None:
    """psycopg sends several statements before it reads the answers; the writer waits for its own."""
    with psycopg.connect(dsn) as connection, connection.pipeline():
        connection.execute("UPDATE orders SET revision = revision + 1 WHERE id = 'o-2'")
        receipts = [outbox.add(connection, PLACED, {"n": n}, aggregate=ORDER) for n in range(3)]
        receipts += outbox.add_many(connection, [NewEvent(PLACED, {}, ORDER)] * 2)
    assert all(receipt.created for receipt in receipts)
    assert len(rows(dsn, [receipt.id for receipt in receipts])) == 5
    with psycopg.connect(dsn, autocommit=True) as connection, connection.pipeline():
        with pytest.raises(NotInTransaction):
            outbox.add(connection, PLACED, {}, aggregate=ORDER)
        with connection.transaction():
            inside = outbox.add(connection, PLACED, {}, aggregate=ORDER)
    assert len(rows(dsn, [inside.id])) == 1
    own = Outbox(layout="document", table="documents")
    with psycopg.connect(dsn) as connection, connection.pipeline():
        twice = [own.add(connection, PLACED, {}, aggregate=ORDER, id="in a pipeline").created for _ in range(2)]
    assert twice == [True, False]


def test_djangos_module_of_transactions_stands_for_its_default_connection(
    dsn: str, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connections, transaction

    service = Django(dsn)
    monkeypatch.setitem(connections.databases, "default", connections.databases[Django.ALIAS])
    connections["default"] = connections.create_connection("default")
    with pytest.raises(NotInTransaction):
        outbox.add(transaction, PLACED, {}, aggregate=ORDER)
    with transaction.atomic():
        receipt = outbox.add(transaction, PLACED, {}, aggregate=ORDER)
    connections["default"].close()
    service.connection.close()
    assert len(rows(dsn, [receipt.id])) == 1


def test_a_role_that_may_only_insert(dsn: str, postgres: PostgresServer, outbox: Outbox) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE only_insert LOGIN PASSWORD 'x'; GRANT INSERT ON outbox TO only_insert")
    try:
        login = postgres.dsn("test_outbox_writer", user="only_insert", password="x")
        with psycopg.connect(login) as connection:
            receipt = outbox.add(connection, PLACED, {}, aggregate=ORDER)
            several = outbox.add_many(connection, [NewEvent(PLACED, {}, ORDER)] * 2)
        assert len(rows(dsn, [receipt.id, *(each.id for each in several)])) == 3
        with pytest.raises(ReceiptUnavailable, match="may not read"):
            receipt.wait(timeout=1)
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DROP OWNED BY only_insert; DROP ROLE only_insert")


@every_driver
def test_a_receipt_follows_the_slot(kind: type[PostgresClient], dsn: str) -> None:
    """A slot that is advanced by hand stands in for the connector; a test of tests/faults has a real one."""

    async def test() -> None:
        service = kind(dsn)
        outbox = Outbox(table="outbox", pipeline="orders")

        async def wait(receipt: Receipt) -> None:
            if isinstance(service, Asyncpg | Django):
                async with service.autocommit() as connection:
                    await resolved(
                        receipt.wait_async(0, connection=connection) if service.is_async else receipt.wait(0)
                    )
            else:
                await resolved(receipt.wait_async(0) if service.is_async else receipt.wait(timeout=0))

        async def add() -> Receipt:
            async with service.transaction() as handle:
                receipt: Receipt = await resolved(outbox.add(handle, PLACED, {}, aggregate=ORDER))
                return receipt

        with psycopg.connect(dsn, autocommit=True) as admin:
            with pytest.raises(ReceiptUnavailable, match="no replication slot tailrace_orders"):
                await wait(await add())
            admin.execute("SELECT pg_create_logical_replication_slot('tailrace_orders', 'pgoutput')")
            receipt = await add()
            with pytest.raises(NotPublishedYet, match="connector is not running"):
                await wait(receipt)
            for _ in range(20):  # other tests write to the log of this server at the same time
                admin.execute("SELECT pg_replication_slot_advance('tailrace_orders', pg_current_wal_insert_lsn())")
                with suppress(NotPublishedYet):
                    await wait(receipt)
                    break
            else:
                pytest.fail("the receipt does not see that the slot has advanced")
            with pytest.raises(NotPublishedYet):
                await wait(await add())
            undone = await rolled_back(
                service.transaction(), lambda handle: outbox.add(handle, PLACED, {}, aggregate=ORDER)
            )
            with pytest.raises(NotCommitted, match="not in the outbox"):
                await wait(undone)
            admin.execute("SELECT pg_drop_replication_slot('tailrace_orders')")
        await service.close()

    asyncio.run(test())


def test_waiting_before_the_commit_is_an_error(dsn: str, outbox: Outbox) -> None:
    with psycopg.connect(dsn) as connection:
        receipt = outbox.add(connection, PLACED, {}, aggregate=ORDER)
        with pytest.raises(NotCommitted, match="not in the outbox"):
            receipt.wait()
        with pytest.raises(NotCommitted, match="transaction that has written"):
            receipt.wait(connection=connection)


@every_driver
def test_the_pressure_is_measured_without_a_connector(kind: type[PostgresClient], dsn: str) -> None:
    """A slot that is advanced by hand stands in for the connector; a test of tests/faults has a real one."""

    async def test() -> None:
        service = kind(dsn)
        outbox = Outbox(table="outbox", pipeline="pressed", brake=Brake(pending_events=2, max_delay=0.05, interval=0))

        async def measured() -> Pressure:
            async with service.autocommit() as connection:
                pressure: Pressure = await resolved(outbox.pressure(connection))
                return pressure

        with psycopg.connect(dsn, autocommit=True) as admin:
            none = await measured()
            assert (none.running, none.lag_bytes, none.pending_events) == (None, None, None)
            assert "no slot tailrace_pressed" in none.explanation
            admin.execute("SELECT pg_create_logical_replication_slot('tailrace_pressed', 'pgoutput')")
            before = await measured()
            async with service.transaction() as handle:
                await resolved(outbox.add_many(handle, [NewEvent(PLACED, {}, ORDER)] * 6))
            after = await measured()
            assert after.running is False
            assert "not running" in after.explanation
            assert before.lag_bytes is not None
            assert after.lag_bytes is not None
            assert after.lag_seconds is not None
            assert after.lag_bytes > before.lag_bytes
            assert after.pending_events is not None
            assert after.pending_events >= 6
            async with service.autocommit() as connection:
                assert await resolved(outbox.slow_down(connection)) == 0.05
            admin.execute("SELECT pg_drop_replication_slot('tailrace_pressed')")
        await service.close()

    asyncio.run(test())


def test_row_marks_show_what_is_pending(dsn: str) -> None:
    outbox = Outbox(layout="document", table="marked", pipeline="nobody", marks="rows")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE marked (LIKE documents)")
        assert outbox.pressure(connection).pending_events == 0
        with connection.transaction():
            outbox.add_many(connection, [NewEvent(PLACED, {}, ORDER) for _ in range(4)])
        connection.execute("UPDATE marked SET created_at = now() - interval '1 hour'")
        pressure = outbox.pressure(connection)
        assert pressure.pending_events == 4
        assert pressure.lag_seconds is not None
        assert pressure.lag_seconds >= 3600
        statuses = ["published", "failed", "processing"]
        for status in statuses:
            connection.execute(
                "UPDATE marked SET status = %s WHERE ctid = (SELECT ctid FROM marked WHERE status = 'pending' LIMIT 1)",
                [status],
            )
        assert outbox.pressure(connection).pending_events == 2
        with connection.transaction():
            receipt = outbox.add(connection, PLACED, {}, aggregate=ORDER)
        with pytest.raises(NotPublishedYet, match="does not say status = published"):
            receipt.wait(0)
        connection.execute("UPDATE marked SET status = 'failed' WHERE event_id = %s", [receipt.id])
        with pytest.raises(EventDeadLettered):
            receipt.wait(60)
        connection.execute("UPDATE marked SET status = 'published' WHERE event_id = %s", [receipt.id])
        receipt.wait(0)
        with pytest.raises(ConfigError, match="has no brake"):
            outbox.slow_down(connection)


def test_several_slots_must_be_told_apart(dsn: str, outbox: Outbox) -> None:
    names = ["tailrace_a", "tailrace_b", "other"]
    with psycopg.connect(dsn) as connection:
        receipt = outbox.add(connection, PLACED, {}, aggregate=ORDER)
    with psycopg.connect(dsn, autocommit=True) as admin:
        for name in names:
            admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        with pytest.raises(ReceiptUnavailable, match="tailrace_a, tailrace_b"):
            receipt.wait()
        admin.execute("SELECT pg_drop_replication_slot(name) FROM unnest(%s::text[]) AS name", [names])


@pytest.mark.slow
def test_events_are_validated_with_the_schemas_of_a_registry(dsn: str, registry: RegistryServer) -> None:
    """The registry is asked for the first event of a type only."""
    known, unknown = f"Known{uuid4().hex[:8]}", f"Unknown{uuid4().hex[:8]}"
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    with RegistryClient(RegistryOptions(registry.url, timeout=20)) as client:
        client.register(known, schema, "json")
    with registry_schemas(registry.url, timeout=20) as schemas, psycopg.connect(dsn) as connection:
        outbox = Outbox(table="outbox", schemas=schemas)
        with pytest.raises(EventInvalid, match="expected integer"):
            outbox.add(connection, known, {"n": "one"}, aggregate=ORDER)
        with pytest.raises(EventInvalid, match="no schema"):
            outbox.add(connection, unknown, {"n": 1}, aggregate=ORDER)
        outbox.add(connection, known, {"n": 1}, aggregate=ORDER)
        registry.pause()
        try:
            receipt = outbox.add(connection, known, {"n": 2}, aggregate=ORDER)
        finally:
            registry.resume()
        assert outbox.exists(connection, receipt.id)


def test_the_example_of_the_docs_works(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the table and the schema that `tailrace init` makes. Without a connector, only the wait fails."""
    page = Path(__file__).parents[2] / "docs" / "outbox.md"
    source = page.read_text().partition("```python\n")[2].partition("```")[0]
    with pytest.raises(SystemExit):
        main(["init", str(tmp_path), "--name", "orders"])
    monkeypatch.chdir(tmp_path)
    with psycopg.connect(database) as connection:
        connection.execute(table_ddl("public.outbox"))  # type: ignore[call-overload]
        connection.execute("CREATE TABLE orders (id text, state text)")
    with pytest.raises(ReceiptUnavailable, match="no replication slot tailrace_orders"):
        exec(source, {"dsn": database})
    assert [row["aggregateid"] for row in rows(database)] == ["o-1"]
