"""The inbox on MongoDB: a marker is committed with the effects of its event, or neither is."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collation import Collation
from pymongo.errors import OperationFailure

from helpers.inbox_blocks import once
from helpers.outbox_drivers import MONGO_CLIENTS, Pymongo, RollBack, resolved, rolled_back
from tailrace.errors import ConfigError, InboxUnfit, NotInTransaction, TransactionEnded
from tailrace.inbox import Inbox
from tailrace.testkit.stack import MongoServer

Client = MongoClient[dict[str, Any]]


@pytest.fixture(scope="module")
def client(mongo: MongoServer) -> Iterator[Client]:
    with mongo.client() as client:
        yield client


@pytest.fixture
def name(client: Client) -> Iterator[str]:
    """A database with an inbox and a collection of the consumer."""
    name = f"inbox_{uuid.uuid4().hex[:8]}"
    client[name].create_collection("effects")
    with client.start_session() as session:
        Inbox(f"{name}.processed_events").create(session)
    yield name
    client.drop_database(name)


@pytest.fixture
def inbox(name: str) -> Inbox:
    return Inbox(f"{name}.processed_events")


def stored(client: Client, name: str, event: str = "e") -> tuple[int, int]:
    """Returns how many markers and effects an event has."""
    markers = client[name]["processed_events"].count_documents({"event_id": event})
    return markers, client[name]["effects"].count_documents({"event": event})


@contextmanager
def transaction(client: Client) -> Iterator[Any]:
    with client.start_session() as session, session.start_transaction():
        yield session


every_driver = pytest.mark.parametrize("kind", MONGO_CLIENTS, ids=lambda kind: kind.__name__)


@every_driver
def test_marker_and_effects_share_their_fate(
    kind: type[Pymongo], mongo: MongoServer, client: Client, name: str, inbox: Inbox
) -> None:
    async def test() -> None:
        service = kind(mongo.uri)

        async def apply(session: Any) -> bool:
            async with once(inbox, service.is_async, session, "e", entity_id="u-1", entity_version=7) as first:
                if first:
                    await resolved(service.client[name].effects.insert_one({"event": "e"}, session=session))
            return first

        assert await rolled_back(service.transaction(), apply) is True
        assert stored(client, name) == (0, 0)
        async with service.transaction() as session:
            assert await apply(session) is True
            assert await apply(session) is False
        async with service.transaction() as session:
            assert await apply(session) is False
            async with once(inbox, service.is_async, session, "e", "another group") as first:
                assert first is True
        async with service.session() as session:
            with pytest.raises(NotInTransaction, match="not marked"):
                await apply(session)
        await service.close()

    asyncio.run(test())
    assert stored(client, name) == (2, 1)
    found = client[name]["processed_events"].find_one({"consumer_group": "g"})
    assert found
    assert found.keys() == {"_id", "consumer_group", "event_id", "entity_id", "entity_version", "processed_at"}
    assert (found["event_id"], found["entity_id"], found["entity_version"]) == ("e", "u-1", 7)
    assert abs(datetime.now(UTC) - found["processed_at"].replace(tzinfo=UTC)) < timedelta(minutes=1)


@every_driver
def test_an_error_that_the_caller_swallows_leaves_neither(
    kind: type[Pymongo], mongo: MongoServer, client: Client, name: str, inbox: Inbox
) -> None:
    """The whole transaction is aborted, and the next block is refused."""

    async def test() -> None:
        service = kind(mongo.uri)

        async def fail(session: Any) -> None:
            async with once(inbox, service.is_async, session, "e") as first:
                assert first
                await resolved(service.client[name].effects.insert_one({"event": "e"}, session=session))
                raise RollBack

        async def swallow(session: Any) -> None:
            with pytest.raises(RollBack):
                await fail(session)
            assert not session.in_transaction
            with pytest.raises(NotInTransaction):
                await fail(session)

        async with service.transaction() as session:
            await resolved(service.client[name].effects.insert_one({"event": "before"}, session=session))
            await swallow(session)
        await service.close()

    asyncio.run(test())
    assert stored(client, name) == stored(client, name, "before") == (0, 0)


@every_driver
@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_body_that_ends_the_transaction_is_reported(
    kind: type[Pymongo], end: str, mongo: MongoServer, inbox: Inbox
) -> None:
    async def test() -> None:
        service = kind(mongo.uri)
        async with service.transaction() as session:
            with pytest.raises(TransactionEnded):
                async with once(inbox, service.is_async, session, "e"):
                    await resolved(getattr(session, end)())
        await service.close()

    asyncio.run(test())


@every_driver
@pytest.mark.parametrize("committed", [False, True], ids=["open", "committed after the snapshot"])
def test_a_second_consumer_has_a_write_conflict(
    kind: type[Pymongo], committed: bool, mongo: MongoServer, client: Client, name: str, inbox: Inbox
) -> None:
    """MongoDB does not wait. The error asks for another attempt of the whole transaction."""

    async def test() -> None:
        service = kind(mongo.uri)

        async def mark(session: Any) -> None:
            async with once(inbox, service.is_async, session, "e"):
                pytest.fail("the body must not run")

        with client.start_session() as other:
            async with service.transaction() as session:
                await resolved(service.client[name].effects.find_one({}, session=session))  # takes the snapshot
                other.start_transaction()
                with inbox.once(other, "e", "g") as first:
                    assert first
                if committed:
                    other.commit_transaction()
                with pytest.raises(OperationFailure) as conflict:
                    await mark(session)
                assert conflict.value.has_error_label("TransientTransactionError")
                assert not session.in_transaction
            if other.in_transaction:
                other.commit_transaction()
        async with service.transaction() as session, once(inbox, service.is_async, session, "e") as first:
            assert not first
        await service.close()

    asyncio.run(test())


@every_driver
def test_with_transaction_tries_again_until_the_other_has_ended(
    kind: type[Pymongo], mongo: MongoServer, client: Client, name: str, inbox: Inbox
) -> None:
    async def test() -> None:
        service = kind(mongo.uri)
        seen: list[bool] = []
        attempts = 0
        with client.start_session() as other:
            other.start_transaction()
            with inbox.once(other, "e", "g") as first:
                assert first
                client[name]["effects"].insert_one({"event": "e"}, session=other)

            async def apply(session: Any) -> None:
                nonlocal attempts
                attempts += 1
                if attempts == 4:
                    other.commit_transaction()
                async with once(inbox, service.is_async, session, "e") as first:
                    seen.append(first)
                    if first:
                        await resolved(service.client[name].effects.insert_one({"event": "e"}, session=session))

            async with service.session() as session:
                await service.with_transaction(session, apply if service.is_async else lambda s: _run(apply(s)))
        await service.close()
        assert (attempts, seen) == (4, [False])

    asyncio.run(test())
    assert stored(client, name) == (1, 1)


def _run(steps: Any) -> Any:
    """Runs a coroutine that never waits, as the blocking driver's callback."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def test_without_the_unique_index_nothing_is_marked(client: Client, name: str) -> None:
    indexes: list[tuple[str, dict[str, Any]]] = [
        ("none", {}),
        ("not_unique", {"keys": ["consumer_group", "event_id"]}),
        ("one_field", {"keys": ["event_id"], "unique": True}),
        ("partial", {"keys": ["consumer_group", "event_id"], "unique": True,
                     "partialFilterExpression": {"entity_id": "x"}}),
        ("collation", {"keys": ["consumer_group", "event_id"], "unique": True,
                       "collation": Collation("en", strength=2)}),
    ]  # fmt: skip
    for collection, index in indexes:
        if index:
            client[name][collection].create_index(index.pop("keys"), **index)
        loose, refused = Inbox(f"{name}.{collection}"), pytest.raises(InboxUnfit, match="no unique index")
        with transaction(client) as session, refused, loose.once(session, "e", "g"):
            pytest.fail("the body must not run")
    client[name]["other_order"].create_index(["event_id", "consumer_group"], unique=True)
    with transaction(client) as session, Inbox(f"{name}.other_order").once(session, "e", "g") as first:
        assert first


def test_the_database_of_the_uri(mongo: MongoServer, client: Client, name: str) -> None:
    refused = pytest.raises(ConfigError, match="names no database")
    with transaction(client) as session, refused, Inbox().once(session, "e", "g"):
        pytest.fail("the body must not run")
    base, _, options = mongo.uri.partition("?")
    own = MongoClient[dict[str, Any]](f"{base.rstrip('/')}/{name}?{options}")
    with own, transaction(own) as session, Inbox().once(session, "e", "g") as first:
        assert first
    assert stored(client, name) == (1, 0)


@every_driver
def test_create_may_run_again_and_prune_in_batches(
    kind: type[Pymongo], mongo: MongoServer, client: Client, name: str
) -> None:
    inbox = Inbox(f"{name}.new")

    async def test() -> None:
        service = kind(mongo.uri)
        async with service.session() as session:
            for _ in range(2):
                await resolved(inbox.create(session))
            ages = [{"consumer_group": "g", "event_id": str(n), "processed_at": datetime.now(UTC) - timedelta(days=n)}
                    for n in range(1, 41)]  # fmt: skip
            client[name]["new"].insert_many(ages)
            assert await resolved(inbox.prune(session, older_than=timedelta(days=9.5), batch=10)) == 31
            assert await resolved(inbox.prune(session, older_than=timedelta(days=9.5), batch=10)) == 0
        pruned = await rolled_back(
            service.transaction(), lambda session: inbox.prune(session, older_than=timedelta(days=4.5), batch=2)
        )
        assert pruned == 5
        await service.close()

    asyncio.run(test())
    assert client[name]["new"].count_documents({}) == 9
    assert {tuple(index["key"]) for index in client[name]["new"].index_information().values()} == {
        (("_id", 1),), (("consumer_group", 1), ("event_id", 1)), (("processed_at", 1),),
    }  # fmt: skip


def test_the_commands_for_mongosh_name_the_collection() -> None:
    text = Inbox('shop.processed "events"').ddl("mongo")
    assert text.startswith('db.getSiblingDB("shop").getCollection("processed \\"events\\"").createIndex(')
    assert "{unique: true}" in text
    assert Inbox().ddl("mongo").startswith('db.getCollection("processed_events")')
