"""Any interleaving of deliveries to several consumers of a group applies each event exactly once.

A delivery has three steps: mark, apply, end (commit, rollback, a body that raises, a lost connection). A schedule says
whose step is next. A consumer that waits for another one's transaction is skipped until that has ended.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tailrace.inbox import Inbox
from tailrace.testkit.stack import MongoServer, PostgresServer

EVENTS, CONSUMERS = 3, 3
SECONDS = 30.0
GROUP = "g"
INBOX = Inbox()


class Delivery(NamedTuple):
    event: str
    ending: str


class BodyFailed(Exception):
    pass


deliveries = st.lists(
    st.lists(
        st.builds(
            Delivery,
            st.integers(0, EVENTS - 1).map(str),
            st.sampled_from(["commit", "commit", "rollback", "raise", "disconnect"]),
        ),
        max_size=4,
    ),
    min_size=2,
    max_size=CONSUMERS,
)
schedules = st.lists(st.integers(0, CONSUMERS - 1), max_size=40)
each_schedule = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Consumer:
    """Processes its deliveries one after another; before each step it waits for its turn."""

    def __init__(self, dsn: str, queue: list[Delivery]) -> None:
        self._dsn = dsn
        self._queue = queue
        self._turns = asyncio.Semaphore(0)
        self.backend = 0
        self.is_parked = False

    def step(self) -> None:
        self.is_parked = False
        self._turns.release()

    async def run(self) -> None:
        for delivery in self._queue:
            await self._turn()
            # A real consumer keeps its connection; the transaction is the same.
            connection = await psycopg.AsyncConnection.connect(self._dsn)
            self.backend = connection.info.backend_pid
            await self._deliver(connection, delivery)
            await connection.close()

    async def _deliver(self, connection: psycopg.AsyncConnection[Any], delivery: Delivery) -> None:
        try:
            async with INBOX.once(connection, delivery.event, GROUP) as first:
                await self._turn()
                if first:
                    await connection.execute("INSERT INTO effects VALUES (%s)", [delivery.event])
                await self._turn()
                if delivery.ending == "raise":
                    raise BodyFailed
        except BodyFailed:
            pass  # swallowed, and committed
        if delivery.ending in ("commit", "raise"):
            await connection.commit()
        elif delivery.ending == "rollback":
            await connection.rollback()

    async def _turn(self) -> None:
        self.is_parked = True
        await self._turns.acquire()


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> Iterator[str]:
    name = "test_inbox_interleavings"
    found = postgres.create_database(name)
    with psycopg.connect(found) as connection:
        connection.execute("CREATE TABLE effects (event text NOT NULL)")
        INBOX.create(connection)
    yield found
    with postgres.connect() as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def observer(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("TRUNCATE effects, processed_events")
        yield connection


async def settle(
    consumers: list[Consumer], tasks: list[asyncio.Task[None]], connection: psycopg.AsyncConnection[Any]
) -> None:
    """Returns when each consumer has ended, waits for its turn, or waits for the transaction of another one."""
    async with asyncio.timeout(SECONDS):
        while True:
            moving = {
                consumer.backend
                for consumer, task in zip(consumers, tasks, strict=True)
                if not consumer.is_parked and not task.done()
            }
            if not moving:
                return
            waiting = await (
                await connection.execute("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            ).fetchall()
            if moving <= {pid for (pid,) in waiting}:
                return


async def require_consistency(connection: psycopg.AsyncConnection[Any]) -> Counter[str]:
    """Every committed effect has its marker, and the other way round, at any moment."""
    effects = await (await connection.execute("SELECT event FROM effects")).fetchall()
    markers = await (await connection.execute("SELECT event_id FROM processed_events")).fetchall()
    assert sorted(effects) == sorted(markers)
    return Counter(event for (event,) in effects)


@each_schedule
@given(queues=deliveries, schedule=schedules)
def test_postgres(dsn: str, queues: list[list[Delivery]], schedule: list[int]) -> None:
    async def test() -> None:
        async with observer(dsn) as connection:
            consumers = [Consumer(dsn, queue) for queue in queues]
            tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
            await asyncio.sleep(0)
            await settle(consumers, tasks, connection)
            in_turn = [number for _ in range(12) for number in range(len(queues))]
            for number in [*schedule, *in_turn]:
                if number < len(consumers) and consumers[number].is_parked and not tasks[number].done():
                    consumers[number].step()
                    await settle(consumers, tasks, connection)
                    await require_consistency(connection)
            while not all(task.done() for task in tasks):  # those that had waited
                for consumer in consumers:
                    if consumer.is_parked:
                        consumer.step()
                await settle(consumers, tasks, connection)
            await asyncio.gather(*tasks)
            delivered = {each.event for queue in queues for each in queue}
            # Kafka delivers again what was not acknowledged.
            for event in [*delivered, *delivered]:
                last = await psycopg.AsyncConnection.connect(dsn)
                async with last, INBOX.once(last, event, GROUP) as first:
                    if first:
                        await last.execute("INSERT INTO effects VALUES (%s)", [event])
            assert await require_consistency(connection) == Counter(delivered)

    asyncio.run(test())


class MongoDelivery:
    """One delivery to a consumer; `step` is called three times."""

    def __init__(self, client: MongoClient[dict[str, Any]], name: str, delivery: Delivery) -> None:
        self._effects = client[name]["effects"]
        self._delivery = delivery
        self._inbox = Inbox(f"{name}.processed_events")
        self._session = client.start_session()
        self._steps = self._run()

    def step(self) -> bool:
        """Makes the next step; returns whether there are more."""
        return next(self._steps, None) is not None

    def _run(self) -> Iterator[bool]:
        event, ending = self._delivery
        with self._session as session:
            session.start_transaction()
            try:
                with self._inbox.once(session, event, GROUP) as first:
                    yield True
                    if first:
                        self._effects.insert_one({"event": event}, session=session)
                    yield True
                    if ending == "raise":
                        raise BodyFailed
            except BodyFailed:
                pass
            except OperationFailure as error:
                if not error.has_error_label("TransientTransactionError"):
                    raise
                # It is delivered again later.
            if session.in_transaction and ending in ("commit", "raise"):
                session.commit_transaction()
            # The end of the session aborts what is open, as the server does after a lost connection.


@each_schedule
@given(queues=deliveries, schedule=schedules)
def test_mongo(mongo: MongoServer, queues: list[list[Delivery]], schedule: list[int]) -> None:
    name = f"inbox_{uuid.uuid4().hex[:8]}"
    with mongo.client() as client:
        client[name].create_collection("effects")
        with client.start_session() as session:
            Inbox(f"{name}.processed_events").create(session)

        def applied() -> Counter[str]:
            effects = Counter(document["event"] for document in client[name]["effects"].find())
            assert effects == Counter(each["event_id"] for each in client[name]["processed_events"].find())
            return effects

        todo = [list(queue) for queue in queues]
        current: dict[int, MongoDelivery] = {}
        in_turn = [number for _ in range(12) for number in range(len(queues))]
        for number in [*schedule, *in_turn]:
            if number not in current and number < len(todo) and todo[number]:
                current[number] = MongoDelivery(client, name, todo[number].pop(0))
            if number in current and not current[number].step():
                del current[number]
                applied()
        assert not current
        delivered = {each.event for queue in queues for each in queue}
        for event in [*delivered, *delivered]:
            last = MongoDelivery(client, name, Delivery(event, "commit"))
            while last.step():
                pass
        assert applied() == Counter(delivered)
        client.drop_database(name)
