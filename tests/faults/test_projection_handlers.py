"""Handlers, ids and versions: each test names a way to lose or repeat events, or to stall."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from helpers.projection import Projected
from tailrace.errors import ConfigError
from tailrace.projections import MongoStore, PostgresStore, Projection, ProjectionTester, Versions, projection_app
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.store import EntityState, Partition
from tailrace.projections.core.versions import key_of
from tailrace.testkit.stack import MongoServer, wait_until

DAY_MS = 86_400_000
THINGS = """
    CREATE TABLE IF NOT EXISTS things (key text PRIMARY KEY, value text);
    CREATE TABLE IF NOT EXISTS others (key text PRIMARY KEY, value text);
"""
P0, P1 = Partition("orders", 0), Partition("orders", 1)


def in_loop(scenario: Callable[[], Awaitable[None]], seconds: float = 60) -> None:
    async def run() -> None:
        await asyncio.wait_for(scenario(), seconds)

    asyncio.run(run())


def in_postgres(dsn: str, **choices: Any) -> Projection:
    app = projection_app(f"handlers-{uuid.uuid4().hex[:8]}")
    return Projection(app, "orders", store=PostgresStore(dsn, tables=THINGS), **choices)


# Versions.


def test_an_event_behind_a_gap_is_dead_lettered_on_a_busy_partition_too(projected: Projected) -> None:
    projected.configure('versions=Versions(gaps="wait", timeout=1), within=0.01')
    projected.publish({"key": "k", "headers": {"entity_version": "3"}})
    projected.start()
    wait_until(lambda: projected.execute("SELECT 1 FROM tailrace_waiting"), 60)
    until = time.monotonic() + 25

    def dead_letters() -> bool:
        projected.publish({"key": "k"})  # of the same partition, and without a version
        return bool(projected.dead_letters()) or time.monotonic() > until

    wait_until(dead_letters, 60)
    assert projected.dead_letters(), "25 s, and it still waits"


def test_versions_of_an_entity_in_two_partitions_do_not_go_backwards(database: str) -> None:
    """Two workers apply its first two events at the same time."""

    async def scenario() -> None:
        one, two = PostgresStore(database), PostgresStore(database)
        await one.open("p")
        await two.open("p")

        async def older() -> None:
            async with one.transaction(P0) as transaction:
                await transaction.position()
                if not await transaction.entities(["o-1"]):
                    await transaction.save_entities({"o-1": EntityState(1, deleted=False)})

        try:
            async with two.transaction(P1) as newer:
                await newer.position()
                assert await newer.entities(["o-1"]) == {}
                await newer.save_entities({"o-1": EntityState(2, deleted=False)})
                task = asyncio.create_task(older())
                # Until it waits for the newer one, in `entities` or in `save_entities`.
                await asyncio.to_thread(wait_until, lambda: waits(database), 30)
            [error] = await asyncio.gather(task, return_exceptions=True)
            # A retry is fine, too.
            assert error is None or one.is_transient(error), error
            async with one.transaction(P0) as transaction:
                assert await transaction.entities(["o-1"]) == {"o-1": EntityState(2, deleted=False)}
        finally:
            await one.close()
            await two.close()

    in_loop(scenario)


def waits(dsn: str) -> bool:
    """Whether a session waits for a lock."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        asked = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(connection.execute(asked).rowcount)


def test_an_unknown_value_of_gaps_is_refused() -> None:
    with pytest.raises(ConfigError):
        Versions(gaps="Wait")  # type: ignore[arg-type]


# Names.


def test_ids_and_keys_that_are_not_text_stay_distinct() -> None:
    ids = {read_event(P0, 0, None, b"{}", [("id", number.to_bytes(8, "big"))], 0).id for number in range(120, 140)}
    keys = {key_of(read_event(P0, 0, number.to_bytes(8, "big"), b"{}", [], 0)) for number in range(120, 140)}
    assert (len(ids), len(keys)) == (20, 20)


def test_events_whose_keys_are_not_text_are_all_applied(database: str) -> None:
    async def scenario() -> None:
        projection = in_postgres(database, versions=Versions())
        applied: list[bytes] = []

        @projection.on()
        async def handle(event: Event, effects: Any) -> None:
            applied.append(event.key or b"")

        async with ProjectionTester(projection) as tester:
            for number in (200, 201, 202):
                said = [("id", f"e-{number}".encode()), ("type", b"T"), ("entity_version", b"1")]
                await tester.apply_batch(read_event(P0, number, number.to_bytes(8, "big"), b"{}", said, 1))
            assert len(applied) == 3, tester.outcomes

    in_loop(scenario)


# Handlers that go wrong.


def test_failed_deferred_writes_are_not_forgotten_if_a_handler_ignores_the_error(database: str) -> None:
    async def scenario() -> None:
        projection = in_postgres(database)

        @projection.on("Write")
        async def write(event: Event, effects: Any) -> None:
            effects.upsert("things", {"key": event.id}, {"value": event.data["text"]})

        @projection.on("Look")
        async def look(event: Event, effects: Any) -> None:
            try:
                await effects.fetch_one("SELECT 1")
            except Exception:  # noqa: BLE001 - that is what is tested
                pass

        def made_event(offset: int, kind: str, words: str) -> Event:
            said = [("id", f"e-{offset}".encode()), ("type", kind.encode())]
            return read_event(P0, offset, b"k", json.dumps({"text": words}).encode(), said, 1)

        async with ProjectionTester(projection) as tester:
            await tester.apply_batch(
                made_event(0, "Write", "good"), made_event(1, "Write", "bad \0"), made_event(2, "Look", "")
            )
            async with tester.effects() as effects:
                rows = await effects.fetch_all("SELECT key FROM things")
            letters = [each.event.id for each in tester.dead_letters]
            assert (rows, letters) == ([{"key": "e-0"}], ["e-1"]), tester.outcomes

    in_loop(scenario)


def test_failed_deferred_writes_are_not_forgotten_in_mongodb(mongo: MongoServer) -> None:
    async def scenario() -> None:
        app = projection_app(f"handlers-{uuid.uuid4().hex[:8]}")
        store = MongoStore(mongo.uri, f"handlers_{uuid.uuid4().hex[:8]}", collections={"things": []})
        projection = Projection(app, "orders", store=store)

        @projection.on("Write")
        async def write(event: Event, effects: Any) -> None:
            effects.upsert("things", {"_id": event.id}, {"value": event.data["number"]})

        @projection.on("Look")
        async def look(event: Event, effects: Any) -> None:
            try:
                await effects.collection("things").find_one({"_id": "e-0"})
            except Exception:  # noqa: BLE001 - as above
                pass

        def made_event(offset: int, kind: str, number: int) -> Event:
            said = [("id", f"e-{offset}".encode()), ("type", kind.encode())]
            return read_event(P0, offset, b"k", json.dumps({"number": number}).encode(), said, 1)

        async with ProjectionTester(projection) as tester:
            await tester.apply_batch(made_event(0, "Write", 1), made_event(1, "Write", 2**63), made_event(2, "Look", 0))
            async with tester.effects() as effects:
                rows = [each["_id"] for each in await effects.collection("things").find({})]
            letters = [each.event.id for each in tester.dead_letters]
            assert (rows, letters) == (["e-0"], ["e-1"]), tester.outcomes

    in_loop(scenario)


def test_a_handler_that_raises_cancelled_error_is_retried(projected: Projected) -> None:
    more = """
import asyncio
tries = []
@projection.on("Cancels")
async def cancels(event, effects):
    tries.append(1)
    if len(tries) < 3:
        raise asyncio.CancelledError  # as from a task that it awaits and that was cancelled
    await append(event, effects)
"""
    projected.configure("give_up=10, within=0.01", more)
    projected.publish({"key": "k", "headers": {"type": "Cancels"}})
    worker = projected.start()
    wait_until(lambda: projected.state() or not worker.running, 60)
    assert worker.running, worker.log
    projected.caught_up()


def test_an_event_whose_entity_function_fails_is_dead_lettered(database: str) -> None:
    async def scenario() -> None:
        projection = in_postgres(database, versions=Versions(), entity=lambda event: event.key.decode(), max_attempts=1)

        @projection.on()
        async def handle(event: Event, effects: Any) -> None:
            pass

        async with ProjectionTester(projection) as tester:
            await tester.send("T", {}, key=None)
            assert tester.outcomes["dead"] == 1

    in_loop(scenario)


def test_an_error_of_one_partition_does_not_affect_another(database: str) -> None:
    """Two tables, so that the second is written after the first one's answer, when the other partition has failed."""

    async def scenario() -> None:
        store = PostgresStore(database, tables=THINGS)
        await store.open("p")

        async def fails(after: float) -> None:
            with suppress(ValueError):
                async with store.transaction(P1):
                    await asyncio.sleep(after)
                    raise ValueError

        try:
            for number in range(30):
                task = asyncio.create_task(fails(0.0005 * (number % 6)))
                async with store.transaction(P0) as transaction:
                    await transaction.position()
                    transaction.effects.upsert("things", {"key": f"{number}"}, {"value": "1"})
                    transaction.effects.upsert("others", {"key": f"{number}"}, {"value": "1"})
                    await transaction.flush()
                await task
        finally:
            await asyncio.gather(task, return_exceptions=True)
            await store.close()

    in_loop(scenario)


@pytest.mark.slow
def test_a_batch_that_exceeds_the_time_limit_of_a_transaction_is_split(database: str) -> None:
    """500 events of 0.7 s each are longer than 5 minutes; here 40 of 0.1 s, and two seconds."""

    async def scenario() -> None:
        projection = in_postgres(f"{database} options='-c idle_in_transaction_session_timeout=2000'", give_up=20)

        @projection.on()
        async def handle(event: Event, effects: Any) -> None:
            await asyncio.sleep(0.1)

        async with ProjectionTester(projection) as tester:
            worker = tester._worker
            assert worker is not None
            worker._sleep = asyncio.sleep
            events = [read_event(P0, n, b"k", b"{}", [("id", f"e-{n}".encode())], 1) for n in range(40)]
            await tester.apply_batch(*events)
            assert tester.outcomes["applied"] == 40

    in_loop(scenario, 120)


def test_a_locked_table_dead_letters_no_event(projected: Projected) -> None:
    projected.configure("max_attempts=1, within=0.01")
    projected.start()
    wait_until(lambda: len(projected.execute("SELECT 1 FROM tailrace_offsets WHERE next_offset IS NOT NULL")) == 3, 60)
    with psycopg.connect(projected.dsn, options=f"-c search_path={projected.name}") as other:
        other.execute("LOCK TABLE history IN ACCESS EXCLUSIVE MODE")
        projected.publish({"key": "k"})
        until = time.monotonic() + 15
        wait_until(lambda: bool(projected.dead_letters()) or time.monotonic() > until, 60)
    assert projected.dead_letters() == []


def test_no_row_is_shown_in_logs(projected: Projected) -> None:
    more = """
@projection.on("Wrong")
async def wrong(event, effects):
    await effects.execute("INSERT INTO history VALUES (%s, NULL)", [event.data["card"]])
"""
    projected.configure("max_attempts=1, within=0.01", more)
    projected.publish({"key": "k", "value": b'{"card": "4111-1111-1111-1111"}', "headers": {"type": "Wrong"}})
    worker = projected.start()
    wait_until(projected.dead_letters, 60)
    assert "4111-1111" not in worker.log, worker.log
