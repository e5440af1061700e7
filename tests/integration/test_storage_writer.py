"""`publish_event_transactionally` on a real Postgres: sequence numbers, the WAL log, topics, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from helpers.outbox_drivers import POSTGRES_CLIENTS, Asyncpg, Django, PostgresClient, RollBack, resolved
from helpers.tiers import mostly_slow
from tailrace.errors import EventInvalid, LayoutMismatch, NotInTransaction
from tailrace.outbox import NewEvent, Outbox
from tailrace.outbox.ddl import layout_ddl
from tailrace.outbox.storage import StorageOutbox, publish_event_transactionally

WRITERS = 200
AT_ONCE = 40


@pytest.fixture
def outbox(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database) as connection:
        connection.execute(layout_ddl("storage", "public.storage_outbox"))  # type: ignore[call-overload]
        connection.commit()
        yield connection


def publish(connection: Any, aggregate: str = "s-1", payload: Any = None, metadata: Any = None) -> Any:
    return publish_event_transactionally(aggregate, "store", "STORED", payload or {"n": 1}, metadata or {}, connection)


def numbers(connection: psycopg.Connection, aggregate: str = "s-1") -> list[int]:
    found = connection.execute(
        "SELECT sequence_number FROM storage_outbox WHERE aggregate_id = %s ORDER BY created_at, sequence_number",
        [aggregate],
    ).fetchall()
    return [row[0] for row in found]


def test_the_row_and_its_entry_in_the_wal_log(outbox: psycopg.Connection) -> None:
    before = outbox.execute("SELECT pg_current_wal_insert_lsn()").fetchall()[0][0]
    metadata = {"correlation_id": "c-1", "event_version": "1.2.0", "\u00e9": [1, None]}
    outbox_id = publish(outbox, payload={"size": 3}, metadata=metadata)
    (transaction,) = outbox.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",)
    outbox.commit()
    assert outbox_id.startswith("outbox_")
    assert outbox.execute(
        "SELECT outbox_id, aggregate_id, aggregate_type, event_type, event_payload, event_metadata, sequence_number, "
        "target_topic, partition_key, delivery_status, delivery_attempts FROM storage_outbox"
    ).fetchall() == [
        (outbox_id, "s-1", "store", "STORED", {"size": 3}, metadata, 1, "outbox.event.store", "s-1", "pending", 0)
    ]
    assert outbox.execute(
        "SELECT outbox_id, operation_type, transaction_id, wal_lsn >= %s::pg_lsn, checkpoint_data "
        "FROM storage_outbox_wal",
        [before],
    ).fetchall() == [(outbox_id, "insert", transaction, True, {})]


def test_200_writers_on_one_aggregate_leave_no_gap_and_no_double(outbox: psycopg.Connection, database: str) -> None:
    """Some roll back, some inside a savepoint: their numbers are given to others."""

    def write(first: int) -> None:
        with psycopg.connect(database) as connection:
            for writer in range(first, WRITERS, AT_ONCE):
                publish(connection, payload={"n": writer})
                if writer % 7 == 0:
                    connection.rollback()
                    continue
                if writer % 5 == 0:
                    with connection.transaction(force_rollback=True):
                        publish(connection, payload={"n": -writer})
                connection.commit()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(write, range(AT_ONCE)))
    expected = [writer for writer in range(WRITERS) if writer % 7]
    found = outbox.execute("SELECT (event_payload->>'n')::int, sequence_number FROM storage_outbox").fetchall()
    assert sorted(n for n, _ in found) == expected
    assert sorted(number for _, number in found) == list(range(1, len(expected) + 1))
    assert outbox.execute("SELECT count(*), count(DISTINCT outbox_id) FROM storage_outbox_wal").fetchall() == [
        (len(expected), len(expected))
    ]


@pytest.mark.parametrize("kind", mostly_slow(POSTGRES_CLIENTS, [Asyncpg, Django]), ids=lambda kind: kind.__name__)
def test_200_writers_on_one_aggregate_with_every_driver(
    outbox: psycopg.Connection, database: str, kind: type[PostgresClient]
) -> None:
    """Blocking drivers in threads, the others as tasks of one event loop; every fifth writer rolls back."""

    async def write(client: PostgresClient, number: int) -> str | None:
        try:
            async with client.transaction() as handle:
                outbox_id: str = await resolved(publish(handle, payload={"n": number}))
                if number % 5 == 0:
                    raise RollBack
        except RollBack:
            return None
        return outbox_id

    def in_a_thread(first: int) -> list[str | None]:
        async def in_turns() -> list[str | None]:
            client = kind(database)
            written = [await write(client, number) for number in range(first, WRITERS, AT_ONCE)]
            await client.close()
            return written

        return asyncio.run(in_turns())

    async def as_tasks() -> list[str | None]:
        client, turns = kind(database), asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> str | None:
            async with turns:
                return await write(client, number)

        written = await asyncio.gather(*map(one, range(WRITERS)))
        await client.close()
        return written

    if kind.is_async:
        written = asyncio.run(as_tasks())
    else:
        kind(database)  # Django's settings are made once, before the threads
        with ThreadPoolExecutor(AT_ONCE) as pool:
            written = [each for ids in pool.map(in_a_thread, range(AT_ONCE)) for each in ids]
    added = sorted(each for each in written if each is not None)
    found = outbox.execute(
        "SELECT outbox_id, sequence_number, event_payload->'n' FROM storage_outbox ORDER BY 2"
    ).fetchall()
    assert sorted(outbox_id for outbox_id, _, _ in found) == added
    assert [number for _, number, _ in found] == list(range(1, WRITERS * 4 // 5 + 1))
    assert sorted(n for _, _, n in found) == [n for n in range(WRITERS) if n % 5]


def test_a_serializable_transaction_that_fails_is_repeated_without_a_gap(
    outbox: psycopg.Connection, database: str
) -> None:
    with psycopg.connect(database) as first, psycopg.connect(database) as second:
        for connection in (first, second):
            connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            connection.execute("SELECT count(*) FROM storage_outbox")
        publish(first, payload={"n": 1})
        first.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            publish(second, payload={"n": 2})
        second.rollback()
        publish(second, payload={"n": 3})
    found = outbox.execute("SELECT event_payload->'n', sequence_number FROM storage_outbox ORDER BY 2").fetchall()
    assert found == [(1, 1), (3, 2)]


def test_a_table_that_has_rows_already_is_continued(outbox: psycopg.Connection) -> None:
    outbox.execute(
        "INSERT INTO storage_outbox (outbox_id, aggregate_id, aggregate_type, event_type, event_payload, "
        "sequence_number, target_topic) SELECT 'old_' || n, 's-1', 'store', 'STORED', '{}', n, 't' "
        "FROM generate_series(1, 3) n"
    )
    publish(outbox)
    publish(outbox, "s-2")
    assert (numbers(outbox), numbers(outbox, "s-2")) == ([1, 2, 3, 4], [1])


def test_many_events_of_several_aggregates_with_one_statement(outbox: psycopg.Connection) -> None:
    writer = Outbox(layout="storage", table="public.storage_outbox", topic="t")
    events = [NewEvent("STORED", {"n": n}, ("store", f"s-{n % 2}"), version="2.0.0") for n in range(6)]
    publish(outbox, "s-0")
    receipts = writer.add_many(outbox, events)
    found = outbox.execute(
        "SELECT outbox_id, aggregate_id, sequence_number, event_metadata FROM storage_outbox WHERE target_topic = 't' "
        "ORDER BY (event_payload->>'n')::int"
    ).fetchall()
    version = {"event_version": "2.0.0"}
    assert found == [
        (receipt.id, f"s-{n % 2}", n // 2 + (2 if n % 2 == 0 else 1), version) for n, receipt in enumerate(receipts)
    ]


def test_topics_by_rule(outbox: psycopg.Connection) -> None:
    patterns = {"STORAGE_TRANSACTION_*": "tx.{aggregate}", "STORAGE_*": "{type}"}
    storage = StorageOutbox(topics=patterns)
    by_function = StorageOutbox(topics=lambda event_type, aggregate: f"{aggregate}-{len(event_type)}")
    for publisher, kind in ((storage, "STORAGE_TRANSACTION_BEGUN"), (storage, "STORAGE_X"), (by_function, "ABC")):
        publisher.publish_event_transactionally("a", "store", kind, {}, {}, outbox, partition_key="k")
    found = outbox.execute("SELECT target_topic, partition_key FROM storage_outbox ORDER BY sequence_number").fetchall()
    assert found == [("tx.store", "k"), ("STORAGE_X", "k"), ("store-3", "k")]
    with pytest.raises(EventInvalid, match="no rule names a topic for 'OTHER'"):
        storage.publish_event_transactionally("a", "store", "OTHER", {}, {}, outbox)


@pytest.mark.parametrize(
    ("payload", "metadata", "said"),
    [
        ([1], {}, "not an object"),
        ({"metadata": 1}, {}, "has a field 'metadata'"),
        ({"n": float("nan")}, {}, "NaN"),
        ({"n": "a\0b"}, {}, "U+0000"),
        ({}, {"n": float("inf")}, "infinity"),
        ({}, ["no object"], "metadata is not an object"),
        ({}, {"n": "a\0b"}, "U+0000"),
    ],
)
def test_what_could_not_be_published_is_refused_before_anything_is_written(
    outbox: psycopg.Connection, payload: Any, metadata: Any, said: str
) -> None:
    with pytest.raises(EventInvalid, match=said.replace("+", r"\+")):
        publish_event_transactionally("s", "store", "STORED", payload, metadata, outbox)
    assert numbers(outbox, "s") == []
    publish(outbox)
    outbox.commit()


def test_names_that_do_not_fit_are_refused(outbox: psycopg.Connection) -> None:
    with pytest.raises(EventInvalid, match="'aggregate_type'"):
        publish_event_transactionally("s", "x" * 51, "STORED", {}, {}, outbox)


def test_an_autocommit_connection_is_refused(outbox: psycopg.Connection, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(NotInTransaction):
            publish(connection)
        with connection.transaction():
            publish(connection)
    assert numbers(outbox) == [1]


@pytest.mark.parametrize("missing", ["storage_outbox", "storage_outbox_counters", "storage_outbox_wal"])
def test_a_missing_table_is_named(outbox: psycopg.Connection, missing: str) -> None:
    outbox.execute(f"DROP TABLE {missing}")  # type: ignore[call-overload]
    with pytest.raises(LayoutMismatch, match=missing):
        StorageOutbox().publish_event_transactionally("s", "store", "STORED", {}, {}, outbox)


def test_schemas_are_those_of_the_connector(outbox: psycopg.Connection, tmp_path: Any) -> None:
    schema = tmp_path / "STORED" / "1.0.0.json"
    schema.parent.mkdir()
    schema.write_text(json.dumps({"type": "object", "required": ["n"], "additionalProperties": False}))
    storage = StorageOutbox(schemas=tmp_path)
    with pytest.raises(EventInvalid, match=r"version 1\.0\.0 of STORED"):
        storage.publish_event_transactionally("s", "store", "STORED", {}, {}, outbox)
    with pytest.raises(EventInvalid, match=r"version 2\.0\.0"):
        storage.publish_event_transactionally("s", "store", "STORED", {"n": 1}, {"event_version": "2.0.0"}, outbox)
