"""Agents that end their transaction, or write outside of it, on real databases: nothing is lost or applied twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pymongo
import pytest
from faust.types import AgentT

from tailrace.errors import EventNotApplied, TransactionEnded
from tailrace.projections import MongoStore, PostgresStore, ProjectionTester, projection_app
from tailrace.projections.core import holders
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.store import Partition
from tailrace.testkit.stack import MongoServer

THINGS = "CREATE TABLE IF NOT EXISTS things (key text PRIMARY KEY, times integer NOT NULL)"
ADD = "INSERT INTO things VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET times = things.times + 1"
ENDS = ["ROLLBACK", "COMMIT", "COMMIT AND CHAIN", "ROLLBACK; BEGIN"]
EVENTS = 6
BAD = 3
EVERYTHING = [f"e-{n}" for n in range(EVENTS)]


def in_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(run())


def rows(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [row[0] for row in connection.execute(query.encode()).fetchall()]


def events(start: int = 0) -> list[Event]:
    partition = Partition("orders", 0)
    return [read_event(partition, n, b"k", b"{}", [("id", f"e-{n}".encode())], 1) for n in range(start, EVENTS)]


def declared(store: Any, function: Callable[[Any], Any], **settings: Any) -> AgentT[Any]:
    app = projection_app(f"transactions-{uuid.uuid4().hex[:8]}")
    agent: AgentT[Any] = app.agent(app.events("orders", store=store, **settings))(function)
    return agent


@pytest.mark.parametrize("raw", [False, True], ids=["effects", "connection"])
@pytest.mark.parametrize("hides", [False, True], ids=["raises", "hides the error"])
@pytest.mark.parametrize("statement", ENDS)
def test_an_agent_that_ends_the_transaction_halts_before_its_event(
    database: str, statement: str, hides: bool, raw: bool
) -> None:
    fixed = False

    async def agent(stream: Any) -> None:
        async for event in stream:
            async with event.once() as effects:
                await effects.execute(ADD, [event.id])
                if event.offset == BAD and not fixed:
                    execute = (await effects.connection()).execute if raw else effects.execute
                    for each in (statement.encode(), f"INSERT INTO things VALUES ('escaped-{event.id}', 1)".encode()):
                        try:
                            await execute(each)
                        except Exception:
                            if not hides:
                                raise

    async def scenario() -> None:
        nonlocal fixed
        orders = declared(PostgresStore(database, tables=THINGS), agent)
        async with ProjectionTester(orders) as tester:
            with pytest.raises(TransactionEnded):
                await tester.apply_batch(*events())
            done = EVERYTHING[:BAD]
            assert rows(database, "SELECT key FROM things ORDER BY key") == done
            assert rows(database, "SELECT event_id FROM tailrace_markers ORDER BY event_id") == done
            assert rows(database, "SELECT next_offset FROM tailrace_offsets") == [BAD]
            assert tester.dead_letters == []
        fixed = True
        async with ProjectionTester(orders) as tester:
            await tester.apply_batch(*events(BAD))
        assert rows(database, "SELECT key FROM things WHERE times = 1 ORDER BY key") == EVERYTHING

    in_loop(scenario)


def test_an_agent_that_ignores_an_error_of_postgres_fails_its_event(database: str) -> None:
    errors: list[str] = []

    async def agent(stream: Any) -> None:
        async for event in stream:
            try:
                async with event.once() as effects:
                    await effects.execute(ADD, [event.id])
                    if event.offset == BAD:
                        try:
                            await effects.execute("INSERT INTO nowhere VALUES (1)")
                        except Exception:  # noqa: BLE001 - that is what is tested
                            pass
            except EventNotApplied as error:
                errors.append(error.why)

    async def scenario() -> None:
        async with ProjectionTester(declared(PostgresStore(database, tables=THINGS), agent, max_attempts=2)) as tester:
            await tester.apply_batch(*events())
            assert [letter.event.id for letter in tester.dead_letters] == [f"e-{BAD}"]
        assert rows(database, "SELECT key FROM things ORDER BY key") == [e for e in EVERYTHING if e != f"e-{BAD}"]
        assert errors
        assert all("could not be committed" in each for each in errors)

    in_loop(scenario)


@pytest.mark.parametrize("raw", [False, True], ids=["effects", "connection"])
def test_a_task_that_outlives_once_writes_nothing_outside_of_the_transaction(database: str, raw: bool) -> None:
    """What it has written is committed with the transaction; later statements are refused."""
    tasks: list[asyncio.Task[str]] = []
    applied = asyncio.Event()

    async def late(effects: Any, key: str, turns: int) -> str:
        connection = await effects.connection()
        for _ in range(turns):
            await asyncio.sleep(0)
        await (connection.execute if raw else effects.execute)("INSERT INTO things VALUES (%s, 1)", [key])
        return key

    async def after(effects: Any) -> str:
        await applied.wait()
        connection = await effects.connection()
        await (connection.execute if raw else effects.execute)("INSERT INTO things VALUES ('after', 1)")
        return "after"

    async def agent(stream: Any) -> None:
        async for event in stream:
            async with event.once() as effects:
                await effects.execute(ADD, [event.id])
                for turns in range(0, 30, 5):
                    tasks.append(asyncio.create_task(late(effects, f"{event.id}+{turns}", turns)))
                tasks.append(asyncio.create_task(after(effects)))
                assert holders.current()
            assert not holders.current()

    async def scenario() -> None:
        orders = declared(PostgresStore(database, tables=THINGS), agent)
        async with ProjectionTester(orders) as tester:
            await tester.apply_batch(*events())
            applied.set()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        written = {each for each in ended if isinstance(each, str)}
        assert "after" not in written
        found = set(rows(database, "SELECT key FROM things"))
        assert found == {*EVERYTHING, *written}
        assert len(written) < len(tasks), "some came too late"

    in_loop(scenario)


def test_an_agent_and_a_dead_task_in_mongodb(mongo: MongoServer) -> None:
    """The same for MongoDB: late commands, and an error that is ignored."""
    name = f"agents_{uuid.uuid4().hex[:8]}"
    tasks: list[asyncio.Task[Any]] = []
    applied = asyncio.Event()

    async def late(effects: Any) -> None:
        await applied.wait()
        await effects.collection("things").insert_one({"_id": "late"})

    async def agent(stream: Any) -> None:
        async for batch in stream.take(4):
            async with batch.once() as effects:
                for event in batch:
                    await effects.collection("things").update_one(
                        {"_id": event.id}, {"$inc": {"times": 1}}, upsert=True
                    )
                    if event.offset == BAD:
                        try:
                            await effects.collection("things").insert_one({"_id": event.id})
                        except pymongo.errors.DuplicateKeyError:
                            pass
                tasks.append(asyncio.create_task(late(effects)))

    async def scenario() -> None:
        store = MongoStore(mongo.uri, name, collections={"things": []})
        async with ProjectionTester(declared(store, agent)) as tester:
            await tester.apply_batch(*events())
            assert [letter.event.id for letter in tester.dead_letters] == [f"e-{BAD}"]
            applied.set()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, RuntimeError) for each in ended)

    in_loop(scenario)
    with pymongo.MongoClient[dict[str, Any]](mongo.uri) as client:
        found = {each["_id"]: each["times"] for each in client[name].things.find()}
        assert found == {e: 1 for e in EVERYTHING if e != f"e-{BAD}"}
        client.drop_database(name)
