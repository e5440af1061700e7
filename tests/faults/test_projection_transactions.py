"""Handlers that end the transaction of their batch, or write outside of it: nothing is lost or applied twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from helpers.store_scenarios import Boom
from tailrace.errors import TransactionEnded
from tailrace.projections import MongoStore, PostgresStore, Projection, ProjectionTester, projection_app
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.store import Partition
from tailrace.projections.postgres.effects import PostgresEffects
from tailrace.testkit.stack import MongoServer

THINGS = "CREATE TABLE IF NOT EXISTS things (key text PRIMARY KEY, times integer NOT NULL)"
ADD = "INSERT INTO things VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET times = things.times + 1"
P0 = Partition("orders", 0)
EVENTS = 40
BAD = (11, 30)
ENDS = ["ROLLBACK", "ROLLBACK AND CHAIN", "COMMIT", "COMMIT AND CHAIN", "ROLLBACK; BEGIN", "COMMIT; BEGIN", "ABORT"]


def in_loop(scenario: Callable[[], Awaitable[None]], seconds: float = 120) -> None:
    async def run() -> None:
        await asyncio.wait_for(scenario(), seconds)

    asyncio.run(run())


def rows(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [row[0] for row in connection.execute(query.encode()).fetchall()]


def events(start: int = 0) -> list[Event]:
    return [read_event(P0, n, b"k", b"{}", [("id", f"e-{n:02}".encode())], 1) for n in range(start, EVENTS)]


def projection(store: Any) -> Projection:
    return Projection(projection_app(f"transactions-{uuid.uuid4().hex[:8]}"), "orders", store=store)


@pytest.mark.parametrize("raw", [False, True], ids=["effects", "connection"])
@pytest.mark.parametrize("statement", ENDS)
def test_a_handler_that_ends_the_transaction_halts_before_its_event(database: str, statement: str, raw: bool) -> None:
    """It hides the error, if any, and continues to write; a later event of its batch fails, too."""
    fixed = False

    async def scenario() -> None:
        nonlocal fixed
        orders = projection(PostgresStore(database, tables=THINGS))

        @orders.on()
        async def add(event: Event, effects: PostgresEffects) -> None:
            await effects.execute(ADD, [event.id])
            if event.offset in BAD and not fixed:
                execute = (await effects.connection()).execute if raw else effects.execute
                for each in (statement.encode(), f"INSERT INTO things VALUES ('escaped-{event.id}', 1)".encode()):
                    try:
                        await execute(each)
                    except Exception:  # noqa: BLE001 - that is what is tested
                        pass
            if event.offset == EVENTS - 1 and not fixed:
                raise Boom

        async with ProjectionTester(orders) as tester:
            with pytest.raises(TransactionEnded) as caught:
                await tester.apply_batch(*events())
            assert "SAVEPOINT" in caught.value.remedy
            done = [f"e-{n:02}" for n in range(BAD[0])]
            assert rows(database, "SELECT key FROM things ORDER BY key") == done
            assert rows(database, "SELECT event_id FROM tailrace_markers ORDER BY event_id") == done
            assert rows(database, "SELECT next_offset FROM tailrace_offsets") == [BAD[0]]
            assert tester.dead_letters == []
        fixed = True
        async with ProjectionTester(orders) as tester:
            await tester.apply_batch(*events(BAD[0]))
        everything = [event.id for event in events()]
        assert rows(database, "SELECT key FROM things WHERE times = 1 ORDER BY key") == everything
        assert rows(database, "SELECT event_id FROM tailrace_markers ORDER BY event_id") == everything

    in_loop(scenario)


def test_savepoints_of_a_handler_are_allowed(database: str) -> None:
    async def scenario() -> None:
        orders = projection(PostgresStore(database, tables=THINGS))

        @orders.on()
        async def add(event: Event, effects: PostgresEffects) -> None:
            await effects.execute("SAVEPOINT mine")
            await effects.execute("INSERT INTO things VALUES ('undone', 1)")
            await effects.execute("ROLLBACK TO mine")
            async with (await effects.connection()).transaction() as inner:
                await effects.execute("INSERT INTO things VALUES ('undone', 1)")
                raise psycopg.Rollback(inner)
            await effects.execute("RELEASE mine")
            await effects.execute(ADD, [event.id])

        async with ProjectionTester(orders) as tester:
            await tester.apply_batch(*events())
            assert tester.outcomes["applied"] == EVENTS
        assert rows(database, "SELECT key FROM things ORDER BY key") == [event.id for event in events()]

    in_loop(scenario)


@pytest.mark.parametrize("raw", [False, True], ids=["effects", "connection"])
@pytest.mark.parametrize("commits", [False, True], ids=["rolled back", "committed"])
def test_a_task_that_outlives_its_handler_writes_nothing_outside_of_the_transaction(
    database: str, raw: bool, commits: bool
) -> None:
    """What such a task has written is committed or rolled back with the transaction."""

    async def scenario() -> None:
        store = PostgresStore(database, tables=THINGS)
        await store.open("p")
        written: set[str] = set()

        async def late(effects: PostgresEffects, key: str, turns: int) -> None:
            connection = await effects.connection()
            for _ in range(turns):
                await asyncio.sleep(0)
            execute = connection.execute if raw else effects.execute
            await execute("INSERT INTO things VALUES (%s, 1)", [key])
            written.add(key)

        tasks: list[asyncio.Task[None]] = []
        kept: set[str] = set()
        for number in range(10):
            written.clear()
            try:
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    spawn = [late(transaction.effects, f"{number}-{turns}", turns) for turns in range(0, 60, 3)]
                    tasks = [asyncio.create_task(each) for each in spawn]
                    await asyncio.sleep(0)
                    await transaction.advance(number + 1)
                    if not commits:
                        raise Boom
            except Boom:
                pass
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(each is None or isinstance(each, RuntimeError | psycopg.Error) for each in ended), ended
            kept |= written if commits else set()
        await store.close()
        assert set(rows(database, "SELECT key FROM things")) == kept
        assert rows(database, "SELECT next_offset FROM tailrace_offsets") == ([10] if commits else [])

    in_loop(scenario)


def test_a_connection_that_a_handler_kept_does_not_work_in_a_later_transaction(database: str) -> None:
    async def scenario() -> None:
        store = PostgresStore(database, tables=THINGS)
        await store.open("p")
        go_on = asyncio.Event()

        async def late(connection: psycopg.AsyncConnection[Any]) -> None:
            await go_on.wait()
            await connection.execute(ADD.encode(), ["late"])

        async with store.transaction(P0) as transaction:
            await transaction.position()
            task = asyncio.create_task(late(await transaction.effects.connection()))
        async with store.transaction(P0) as transaction:
            await transaction.position()
            go_on.set()
            with pytest.raises(RuntimeError, match="has ended"):
                await task
        await store.close()
        assert rows(database, "SELECT key FROM things") == []

    in_loop(scenario)


@pytest.mark.parametrize("commits", [False, True], ids=["rolled back", "committed"])
def test_a_task_that_outlives_its_handler_in_mongodb(mongo: MongoServer, commits: bool) -> None:
    database = f"transactions_{uuid.uuid4().hex[:8]}"

    async def scenario() -> None:
        store = MongoStore(mongo.uri, database, collections={"things": []})
        await store.open("p")
        written: set[str] = set()
        kept: set[str] = set()

        async def late(effects: Any, key: str, turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await effects.collection("things").insert_one({"_id": key})
            written.add(key)

        for number in range(10):
            written.clear()
            try:
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    spawn = [late(transaction.effects, f"{number}-{turns}", turns) for turns in range(0, 60, 3)]
                    tasks = [asyncio.create_task(each) for each in spawn]
                    await asyncio.sleep(0)
                    await transaction.advance(number + 1)
                    if not commits:
                        raise Boom
            except Boom:
                pass
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(each is None or isinstance(each, RuntimeError) for each in ended), ended
            kept |= written if commits else set()
        await store.close()
        with mongo.client() as client:
            assert {each["_id"] for each in client[database].things.find()} == kept
            stored = [each.get("next_offset") for each in client[database].tailrace_offsets.find()]
            assert stored == ([10] if commits else [None])

    in_loop(scenario)
