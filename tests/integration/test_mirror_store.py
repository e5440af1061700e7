"""A mirror on a real MongoDB: every event is stored once and complete, despite duplicates and errors."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from bson.decimal128 import Decimal128
from pymongo import DESCENDING, IndexModel

from examples.transaction_mirror.document import document_of
from examples.transaction_mirror.transactions import encode, transaction
from tailrace.embedded import Entry
from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.projections.core.apply import BatchResult
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.failures import Failure
from tailrace.projections.core.handlers import Handlers, RegisteredHandler
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.settings import ProjectionSpec, Settings
from tailrace.projections.core.store import EventOutcome, Partition
from tailrace.projections.mongo.mirror import (
    BATCH,
    FLUSH_SECONDS,
    MakeDocument,
    mirror_decode,
    mirror_document,
    mirror_handler,
)
from tailrace.projections.mongo.mirror_store import MirrorStore
from tailrace.testkit.stack import MongoServer

PARTITION = Partition("transactions", 0)
NONCES = IndexModel([("payload.sender", 1), ("payload.nonce", 1)], unique=True)
FIVE = [
    IndexModel([("payload.sender", 1), ("arrived", DESCENDING)]),
    IndexModel([("arrived", DESCENDING)]),
    IndexModel([("payload.status", 1), ("arrived", DESCENDING)]),
    IndexModel([("type", 1), ("arrived", DESCENDING)]),
    IndexModel([("payload.sender", 1), ("payload.nonce", 1)]),
]


@pytest.fixture
def database() -> str:
    """A new database, and the projection's name, which fail points select."""
    return f"test_{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def opened(mongo: MongoServer, database: str, *indexes: IndexModel) -> AsyncIterator[MirrorStore]:
    store = MirrorStore(mongo.uri, database, "transactions", indexes=indexes)
    await store.open(database)
    try:
        yield store
    finally:
        await store.close()


def event(offset: int, *, sender: str = "a", nonce: int | None = None, value: bytes | None = None) -> Event:
    payload = json.dumps({"sender": sender, "nonce": offset if nonce is None else nonce}).encode()
    headers = [("id", f"t-{offset}".encode()), ("type", b"Transferred"), ("position", b"0/16"), ("timestamp", b"1700")]
    return read_event(PARTITION, offset, sender.encode(), payload if value is None else value, headers, 1)


class RecordingCallbacks:
    """Callbacks that record their calls."""

    def __init__(self) -> None:
        self.dead_letters: list[tuple[str, Failure]] = []
        self.applied: list[BatchResult] = []
        self.errors: list[BaseException] = []

    async def dead_letter(self, event: Event, failure: Failure) -> None:
        self.dead_letters.append((event.id, failure))

    def committed(self, worker: PartitionWorker, applied: BatchResult) -> None:
        self.applied.append(applied)

    def blocked(self, worker: PartitionWorker, error: BaseException | None) -> None:
        if error is not None:
            self.errors.append(error)

    def reached(self, worker: PartitionWorker) -> int:
        return worker.next

    def pause(self, worker: PartitionWorker) -> None: ...

    def resume(self, worker: PartitionWorker) -> None: ...


async def process_events(
    store: MirrorStore,
    database: str,
    events: Sequence[Event],
    start: int = 0,
    document: MakeDocument = mirror_document,
) -> RecordingCallbacks:
    """Processes events as a worker does, but without waiting before retries."""
    callbacks = RecordingCallbacks()
    handlers = Handlers(mirror_decode)
    handlers.add((), RegisteredHandler(mirror_handler(document), None, deletes=False))
    spec = ProjectionSpec(database, handlers, Settings(events=BATCH, within=FLUSH_SECONDS))

    async def at_once(seconds: float) -> None: ...

    worker = PartitionWorker(PARTITION, start, 0, store, spec, callbacks, sleep=at_once)
    await worker.process(events)
    return callbacks


def mirrored(mongo: MongoServer, database: str) -> list[dict[str, Any]]:
    with mongo.client(tz_aware=True) as client:
        return list(client[database].transactions.find(sort=[("offset", 1)]))


def offsets(documents: Sequence[dict[str, Any]]) -> list[int]:
    return [each["offset"] for each in documents]


def fail(mongo: MongoServer, database: str, times: int, **how: Any) -> None:
    with mongo.client() as client:
        client.admin.command(
            "configureFailPoint", "failCommand", mode={"times": times}, data={"appName": f"tailrace {database}", **how}
        )


def test_a_document_holds_the_whole_event(mongo: MongoServer, database: str) -> None:
    original = event(7, value=b'{"sender": "a",  "fee": 18446744073709551615, "tags": [1, {"x": null}]}')

    async def scenario() -> None:
        async with opened(mongo, database, *FIVE) as store:
            await process_events(store, database, [original])
            assert await store.positions() == {PARTITION: 8}

    before = datetime.now(UTC).replace(microsecond=0)
    asyncio.run(scenario())
    (document,) = mirrored(mongo, database)
    assert before <= document.pop("arrived") <= datetime.now(UTC)
    assert document == {
        "_id": "t-7",
        "type": "Transferred",
        "key": b"a",
        "topic": "transactions",
        "partition": 0,
        "offset": 7,
        "position": "0/16",
        "event_time": datetime.fromtimestamp(1.7, UTC),
        "headers": [{"name": name, "value": value} for name, value in original.headers],
        "payload": {"sender": "a", "fee": Decimal128("18446744073709551615"), "tags": [1, {"x": None}]},
        "raw": original.value,
    }
    headers = [(each["name"], each["value"]) for each in document["headers"]]
    again = read_event(PARTITION, 7, document["key"], document["raw"], headers, 1)
    assert again == event(7, value=original.value)
    with mongo.client() as client:
        assert len(client[database].transactions.index_information()) == 1 + len(FIVE)


def test_a_payload_that_is_not_json_and_a_tombstone_are_kept_too(mongo: MongoServer, database: str) -> None:
    tombstone = read_event(PARTITION, 1, b"a", None, [("id", b"gone")], 1)

    async def scenario() -> None:
        async with opened(mongo, database) as store:
            callbacks = await process_events(store, database, [event(0, value=b"\xff\x00not json"), tombstone])
            assert callbacks.dead_letters == []

    asyncio.run(scenario())
    assert [(each["payload"], each["raw"]) for each in mirrored(mongo, database)] == [
        (None, b"\xff\x00not json"),
        (None, None),
    ]


def test_a_repeated_event_is_stored_once(mongo: MongoServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(mongo, database) as store:
            await process_events(store, database, [event(offset) for offset in range(3)])
            await store.reset({PARTITION: 0})
            callbacks = await process_events(store, database, [event(offset) for offset in range(6)])
            assert callbacks.errors == []
            assert await store.positions() == {PARTITION: 6}

    asyncio.run(scenario())
    assert offsets(mirrored(mongo, database)) == list(range(6))


def test_a_lost_connection_between_documents_and_offset(mongo: MongoServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(mongo, database) as store:
            await process_events(store, database, [event(0)])
            # Twice, since the driver retries once.
            fail(mongo, database, 2, failCommands=["update"], closeConnection=True)
            callbacks = await process_events(store, database, [event(1), event(2)], 1)
            assert [store.is_transient(error) for error in callbacks.errors] == [True]
            assert await store.positions() == {PARTITION: 3}

    asyncio.run(scenario())
    assert offsets(mirrored(mongo, database)) == [0, 1, 2]


def test_a_document_of_its_own(mongo: MongoServer, database: str) -> None:
    """Transactions with all their fields, by their hash; what cannot be made is a dead letter."""
    found = [transaction(1, number, arrived_ms=number) for number in range(20)]
    events = [event(number, sender=each.hash, value=encode(each)) for number, each in enumerate(found)]
    events[3].value = b"no transaction"

    def document(event: Event) -> dict[str, Any]:
        return document_of(Entry(event.offset, event.key or b"", event.value or b"", event.time_ms), "sepolia")

    async def scenario() -> None:
        async with opened(mongo, database) as store:
            callbacks = await process_events(store, database, events, document=document)
            assert [name for name, _ in callbacks.dead_letters] == [events[3].id]

    asyncio.run(scenario())
    del found[3]
    documents = {each["_id"]: each for each in mirrored(mongo, database)}
    assert documents.keys() == {each.hash for each in found}
    for each in found:
        stored = documents[each.hash]
        assert len(stored) == 23
        assert stored["raw_transaction"] == encode(each)
        assert (stored["resource_bounds"] is None) == (each.resource_bounds is None)


def test_documents_stay_but_the_offset_does_not_move_if_the_worker_dies_first(
    mongo: MongoServer, database: str
) -> None:
    class Died(Exception):
        pass

    async def dies(store: MirrorStore) -> None:
        async with store.transaction(PARTITION) as transaction:
            await transaction.position()
            await mirror_handler(mirror_document)(event(0), transaction.effects)
            await transaction.flush()
            await transaction.advance(1)
            raise Died

    async def scenario() -> None:
        async with opened(mongo, database) as store:
            with pytest.raises(Died):
                await dies(store)
            assert await store.positions() == {}
            assert offsets(mirrored(mongo, database)) == [0]
            await process_events(store, database, [event(0), event(1)])
            assert await store.positions() == {PARTITION: 2}

    asyncio.run(scenario())
    assert offsets(mirrored(mongo, database)) == [0, 1]


def test_a_late_majority_delays_the_offset(mongo: MongoServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(mongo, database) as store:
            await process_events(store, database, [event(0)])
            late = {"code": 64, "errmsg": "waiting for replication timed out", "errInfo": {"wtimeout": True}}
            # First with new documents, then with documents that exist on at least one server.
            fail(mongo, database, 2, failCommands=["insert"], writeConcernError=late)
            callbacks = await process_events(store, database, [event(1)], 1)
            assert [store.is_transient(error) for error in callbacks.errors] == [True, True]
            assert await store.positions() == {PARTITION: 2}

    asyncio.run(scenario())
    assert offsets(mirrored(mongo, database)) == [0, 1]


def test_a_document_that_breaks_another_unique_index_is_not_dropped_silently(mongo: MongoServer, database: str) -> None:
    events = [event(0), event(1), event(2, nonce=0), event(3), event(1)]

    async def scenario() -> None:
        async with opened(mongo, database, NONCES) as store:
            callbacks = await process_events(store, database, events[:4])
            ((name, failure),) = callbacks.dead_letters
            assert name == "t-2"
            assert failure.reason is Reason.PERMANENT_FAILURE
            assert "payload.nonce" in failure.explanation
            assert sum(each.outcomes.get(EventOutcome.DEAD, 0) for each in callbacks.applied) == 1
            assert await store.positions() == {PARTITION: 4}

    asyncio.run(scenario())
    assert offsets(mirrored(mongo, database)) == [0, 1, 3]


def test_a_violated_index_among_duplicates_is_noticed(mongo: MongoServer, database: str) -> None:
    async def process(store: MirrorStore, *events: Event) -> None:
        async with store.transaction(PARTITION) as transaction:
            await transaction.position()
            for each in events:
                each.data = mirror_decode(each)
                await mirror_handler(mirror_document)(each, transaction.effects)
            await transaction.advance(events[-1].offset + 1)

    async def scenario() -> None:
        async with opened(mongo, database, NONCES) as store:
            await process(store, event(0), event(1))
            with pytest.raises(Rejected):
                await process(store, event(0), event(1), event(2, nonce=1))
            assert await store.positions() == {PARTITION: 2}

    asyncio.run(scenario())


@pytest.mark.parametrize("elsewhere", [5, 1, None])
def test_an_offset_that_another_worker_stored_is_not_undone(
    mongo: MongoServer, database: str, elsewhere: int | None
) -> None:
    async def scenario() -> None:
        async with opened(mongo, database) as store, opened(mongo, database) as other:
            await store.reset({PARTITION: 2})
            late = store.transaction(PARTITION)
            transaction = await late.__aenter__()
            assert await transaction.position() == 2
            await other.reset({PARTITION: elsewhere})
            await transaction.advance(3)
            (error,) = await asyncio.gather(late.__aexit__(None, None, None), return_exceptions=True)
            assert isinstance(error, Exception)
            assert store.is_transient(error)
            assert (await store.positions()).get(PARTITION) == elsewhere

    asyncio.run(scenario())


def test_of_two_workers_that_start_one_stores_its_offset(mongo: MongoServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(mongo, database) as store:
            late = store.transaction(PARTITION)
            transaction = await late.__aenter__()
            assert await transaction.position() is None
            await process_events(store, database, [event(0), event(1)])
            await transaction.advance(1)
            (error,) = await asyncio.gather(late.__aexit__(None, None, None), return_exceptions=True)
            assert isinstance(error, Exception)
            assert store.is_transient(error)
            assert await store.positions() == {PARTITION: 2}

    asyncio.run(scenario())


def test_versions_are_refused(mongo: MongoServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(mongo, database) as store, store.transaction(PARTITION) as transaction:
            with pytest.raises(ConfigError, match="versions"):
                await transaction.entities(["a"])

    asyncio.run(scenario())
