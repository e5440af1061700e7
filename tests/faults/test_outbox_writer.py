"""Events of the outbox writer on Kafka: those that were committed, once, and receipts that know when."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from pymongo.errors import OperationFailure

from helpers.outbox_drivers import POSTGRES_CLIENTS, PostgresClient, resolved, rolled_back
from helpers.shop import Shop
from helpers.users import Users
from tailrace import failpoints
from tailrace.errors import EventDeadLettered, NotPublishedYet
from tailrace.outbox import NewEvent, Outbox, Pressure, Receipt
from tailrace.testkit.stack import wait_until

SECONDS = 120


def placed(n: int) -> NewEvent:
    payload = {"order": f"o-{n}", "revision": 1, "amount": n, "currency": "EUR"}
    return NewEvent("OrderPlaced", payload, ("order", f"o-{n}"))


def published(service: Shop | Users) -> list[str]:
    return [record.id for record in service.published()]


async def write(kind: type[PostgresClient], dsn: str, outbox: Outbox) -> list[Receipt]:
    """Commits some events and rolls back others, with a driver; returns the receipts of the committed ones."""
    service = kind(dsn)

    def add(handle: Any) -> Any:
        return outbox.add_many(handle, [placed(1)])

    async with service.transaction() as handle:
        kept: list[Receipt] = await resolved(outbox.add_many(handle, [placed(n) for n in range(3)]))
        await rolled_back(service.savepoint(handle), add)
        async with service.savepoint(handle):
            kept += await resolved(add(handle))
    await rolled_back(service.transaction(), add)
    for disturbed in (True, False):
        try:
            async with service.transaction("SERIALIZABLE") as handle:
                await service.sql(handle, "SELECT count(*) FROM orders")
                last = await resolved(add(handle))
                if disturbed:
                    with psycopg.connect(service.dsn) as other:
                        other.execute("UPDATE orders SET revision = revision + 1")
                await service.sql(handle, "UPDATE orders SET revision = revision + 1")
        except Exception as error:  # noqa: BLE001 - each driver has its own
            assert "could not serialize" in str(error), error  # noqa: PT017 - the next attempt must succeed
    await service.close()
    return [*kept, *last]


def test_committed_events_are_published_once_with_every_driver(shop: Shop) -> None:
    outbox = Outbox(table="outbox", schemas=shop.folder / "schemas", pipeline=shop.name)
    marked = Outbox(table="outbox", pipeline=shop.name, marks="watermark")
    shop.configure(marks="watermark")
    shop.execute("INSERT INTO orders VALUES ('o', 0, 0)")
    shop.start()
    expected: list[str] = []
    for kind in POSTGRES_CLIENTS:
        expected += [receipt.id for receipt in asyncio.run(write(kind, shop.dsn, outbox))]
    with psycopg.connect(shop.dsn) as connection:
        last = outbox.add(connection, "OrderPlaced", placed(1).payload, aggregate=("order", "o-1"))
    last.wait(SECONDS)
    # Positions are confirmed in the order of the log: what was committed before is published, too.
    assert sorted(published(shop)) == sorted([*expected, last.id])
    assert shop.dead_lettered() == []

    with psycopg.connect(shop.dsn) as connection:
        receipt = marked.add(connection, "OrderPlaced", placed(1).payload, aggregate=("order", "o-1"))
        bad = marked.add(connection, "OrderPlaced", {"order": "o-1"}, aggregate=("order", "o-1"))
    receipt.wait(SECONDS)
    assert receipt.id in published(shop)
    with pytest.raises(EventDeadLettered):
        bad.wait(SECONDS)
    assert [letter.id for letter in shop.dead_lettered()] == [bad.id]

    def pressure(which: Outbox) -> Pressure:
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            return which.pressure(connection)

    # Everything is published: the connector catches up also with what others write to the log.
    for each in (outbox, marked):
        wait_until(lambda each=each: pressure(each).pending_events == 0, SECONDS, what="no pending events")
    assert pressure(outbox).running is True


def test_a_receipt_waits_for_kafka(shop: Shop) -> None:
    """The connector is killed before its Kafka commit: the receipt must not claim that the event is published."""
    outbox = Outbox(table="outbox", pipeline=shop.name)
    shop.start().stop()  # creates the slot
    with psycopg.connect(shop.dsn) as connection:
        receipt = outbox.add(connection, "OrderPlaced", placed(1).payload, aggregate=("order", "o-1"))
    shop.start(kill=failpoints.AFTER_PRODUCE).ended()
    with pytest.raises(NotPublishedYet, match=r"not running|not confirmed"):
        receipt.wait(0.2)
    shop.start()
    asyncio.run(receipt.wait_async(SECONDS))
    assert published(shop) == [receipt.id]


def test_transactions_that_mongodb_retries_are_published_once(users: Users) -> None:
    outbox = Outbox(
        layout="document",
        table=f"{users.database}.outbox",
        schemas=users.folder / "schemas",
        topic=users.topic,
        marks="rows",
    )
    users.configure(marks="rows")
    users.start()
    receipts: list[Receipt] = []
    attempts = 0

    with users.client() as client, client.start_session() as session:

        def work(session: Any) -> None:
            nonlocal attempts
            attempts += 1
            payload = {"user": "u-1", "revision": 1, "email": "u@example.org"}
            own = f"own-{attempts // 3}"
            added = [outbox.add(session, "UserRegistered", payload, aggregate=("user", "u-1"), id=own) for _ in "12"]
            added.append(outbox.add(session, "UserRegistered", payload, aggregate=("user", "u-1")))
            client[users.database].users.update_one({"_id": "u-1"}, {"$inc": {"n": 1}}, upsert=True, session=session)
            if attempts % 3:
                raise OperationFailure("an election", details={"errorLabels": ["TransientTransactionError"]})
            receipts.extend(added[1:])

        for _ in range(3):
            session.with_transaction(work)
        session.start_transaction()
        outbox.add(session, "UserRegistered", {"user": "x", "revision": 1, "email": ""}, aggregate=("user", "x"))
        session.abort_transaction()
        assert attempts == 9
        for receipt in receipts:
            receipt.wait(SECONDS)
        assert outbox.pressure(session).pending_events == 0
    assert sorted(published(users)) == sorted(receipt.id for receipt in receipts)
    assert users.dead_lettered() == []
