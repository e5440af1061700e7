"""The MongoDB store beyond the contract: conflicts, elections, commits without an answer, and what handlers may do."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import IndexModel
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from tailrace.errors import ConfigError, Rejected, StoreUnavailable
from tailrace.projections.core.store import Marker, Partition
from tailrace.projections.mongo import partition_lock
from tailrace.projections.mongo import transaction as mongo_transaction
from tailrace.projections.mongo.store import MongoStore
from tailrace.projections.mongo.transaction import MongoTransaction
from tailrace.testkit.stack import MongoReplicaSet, MongoServer, ServerChoice, mongo_local, wait_until
from tailrace.testkit.stack.ports import HOST, free_port

FIRST = Partition("orders", 0)
SECOND = Partition("orders", 1)
PATIENCE = 60.0
UNIQUE = {"users": [IndexModel([("email", 1)], unique=True)]}


@pytest.fixture
def place() -> str:
    """A database of its own, and the projection's name: fail points go by it."""
    return f"test_{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def hurried() -> Iterator[MongoServer]:
    """One that soon ends transactions which nobody goes on with."""
    with MongoServer(choice=ServerChoice.LOCAL, settings={"transactionLifetimeLimitSeconds": "3"}) as server:
        yield server


@asynccontextmanager
async def opened(server: MongoServer | MongoReplicaSet, place: str, **options: Any) -> AsyncIterator[MongoStore]:
    store = MongoStore(server.uri, place, **options)
    await store.open(place)
    try:
        yield store
    finally:
        await store.close()


async def apply(transaction: MongoTransaction, ids: list[str], behind: int) -> set[str]:
    """As the kit does: markers, an effect that is not idempotent for each new event, and the next offset."""
    await transaction.position()
    new = await transaction.mark([Marker(each, "o-1", 1, 1_000) for each in ids])
    for each in sorted(new):
        await transaction.effects.collection("history").update_one({"_id": each}, {"$inc": {"times": 1}}, upsert=True)
    await transaction.advance(behind)
    return new


def history(server: MongoServer | MongoReplicaSet, place: str) -> dict[str, int]:
    with server.client() as client:
        return {each["_id"]: each["times"] for each in client[place].history.find()}


def fail(server: MongoServer, place: str, times: int, **how: Any) -> None:
    data = {"failCommands": ["commitTransaction"], "appName": f"tailrace {place}", **how}
    with server.client() as client:
        client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)


async def raised(doing: Awaitable[object]) -> Exception:
    (error,) = await asyncio.gather(doing, return_exceptions=True)
    assert isinstance(error, Exception), f"nothing was raised: {error}"
    return error


async def in_transaction(store: MongoStore, ids: list[str], behind: int, partition: Partition = FIRST) -> set[str]:
    async with store.transaction(partition) as transaction:
        return await apply(transaction, ids, behind)


class TestConflicts:
    def test_a_second_worker_waits_for_the_first_and_sees_what_it_did(self, mongo: MongoServer, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, place) as one, opened(mongo, place) as other:
                # Not the first of the partition: that makes its document, and a document is not made twice.
                await in_transaction(one, ["a"], 1)
                async with one.transaction(FIRST) as transaction:
                    assert await transaction.position() == 1
                    second = asyncio.create_task(position(other))
                    # To ask is to lock, though nothing is written yet: a while is all that can be given to it.
                    done, _ = await asyncio.wait([second], timeout=0.5)
                    assert not done
                    await transaction.advance(2)
                assert await asyncio.wait_for(second, PATIENCE) == 2

        async def position(store: MongoStore) -> int | None:
            async with store.transaction(FIRST) as transaction:
                return await transaction.position()

        asyncio.run(scenario())

    def test_the_same_event_in_two_partitions_at_once_takes_effect_once(self, mongo: MongoServer, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, place) as one, opened(mongo, place) as other:

                async def late() -> None:
                    async with other.transaction(SECOND) as transaction:
                        assert await transaction.position() is None
                        assert await in_transaction(one, ["a", "b"], 2) == {"a", "b"}
                        await apply(transaction, ["b", "c"], 2)

                error = await raised(late())
                assert other.is_transient(error), error
                assert await other.positions() == {FIRST: 2}
                assert await in_transaction(other, ["b", "c"], 2, SECOND) == {"c"}

        asyncio.run(scenario())
        assert history(mongo, place) == {"a": 1, "b": 1, "c": 1}

    def test_many_workers_open_at_once_and_take_turns(self, mongo: MongoServer, place: str) -> None:
        async def worker(number: int) -> None:
            async with opened(mongo, place, collections=UNIQUE) as store:
                for _ in range(5):
                    async with store.transaction(FIRST) as transaction:
                        next_offset = await transaction.position() or 0
                        await apply(transaction, [f"e{next_offset}"], next_offset + 1)

        async def scenario() -> None:
            await asyncio.wait_for(asyncio.gather(*map(worker, range(4))), PATIENCE)

        asyncio.run(scenario())
        assert history(mongo, place) == {f"e{offset}": 1 for offset in range(20)}

    def test_a_worker_that_died_within_a_transaction_holds_its_partition_for_a_while(
        self, hurried: MongoServer, place: str
    ) -> None:
        async def scenario() -> None:
            async with opened(hurried, place) as dead, opened(hurried, place) as heir:
                held = dead.transaction(FIRST)
                await apply(await held.__aenter__(), ["a"], 1)
                assert await asyncio.wait_for(in_transaction(heir, ["a", "b"], 2), PATIENCE) == {"a", "b"}
                error = await raised(held.__aexit__(None, None, None))
                assert dead.is_transient(error), error

        asyncio.run(scenario())
        assert history(hurried, place) == {"a": 1, "b": 1}

    def test_two_live_owners_do_not_end_each_other_s_transactions_for_ever(
        self, mongo: MongoServer, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each takes three times as long as a successor is patient, and asks often enough to see that it was ended; the
        first stays until it is.
        """
        monkeypatch.setattr(partition_lock, "EVICT_SECONDS", 0.5)
        ended = 0

        async def owner(store: MongoStore, ids: list[str]) -> None:
            nonlocal ended
            while True:
                try:
                    async with store.transaction(FIRST) as transaction:
                        reached = await transaction.position() or 0
                        for _ in range(15 if ended or ids == ["b"] else 150):
                            await transaction.entities(["o-1"])
                            await asyncio.sleep(0.1)
                        await apply(transaction, ids, reached + 1)
                except PyMongoError as error:
                    if not store.is_transient(error):
                        raise
                    ended += 1
                    await asyncio.sleep(0.2)  # as a worker does, so that the other one has its turn
                else:
                    return

        async def scenario() -> None:
            async with opened(mongo, place) as one, opened(mongo, place) as other:
                async with asyncio.timeout(60):
                    await asyncio.gather(owner(one, ["a"]), owner(other, ["b"]))
                assert await one.positions() == {FIRST: 2}

        asyncio.run(scenario())
        assert history(mongo, place) == {"a": 1, "b": 1}
        assert ended, "nobody was impatient: this proves nothing"

    def test_closing_the_store_lets_go_of_the_partition_at_once(self, mongo: MongoServer, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, place) as heir:
                store = MongoStore(mongo.uri, place)
                await store.open(place)
                held = store.transaction(FIRST)
                await apply(await held.__aenter__(), ["a"], 1)
                await store.close()
                # The server's own limit is a minute; PATIENCE would not tell.
                assert await asyncio.wait_for(in_transaction(heir, ["b"], 1), 30) == {"b"}
                assert isinstance(await raised(held.__aexit__(None, None, None)), PyMongoError)

        asyncio.run(scenario())
        assert history(mongo, place) == {"b": 1}


class TestCommit:
    def test_a_commit_without_an_answer_is_asked_again(self, mongo: MongoServer, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, place) as store:
                # The driver by itself asks twice.
                fail(mongo, place, 5, closeConnection=True)
                assert await in_transaction(store, ["a"], 1) == {"a"}
                assert await store.positions() == {FIRST: 1}

        asyncio.run(scenario())
        assert history(mongo, place) == {"a": 1}

    @pytest.mark.parametrize(
        ("times", "how", "committed"),
        [
            # Dropped before it was looked at, twice, since the driver asks again; or done, but the majority is late.
            (2, {"closeConnection": True}, False),
            (1, {"writeConcernError": {"code": 64, "errmsg": "late", "errInfo": {"wtimeout": True}}}, True),
        ],
    )
    def test_past_the_bound_it_is_away_and_the_position_tells_the_truth(
        self,
        hurried: MongoServer,
        place: str,
        monkeypatch: pytest.MonkeyPatch,
        times: int,
        how: dict[str, Any],
        committed: bool,
    ) -> None:
        monkeypatch.setattr(mongo_transaction, "COMMIT_SECONDS", 0.0)

        async def scenario() -> None:
            async with opened(hurried, place) as store:
                # The first of a partition makes its document, in a transaction of its own.
                async with store.transaction(FIRST) as transaction:
                    assert await transaction.position() is None
                fail(hurried, place, times, **how)
                error = await raised(in_transaction(store, ["a"], 1))
                assert store.is_transient(error), error
                async with store.transaction(FIRST) as transaction:
                    assert await transaction.position() == (1 if committed else None)
                # Told again, as the kit would.
                assert await in_transaction(store, ["a", "b"], 2) == ({"b"} if committed else {"a", "b"})

        asyncio.run(scenario())
        assert history(hurried, place) == {"a": 1, "b": 1}

    def test_a_primary_that_steps_down_within_a_transaction(self, mongo_set: MongoReplicaSet, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo_set, place) as store:
                assert await in_transaction(store, ["a"], 1) == {"a"}

                async def interrupted() -> None:
                    async with store.transaction(FIRST) as transaction:
                        await apply(transaction, ["b", "c"], 3)
                        await asyncio.to_thread(mongo_set.step_down)

                error = await raised(interrupted())
                assert store.is_transient(error), error
                assert await asyncio.wait_for(insistent(store, ["a", "b", "c"], 3), PATIENCE) == {"b", "c"}
                assert await store.positions() == {FIRST: 3}

        async def insistent(store: MongoStore, ids: list[str], behind: int) -> set[str]:
            while True:
                (result,) = await asyncio.gather(in_transaction(store, ids, behind), return_exceptions=True)
                if isinstance(result, set):
                    return result
                assert store.is_transient(result), result

        asyncio.run(scenario())
        assert history(mongo_set, place) == {"a": 1, "b": 1, "c": 1}

    def test_a_primary_that_dies_within_a_transaction(self, mongo_set: MongoReplicaSet, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo_set, place) as store:
                primary = mongo_set.await_primary()

                async def interrupted() -> None:
                    async with store.transaction(FIRST) as transaction:
                        await apply(transaction, ["a"], 1)
                        await asyncio.to_thread(primary.kill)

                try:
                    error = await raised(interrupted())
                    assert store.is_transient(error), error
                    await asyncio.to_thread(mongo_set.await_primary, primary)
                    assert await store.positions() == {}
                    assert await in_transaction(store, ["a"], 1) == {"a"}
                finally:
                    await asyncio.to_thread(primary.start)

        asyncio.run(scenario())
        assert history(mongo_set, place) == {"a": 1}


class TestEffects:
    def test_a_handler_reads_its_own_writes_and_the_last_write_stays(self, mongo: MongoServer, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, place, collections=UNIQUE) as store, store.transaction(FIRST) as transaction:
                effects, users = transaction.effects, transaction.effects.collection("users")
                effects.upsert("users", {"_id": 1}, {"email": "a@example.org", "name": "A"})
                effects.upsert("users", {"_id": 1}, {"name": "B"})
                assert await users.find_one({"_id": 1}) == {"_id": 1, "email": "a@example.org", "name": "B"}
                # Its address is free for another only after it is gone.
                effects.delete("users", {"_id": 1})
                effects.upsert("users", {"_id": 2}, {"email": "a@example.org"})
                await users.update_one({"_id": 2}, {"$inc": {"visits": 2}})
                assert [each["_id"] for each in await users.find({})] == [2]
                totals = await users.aggregate([{"$group": {"_id": None, "visits": {"$sum": "$visits"}}}])
                assert totals == [{"_id": None, "visits": 2}]
                effects.upsert("users", {"_id": 3}, {"email": "c@example.org"})

        asyncio.run(scenario())
        with mongo.client() as client:
            assert sorted(each["_id"] for each in client[place].users.find()) == [2, 3]

    def test_a_write_that_breaks_a_unique_index_is_rejected_without_its_values(
        self, mongo: MongoServer, place: str
    ) -> None:
        async def scenario() -> None:
            async with opened(mongo, place, collections=UNIQUE) as store:

                async def twice() -> None:
                    async with store.transaction(FIRST) as transaction:
                        await apply(transaction, ["a"], 1)
                        transaction.effects.upsert("users", {"_id": 1}, {"email": "secret@example.org"})
                        transaction.effects.upsert("users", {"_id": 2}, {"email": "secret@example.org"})

                error = await raised(twice())
                assert isinstance(error, Rejected)
                assert "email" in str(error)
                assert "users" in str(error)
                assert "secret" not in str(error)
                assert not store.is_transient(error)
                assert await store.positions() == {}

        asyncio.run(scenario())
        assert history(mongo, place) == {}

    def test_a_handler_that_goes_on_after_an_error_is_told_so_instead_of_trying_for_ever(
        self, mongo: MongoServer, place: str
    ) -> None:
        async def scenario() -> None:
            async with opened(mongo, place, collections=UNIQUE) as store:

                async def careless(then: str) -> None:
                    async with store.transaction(FIRST) as transaction:
                        users = transaction.effects.collection("users")
                        await users.insert_one({"_id": 1})
                        with pytest.raises(DuplicateKeyError) as refused:
                            await users.insert_one({"_id": 1})
                        assert not store.is_transient(refused.value)
                        if then == "reads":
                            await users.find_one({"_id": 1})
                        elif then == "advances":
                            await transaction.advance(1)

                for then in ("reads", "advances", "commits"):
                    error = await raised(careless(then))
                    assert isinstance(error, Rejected), then
                    assert "ignored an error" in str(error)

        asyncio.run(scenario())

    @pytest.mark.parametrize("how", ["the link is cut", "it takes too long"])
    def test_a_handler_that_goes_on_without_an_answer_is_no_commit(
        self, mongo: MongoServer, place: str, how: str
    ) -> None:
        """Nobody knows whether it was done, and the transaction is still there on the server."""
        cut = {"closeConnection": True} if how == "the link is cut" else {"blockConnection": True, "blockTimeMS": 2000}

        async def careless(store: MongoStore) -> None:
            async with store.transaction(FIRST) as transaction:
                await transaction.position()
                fail(mongo, place, 1, failCommands=["update"], **cut)
                try:
                    async with asyncio.timeout(0.5):
                        await transaction.effects.collection("history").update_one({"_id": 1}, {"$inc": {"times": 1}})
                except (PyMongoError, TimeoutError):
                    pass
                await transaction.advance(1)

        async def scenario() -> None:
            async with opened(mongo, place, collections={"history": []}) as store:
                error = await raised(careless(store))
                assert store.is_transient(error) if how == "the link is cut" else isinstance(error, Rejected)
                assert await store.positions() == {}

        asyncio.run(scenario())

    def test_effects_that_a_handler_keeps_are_of_no_use_later(self, mongo: MongoServer, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, place) as store:
                async with store.transaction(FIRST) as transaction:
                    kept = transaction.effects
                with pytest.raises(RuntimeError, match="has ended"):
                    kept.upsert("users", {"_id": 1}, {})
                with pytest.raises(RuntimeError, match="has ended"):
                    await kept.collection("users").find_one({})

        asyncio.run(scenario())

    def test_an_empty_key_is_no_key(self, mongo: MongoServer, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, place) as store, store.transaction(FIRST) as transaction:
                with pytest.raises(ValueError, match="needs a key"):
                    transaction.effects.delete("users", {})
                with pytest.raises(ValueError, match="email is None"):
                    transaction.effects.upsert("users", {"email": None}, {"name": "A"})

        asyncio.run(scenario())


class TestOpen:
    def test_a_server_that_is_no_replica_set_is_refused_with_a_remedy(self, alone: str, place: str) -> None:
        error = asyncio.run(raised(MongoStore(alone, place).open(place)))
        assert isinstance(error, ConfigError)
        assert "rs.initiate()" in error.remedy

    # The driver, closed while it tries to connect, leaves the socket to the garbage collector.
    @pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
    def test_a_server_that_is_away(self, place: str) -> None:
        uri = f"mongodb://user:very-secret@{HOST}:{free_port()}/?replicaSet=rs0"
        error = asyncio.run(raised(MongoStore(uri, place, timeout=0.5).open(place)))
        assert isinstance(error, StoreUnavailable)
        assert "very-secret" not in str(error)
        del error
        gc.collect()

    @pytest.mark.parametrize(
        "uri", ["mongodb://user:very-secret@@host", "mongodb://u:very-secret@host:port/", "mysql://u:very-secret@host"]
    )
    def test_an_address_that_cannot_be_used_is_not_told(self, uri: str, place: str) -> None:
        error = asyncio.run(raised(MongoStore(uri, place).open(place)))
        assert isinstance(error, ConfigError)
        assert "very-secret" not in str(error)

    def test_a_wrong_password_and_a_missing_right_are_a_matter_of_settings(self, place: str) -> None:
        with MongoServer(choice=ServerChoice.LOCAL, auth=True) as server:
            reader = server.create_user("reader", "very-secret", [{"role": "read", "db": place}])
            for uri in (reader, reader.replace("very-secret", "very-wrong")):
                error = asyncio.run(raised(MongoStore(uri, place).open(place)))
                assert isinstance(error, ConfigError)
                assert "readWrite" in error.remedy
                assert "very-" not in str(error)

    def test_an_index_that_is_there_with_other_options(self, mongo: MongoServer, place: str) -> None:
        with mongo.client() as client:
            client[place].users.create_index([("email", 1)])
        error = asyncio.run(raised(MongoStore(mongo.uri, place, collections=UNIQUE).open(place)))
        assert isinstance(error, ConfigError)
        assert "users" in error.what

    def test_a_right_that_is_lost_later_is_no_fault_of_the_event(self, mongo: MongoServer, place: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, place) as store:
                fail(mongo, place, 1, failCommands=["findAndModify"], errorCode=13)
                error = await raised(in_transaction(store, ["a"], 1))
                assert isinstance(error, ConfigError)
                assert not store.is_transient(error)

        asyncio.run(scenario())


def test_markers_say_what_was_processed_by_whom_and_when(mongo: MongoServer, place: str) -> None:
    async def scenario() -> None:
        async with opened(mongo, place) as store:
            await in_transaction(store, ["a"], 1)

    asyncio.run(scenario())
    with mongo.client(tz_aware=True) as client:
        (marker,) = client[place].tailrace_markers.find()
        processed_at = marker.pop("processed_at")
        assert processed_at > marker.pop("event_time")
        assert marker == {
            "_id": {"consumer_group": place, "event_id": "a"},
            "entity_id": "o-1",
            "entity_version": 1,
            "outcome": "applied",
        }
        with pytest.raises(OperationFailure, match="E11000"):
            client[place].tailrace_markers.insert_one({"_id": marker["_id"]})


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[str]:
    """A MongoDB that is no replica set."""
    port = free_port()
    argv = mongo_local.command(port, tmp_path, None, ["--quiet"])
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=dict(mongo_local.ENVIRONMENT)) as process:
        uri = f"mongodb://{HOST}:{port}/"
        try:
            wait_until(lambda: answers(uri), PATIENCE, what="the start of MongoDB")
            yield uri
        finally:
            process.kill()


def answers(uri: str) -> bool:
    from pymongo import MongoClient

    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=1000) as client:
        try:
            return bool(client.admin.command("ping")["ok"])
        except PyMongoError:
            return False
