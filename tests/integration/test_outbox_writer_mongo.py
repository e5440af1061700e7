"""The outbox writer on MongoDB: each event is committed with its transaction, or not at all."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from helpers.outbox_drivers import MONGO_CLIENTS, Pymongo, resolved, rolled_back
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
)
from tailrace.outbox import NewEvent, Outbox
from tailrace.outbox.mongosh import collection_commands
from tailrace.testkit.stack import MongoServer

REGISTERED = "UserRegistered"
USER = ("user", "u-1")
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def client(mongo: MongoServer) -> Iterator[MongoClient[dict[str, Any]]]:
    with mongo.client() as client:
        yield client


@pytest.fixture
def name(client: MongoClient[dict[str, Any]]) -> Iterator[str]:
    """A database with an outbox as `tailrace init` makes it, and a collection of the service."""
    name = f"writer_{uuid.uuid4().hex[:8]}"
    for command in collection_commands(name, "outbox"):
        client[name].command(command.body)
    client[name].create_collection("plain")
    client[name]["users"].insert_one({"_id": "u-1", "revision": 0})
    yield name
    client.drop_database(name)


def documents(client: MongoClient[dict[str, Any]], name: str, collection: str = "outbox") -> list[dict[str, Any]]:
    return list(client[name][collection].find(sort=[("payload.n", 1)]))


every_driver = pytest.mark.parametrize("kind", MONGO_CLIENTS, ids=lambda kind: kind.__name__)


@every_driver
def test_an_event_shares_the_fate_of_its_transaction(
    kind: type[Pymongo], mongo: MongoServer, client: MongoClient[dict[str, Any]], name: str
) -> None:
    outbox = Outbox(layout="document", table=f"{name}.outbox", topic="users")

    async def test() -> None:
        service = kind(mongo.uri)

        def add(session: Any, n: int, **given: Any) -> Any:
            return resolved(outbox.add(session, REGISTERED, {"n": n, "list": [1.5, None]}, aggregate=USER, **given))

        async with service.transaction() as session:
            await resolved(service.client[name].users.update_one({}, {"$inc": {"revision": 1}}, session=session))
            first = await add(session, 1, version=2, aggregate_version=4, key="other", extra={"tenant": "acme"})
            several = [NewEvent(REGISTERED, {"n": n}, USER) for n in (2, 3)]
            receipts = await resolved(outbox.add_many(session, several))
            assert await resolved(outbox.exists(session, first.id))
        gone = await rolled_back(service.transaction(), lambda session: add(session, 4))
        async with service.session() as session:
            assert not await resolved(outbox.exists(session, gone.id))
            with pytest.raises(NotInTransaction):
                await add(session, 5)
        await service.close()

        found = documents(client, name)
        assert [document["event_id"] for document in found] == [first.id, *(receipt.id for receipt in receipts)]
        one = found[0]
        assert one["payload"] == {"n": 1, "list": [1.5, None]}
        assert (one["event_type"], one["entity_type"], one["entity_id"]) == (REGISTERED, "user", "u-1")
        assert (one["partition_key"], one["topic"], one["tenant"]) == ("other", "users", "acme")
        assert (one["entity_version"], one["schema_version"], one["status"]) == (4, "2", "pending")
        assert (one["retry_count"], one["max_retries"]) == (0, 5)

    asyncio.run(test())


@every_driver
@pytest.mark.parametrize("own_id", [None, "own"], ids=["new id", "own id"])
def test_the_retry_loop_of_with_transaction_writes_once(
    kind: type[Pymongo], own_id: str | None, mongo: MongoServer, client: MongoClient[dict[str, Any]], name: str
) -> None:
    """The first attempt conflicts with another write, the second fails at once, the third is committed."""
    outbox = Outbox(layout="document", table=f"{name}.outbox", topic="users")

    async def test() -> None:
        service = kind(mongo.uri)
        attempts = []

        async def in_order(session: Any) -> None:
            attempts.append(await resolved(outbox.add(session, REGISTERED, {"n": 1}, aggregate=USER, id=own_id)))
            if len(attempts) == 1:
                client[name].users.update_one({}, {"$inc": {"revision": 1}})
            if len(attempts) == 2:
                raise OperationFailure("an election", details={"errorLabels": ["TransientTransactionError"]})
            await resolved(service.client[name].users.update_one({}, {"$inc": {"revision": 1}}, session=session))

        def work(session: Any) -> Any:
            steps = in_order(session)
            return steps if service.is_async else _run(steps)

        async with service.session() as session:
            await service.with_transaction(session, work)
        await service.close()
        assert len(attempts) == 3
        assert [document["event_id"] for document in documents(client, name)] == [attempts[-1].id]

    asyncio.run(test())


def _run(steps: Any) -> Any:
    """Runs a coroutine that never waits, as the blocking driver's callback."""
    try:
        while True:
            steps.send(None)
    except StopIteration as end:
        return end.value


@every_driver
@pytest.mark.parametrize("collection", ["outbox", "plain"], ids=["unique index", "no index"])
def test_a_second_write_of_an_event_id_is_success(
    kind: type[Pymongo], collection: str, mongo: MongoServer, client: MongoClient[dict[str, Any]], name: str
) -> None:
    outbox = Outbox(layout="document", table=f"{name}.{collection}")

    async def test() -> None:
        service = kind(mongo.uri)
        created = []
        for n in (1, 2):
            async with service.transaction() as session:
                for _ in range(2):
                    receipt = await resolved(outbox.add(session, REGISTERED, {"n": n}, aggregate=USER, id="own"))
                    created.append(receipt.created)
                again = NewEvent(REGISTERED, {"n": 3}, USER, id="own")
                await resolved(outbox.add_many(session, [again, again, NewEvent(REGISTERED, {"n": 9}, USER, id="x")]))
        await service.close()
        assert created == [True, False, False, False]
        assert [document["payload"]["n"] for document in documents(client, name, collection)] == [1, 9]

    asyncio.run(test())


@every_driver
def test_200_concurrent_writers(
    kind: type[Pymongo], mongo: MongoServer, client: MongoClient[dict[str, Any]], name: str
) -> None:
    """All write to one entity, half of them roll back; what is committed is there once."""
    outbox = Outbox(layout="document", table=f"{name}.outbox")

    async def write(service: Pymongo, number: int) -> str:
        async def in_order(session: Any) -> str:
            receipt = await resolved(outbox.add(session, REGISTERED, {"n": number}, aggregate=USER))
            users = service.client[name].users
            one = {"_id": f"u-{number % 10}"}
            await resolved(users.update_one(one, {"$inc": {"n": 1}}, upsert=True, session=session))
            if number % 2:
                await resolved(session.abort_transaction())
                return ""
            return str(receipt.id)

        def work(session: Any) -> Any:
            return in_order(session) if service.is_async else _run(in_order(session))

        async with service.session() as session:
            return str(await service.with_transaction(session, work))

    async def as_tasks() -> list[str]:
        service = kind(mongo.uri)
        written = await asyncio.gather(*(write(service, number) for number in range(200)))
        await service.close()
        return written

    if kind.is_async:
        written = asyncio.run(as_tasks())
    else:
        service = kind(mongo.uri)
        with ThreadPoolExecutor(200) as threads:
            written = list(threads.map(lambda number: asyncio.run(write(service, number)), range(200)))
        service.client.close()
    found = documents(client, name)
    assert [document["payload"]["n"] for document in found] == list(range(0, 200, 2))
    assert sorted(document["event_id"] for document in found) == sorted(filter(None, written))


BAD: dict[str, tuple[object, str]] = {
    "a bare number": (7, "an object or an array"),
    "null": (b"null", "an object or an array"),
    "an integer beyond BSON's": ({"a": [2**63]}, "9223372036854775807"),
    "NaN": ({"a": float("nan")}, "NaN"),
    "NUL": ({"a\0": 1}, "U\\+0000"),
    "too large": ({"a": "x" * 2_000_000}, "limit of 1,000,000"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_event_that_could_never_be_published_is_refused(
    case: str, client: MongoClient[dict[str, Any]], name: str
) -> None:
    payload, text = BAD[case]
    outbox = Outbox(layout="document", table=f"{name}.outbox")
    with client.start_session() as session, session.start_transaction():
        with pytest.raises(EventInvalid, match=text):
            outbox.add(session, REGISTERED, payload, aggregate=USER)
        kept = outbox.add(session, REGISTERED, {"n": 1}, aggregate=USER)
    assert [document["event_id"] for document in documents(client, name)] == [kept.id]


def test_the_debezium_layout(client: MongoClient[dict[str, Any]], name: str) -> None:
    outbox = Outbox(table=f"{name}.plain")
    with client.start_session() as session:
        with session.start_transaction():
            receipt = outbox.add(session, REGISTERED, {"n": 1}, aggregate=USER)
        session.start_transaction()
        with pytest.raises(EventExists):
            outbox.add(session, REGISTERED, {"n": 2}, aggregate=USER, id=receipt.id)
    [found] = documents(client, name, "plain")
    assert (found["_id"], found["type"], found["aggregateid"]) == (receipt.id, REGISTERED, "u-1")


def test_a_collection_must_be_named(client: MongoClient[dict[str, Any]]) -> None:
    refused = pytest.raises(ConfigError, match="no collection is named")
    with client.start_session() as session, session.start_transaction(), refused:
        Outbox(layout="document").add(session, REGISTERED, {"n": 1}, aggregate=USER)


@every_driver
def test_a_collection_that_does_not_exist_is_not_created(
    kind: type[Pymongo], mongo: MongoServer, client: MongoClient[dict[str, Any]], name: str
) -> None:
    """MongoDB would create it with the first event, and no connector would read it."""
    outbox = Outbox(layout="document", table=f"{name}.otbox", topic="users")

    async def test() -> None:
        service = kind(mongo.uri)
        async with service.transaction() as session:
            with pytest.raises(LayoutMismatch, match=f"there is no collection {name}.otbox"):
                await resolved(outbox.add(session, REGISTERED, {"n": 1}, aggregate=USER))
        client[name].create_collection("otbox")
        async with service.transaction() as session:
            await resolved(outbox.add(session, REGISTERED, {"n": 1}, aggregate=USER))
        await service.close()

    asyncio.run(test())
    assert len(documents(client, name, "otbox")) == 1


def test_add_many_takes_new_events_only(client: MongoClient[dict[str, Any]], name: str) -> None:
    outbox = Outbox(layout="document", table=f"{name}.outbox", topic="users")
    with client.start_session() as session, pytest.raises(EventInvalid, match="add_many got tuple"):
        outbox.add_many(session, [(REGISTERED, {"n": 1}, USER)])  # type: ignore[list-item]


def test_a_receipt_needs_row_marks(client: MongoClient[dict[str, Any]], name: str) -> None:
    unmarked = Outbox(layout="document", table=f"{name}.outbox")
    marked = Outbox(layout="document", table=f"{name}.outbox", marks="rows")
    with client.start_session() as session, session.start_transaction():
        first = unmarked.add(session, REGISTERED, {"n": 1}, aggregate=USER)
        second = marked.add(session, REGISTERED, {"n": 2}, aggregate=USER)
        with pytest.raises(NotCommitted):
            second.wait(timeout=1)
    with pytest.raises(ReceiptUnavailable, match="nothing in MongoDB shows"):
        first.wait(timeout=1)
    with pytest.raises(NotPublishedYet, match="not marked"):
        second.wait(timeout=0)
    client[name].outbox.update_one({"event_id": second.id}, {"$set": {"status": "published"}})
    assert second.wait(timeout=0) is second
    client[name].outbox.update_one({"event_id": second.id}, {"$set": {"status": "failed"}})
    with pytest.raises(EventDeadLettered):
        second.wait(timeout=60)


@every_driver
def test_the_pressure_is_measured_by_row_marks(
    kind: type[Pymongo], mongo: MongoServer, client: MongoClient[dict[str, Any]], name: str
) -> None:
    async def test() -> None:
        service = kind(mongo.uri)
        marked = Outbox(layout="document", table=f"{name}.outbox", marks="rows")
        async with service.transaction() as session:
            await resolved(marked.add_many(session, [NewEvent(REGISTERED, {"n": n}, USER) for n in range(3)]))
        client[name].outbox.update_one({"payload.n": 0}, {"$set": {"status": "published"}})
        client[name].outbox.update_one({"payload.n": 1}, {"$set": {"created_at": datetime.now(UTC) - HOUR}})
        async with service.session() as session:
            pressure = await resolved(marked.pressure(session))
            unknown = await resolved(Outbox(layout="document", table=f"{name}.outbox").pressure(session))
        assert (pressure.pending_events, pressure.lag_seconds >= 3600) == (2, True)
        assert "the connector is not running, or is behind" in pressure.explanation
        assert unknown.pending_events is None
        assert "without row marks" in unknown.explanation
        await service.close()

    asyncio.run(test())


def test_what_is_no_session_is_refused(client: MongoClient[dict[str, Any]], name: str) -> None:
    with pytest.raises(ConfigError, match="MongoClient is not a connection or session"):
        Outbox(table=f"{name}.outbox").add(client, REGISTERED, {}, aggregate=USER)
    with client.start_session() as session, pytest.raises(ConfigError, match="not the name of a collection"):
        Outbox(table="outbox").add(session, REGISTERED, {}, aggregate=USER)
