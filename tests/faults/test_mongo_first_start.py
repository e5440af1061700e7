"""MongoDB's first start: documents of the collection and those written during the read are published once.

That also holds if it is killed half-way.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Decimal128, ObjectId
from bson.int64 import Int64

from helpers.tiers import mostly_slow
from helpers.users import Users
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all


def write(users: Users, transactions: int) -> None:
    writer = users.writers[0] if users.writers else users.writer()
    for _ in range(transactions):
        writer.transaction()


def test_existing_documents_are_published_first_and_once(users: Users) -> None:
    users.configure(source={"start": "beginning"}, limits={"batch_records": 20})
    write(users, 40)
    users.start()
    write(users, 20)
    verdict = users.caught_up()
    assert verdict.ok, verdict
    wait_until(lambda: users.positions()[-1].collection_read is None, 60, what="the end of the collection")
    # The end of the read is stored: the next start does not read the collection again.
    assert users.connectors[-1].stop() == 0
    users.start()
    write(users, 5)
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert "reading the collection" not in users.connectors[-1].log


@pytest.mark.parametrize("nth", mostly_slow([1, 3], [3]))
def test_killed_while_reading_the_collection(users: Users, nth: int) -> None:
    """The next start reads a newer snapshot, and leaves documents inserted in between to the stream."""
    users.configure(source={"start": "beginning"}, limits={"batch_records": 20})
    write(users, 40)
    assert users.start(kill=f"{failpoints.TABLE_ROWS_READ}:{nth}").ended() == -9
    write(users, 20)
    assert users.start(kill=f"{failpoints.TABLE_ROWS_READ}:{nth}").ended() == -9
    write(users, 20)
    users.start()
    write(users, 5)
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert verdict.committed > 100


def test_a_document_inserted_and_deleted_during_the_read_is_published(users: Users) -> None:
    """It is in no later snapshot, but in the stream: the snapshot alone would lose it."""
    users.configure(source={"start": "beginning"}, limits={"batch_records": 5})
    for number in range(20):
        users.insert(f"k{number}")
    assert users.start(kill=f"{failpoints.TABLE_ROWS_READ}:2").ended() == -9
    gone = users.insert("gone")
    kept = users.insert("kept")
    with users.client() as client:
        assert client[users.database].outbox.delete_one({"event_id": gone}).deleted_count == 1
    users.start()
    wait_until(lambda: kept in {seen.id for seen in users.published()}, 60, what="the last event")
    ids = [seen.id for seen in users.published()]
    assert ids.count(gone) == ids.count(kept) == 1
    assert len(ids) == len(set(ids)) == 22


def test_a_snapshot_that_expires_is_replaced(users: Users) -> None:
    """Reading takes longer than the server keeps snapshots: it continues with a newer one, without duplicates."""
    users.configure(source={"start": "beginning"}, limits={"batch_records": 5})
    for number in range(30):
        users.insert(f"k{number}")
    with users.client() as client:
        forgets = {
            "mode": {"times": 1},
            "data": {"failCommands": ["find"], "errorCode": 239, "appName": f"tailrace {users.name}"},
        }
        client.admin.command("configureFailPoint", "failCommand", **forgets)
        try:
            users.start()
            last = users.insert("last")
            wait_until(lambda: last in {seen.id for seen in users.published()}, 60, what="the last event")
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")
    ids = [seen.id for seen in users.published()]
    assert len(ids) == len(set(ids)) == 31


IDS: list[Any] = [
    1,
    2.5,
    Int64(2**62),
    Decimal128("3.50"),
    "text",
    ObjectId(),
    {"a": 1},
    b"bytes",
    datetime(2024, 1, 1, tzinfo=UTC),
]


@pytest.mark.slow
def test_documents_with_ids_of_every_type(users: Users) -> None:
    """They sort across types, and some make tokens that are more than a string."""
    users.configure(source={"start": "beginning"}, limits={"batch_records": 1})
    before = [users.insert(f"a{number}", _id=id_) for number, id_ in enumerate(IDS)]
    assert users.start(kill=f"{failpoints.TABLE_ROWS_READ}:5").ended() == -9
    connector = users.start()
    wait_until(lambda: set(before) <= {seen.id for seen in users.published()}, 60, what=f"them all:\n{connector.log}")
    with users.client() as client:
        client[users.database].outbox.delete_many({})
    after = []
    for number, id_ in enumerate(IDS):
        after.append(users.insert(f"b{number}", _id=id_))
        wait_until(lambda: after[-1] in {seen.id for seen in users.published()}, 60, what=f"{id_!r}")
        assert connector.stop() == 0
        connector = users.start()
    ids = [seen.id for seen in users.published()]
    assert sorted(ids) == sorted([*before, *after])


def test_documents_are_read_in_the_order_of_an_index(users: Users) -> None:
    users.configure(source={"start": "beginning", "order_by": ["created_at", "_id"]}, limits={"batch_records": 1})
    moments = [datetime(2024, 1, day, tzinfo=UTC) for day in (5, 3, 3, 9, 1)]
    events = [users.insert("k", number, created_at=at) for number, at in enumerate(moments, 1)]
    users.start(wait=False).failed("LayoutMismatch")
    assert "createIndex" in users.connectors[-1].log
    with users.client() as client:
        client[users.database].outbox.create_index([("created_at", 1), ("_id", 1)])
    assert users.start(kill=f"{failpoints.TABLE_ROWS_READ}:3").ended() == -9
    users.start()
    wait_until(lambda: len(users.published()) == 5, 60, what=f"them all:\n{users.connectors[-1].log}")
    order = (4, 1, 2, 0, 3)
    assert [seen.id for seen in users.published()] == [events[number] for number in order]
    stamps = [header(message, "timestamp") for message in read_all(users.kafka.bootstrap, [users.topic])]
    assert stamps == [str(int(moments[number].timestamp() * 1000)) for number in order]


@pytest.mark.parametrize(
    ("options", "values", "flaw"),
    [
        ({"partialFilterExpression": {"n": {"$gt": 8}}}, list(range(12)), "partial"),
        ({"sparse": True}, list(range(12)), "sparse"),
        ({}, [[number, -number] for number in range(12)], "over arrays"),
        ({"collation": {"locale": "de"}}, list(range(12)), "index"),
    ],
    ids=["partial", "sparse", "over arrays", "collated"],
)
def test_an_index_that_would_lose_documents_is_refused(
    users: Users, options: dict[str, Any], values: list[Any], flaw: str
) -> None:
    users.configure(source={"start": "beginning", "order_by": ["n"]})
    with users.client() as client:
        client[users.database].outbox.create_index([("n", 1), ("_id", 1)], **options)
    for number, value in enumerate(values):
        users.insert(f"k{number}", n=value)
    connector = users.start(wait=False)
    connector.failed("LayoutMismatch")
    assert flaw in connector.log


def test_a_large_transaction_between_two_sessions(users: Users) -> None:
    """The stream sends it in several changes of one time: each of its documents is left to the stream."""
    users.configure(source={"start": "beginning"}, limits={"batch_records": 5})
    for number in range(20):
        users.insert(f"k{number}")
    with users.client() as client:
        template = client[users.database].outbox.find_one({}, {"_id": 0}) or {}
        assert users.start(kill=f"{failpoints.TABLE_ROWS_READ}:2").ended() == -9
        with client.start_session() as session, session.start_transaction():
            client[users.database].outbox.insert_many(
                [{**template, "event_id": f"e{number}", "partition_key": f"t{number}"} for number in range(3000)],
                session=session,
            )
    users.configure(limits={"batch_records": 5000})
    connector = users.start()
    last = users.insert("last")
    wait_until(lambda: last in {seen.id for seen in users.published()}, 60, what=f"the last:\n{connector.log}")
    ids = [seen.id for seen in users.published()]
    assert len(ids) == len(set(ids)) == 3021
