"""The MongoDB store beyond the contract: conflicts, elections, commits without an answer, connection errors."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import OperationFailure, PyMongoError

from helpers.mongo_store import FIRST, PATIENCE, SECOND, UNIQUE, apply, fail, history, in_transaction, opened, raised
from tailrace.errors import ConfigError, StoreUnavailable
from tailrace.projections.mongo import partition_lock
from tailrace.projections.mongo import transaction as mongo_transaction
from tailrace.projections.mongo.store import MongoStore
from tailrace.testkit.stack import MongoReplicaSet, MongoServer, ServerChoice, mongo_local, wait_until
from tailrace.testkit.stack.ports import HOST, free_port


@pytest.fixture
def database() -> str:
    """A new database, and the projection's name, which fail points select."""
    return f"test_{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def impatient() -> Iterator[MongoServer]:
    """A server that ends abandoned transactions soon."""
    with MongoServer(choice=ServerChoice.LOCAL, settings={"transactionLifetimeLimitSeconds": "3"}) as server:
        yield server


class TestConflicts:
    def test_a_second_worker_waits_for_the_first_and_sees_its_changes(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database) as one, opened(mongo, database) as other:
                # The partition's document exists before: two transactions cannot both insert it.
                await in_transaction(one, ["a"], 1)
                async with one.transaction(FIRST) as transaction:
                    assert await transaction.position() == 1
                    second = asyncio.create_task(position(other))
                    # `position` locks, although nothing is written yet.
                    done, _ = await asyncio.wait([second], timeout=0.5)
                    assert not done
                    await transaction.advance(2)
                assert await asyncio.wait_for(second, PATIENCE) == 2

        async def position(store: MongoStore) -> int | None:
            async with store.transaction(FIRST) as transaction:
                return await transaction.position()

        asyncio.run(scenario())

    def test_an_event_in_two_partitions_at_once_is_applied_once(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database) as one, opened(mongo, database) as other:

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
        assert history(mongo, database) == {"a": 1, "b": 1, "c": 1}

    def test_many_workers_open_at_once_and_lock_in_turn(self, mongo: MongoServer, database: str) -> None:
        async def worker(number: int) -> None:
            async with opened(mongo, database, collections=UNIQUE) as store:
                for _ in range(5):
                    async with store.transaction(FIRST) as transaction:
                        next_offset = await transaction.position() or 0
                        await apply(transaction, [f"e{next_offset}"], next_offset + 1)

        async def scenario() -> None:
            await asyncio.wait_for(asyncio.gather(*map(worker, range(4))), PATIENCE)

        asyncio.run(scenario())
        assert history(mongo, database) == {f"e{offset}": 1 for offset in range(20)}

    def test_the_transaction_of_a_dead_worker_is_ended(self, impatient: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(impatient, database) as dead, opened(impatient, database) as successor:
                held = dead.transaction(FIRST)
                await apply(await held.__aenter__(), ["a"], 1)
                assert await asyncio.wait_for(in_transaction(successor, ["a", "b"], 2), PATIENCE) == {"a", "b"}
                error = await raised(held.__aexit__(None, None, None))
                assert dead.is_transient(error), error

        asyncio.run(scenario())
        assert history(impatient, database) == {"a": 1, "b": 1}

    def test_two_live_owners_do_not_evict_each_other_for_ever(
        self, mongo: MongoServer, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each transaction takes three times as long as a successor waits, and runs commands often enough to notice
        that it was ended. The first one lasts until it is.
        """
        monkeypatch.setattr(partition_lock, "EVICT_SECONDS", 0.5)
        ended = 0
        begun = asyncio.Event()

        async def owner(store: MongoStore, ids: list[str]) -> None:
            nonlocal ended
            if ids == ["b"]:
                await begun.wait()  # otherwise it could be done before the first one begins
            while True:
                try:
                    async with store.transaction(FIRST) as transaction:
                        reached = await transaction.position() or 0
                        begun.set()
                        for _ in range(15 if ended or ids == ["b"] else 150):
                            await transaction.entities(["o-1"])
                            await asyncio.sleep(0.1)
                        await apply(transaction, ids, reached + 1)
                except PyMongoError as error:
                    if not store.is_transient(error):
                        raise
                    ended += 1
                    await asyncio.sleep(0.2)  # as a worker does, so that the other one gets the lock
                else:
                    return

        async def scenario() -> None:
            async with opened(mongo, database) as one, opened(mongo, database) as other:
                async with asyncio.timeout(60):
                    await asyncio.gather(owner(one, ["a"]), owner(other, ["b"]))
                assert await one.positions() == {FIRST: 2}

        asyncio.run(scenario())
        assert history(mongo, database) == {"a": 1, "b": 1}
        assert ended, "no transaction was ended: this proves nothing"

    def test_closing_the_store_releases_the_partition_at_once(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database) as successor:
                store = MongoStore(mongo.uri, database)
                await store.open(database)
                held = store.transaction(FIRST)
                await apply(await held.__aenter__(), ["a"], 1)
                await store.close()
                # The server's own limit is a minute, so PATIENCE would be too long.
                assert await asyncio.wait_for(in_transaction(successor, ["b"], 1), 30) == {"b"}
                assert isinstance(await raised(held.__aexit__(None, None, None)), PyMongoError)

        asyncio.run(scenario())
        assert history(mongo, database) == {"b": 1}


class TestCommit:
    def test_a_commit_without_an_answer_is_retried(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database) as store:
                # More than once, since the driver retries once.
                fail(mongo, database, 5, closeConnection=True)
                assert await in_transaction(store, ["a"], 1) == {"a"}
                assert await store.positions() == {FIRST: 1}

        asyncio.run(scenario())
        assert history(mongo, database) == {"a": 1}

    @pytest.mark.parametrize(
        ("times", "how", "committed"),
        [
            # Not executed, twice, since the driver retries once; or executed, but the majority is late.
            (2, {"closeConnection": True}, False),
            (1, {"writeConcernError": {"code": 64, "errmsg": "late", "errInfo": {"wtimeout": True}}}, True),
        ],
    )
    def test_after_the_limit_the_store_is_unavailable_and_the_offset_is_right(
        self,
        impatient: MongoServer,
        database: str,
        monkeypatch: pytest.MonkeyPatch,
        times: int,
        how: dict[str, Any],
        committed: bool,
    ) -> None:
        monkeypatch.setattr(mongo_transaction, "COMMIT_SECONDS", 0.0)

        async def scenario() -> None:
            async with opened(impatient, database) as store:
                # The first transaction of a partition inserts its document, separately.
                async with store.transaction(FIRST) as transaction:
                    assert await transaction.position() is None
                fail(impatient, database, times, **how)
                error = await raised(in_transaction(store, ["a"], 1))
                assert store.is_transient(error), error
                async with store.transaction(FIRST) as transaction:
                    assert await transaction.position() == (1 if committed else None)
                # The events arrive again, as after a retry.
                assert await in_transaction(store, ["a", "b"], 2) == ({"b"} if committed else {"a", "b"})

        asyncio.run(scenario())
        assert history(impatient, database) == {"a": 1, "b": 1}

    def test_a_primary_that_steps_down_within_a_transaction(self, mongo_set: MongoReplicaSet, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo_set, database) as store:
                assert await in_transaction(store, ["a"], 1) == {"a"}

                async def interrupted() -> None:
                    async with store.transaction(FIRST) as transaction:
                        await apply(transaction, ["b", "c"], 3)
                        await asyncio.to_thread(mongo_set.step_down)

                error = await raised(interrupted())
                assert store.is_transient(error), error
                assert await asyncio.wait_for(insistent(store, ["a", "b", "c"], 3), PATIENCE) == {"b", "c"}
                assert await store.positions() == {FIRST: 3}

        async def insistent(store: MongoStore, ids: list[str], end: int) -> set[str]:
            while True:
                (result,) = await asyncio.gather(in_transaction(store, ids, end), return_exceptions=True)
                if isinstance(result, set):
                    return result
                assert store.is_transient(result), result

        asyncio.run(scenario())
        assert history(mongo_set, database) == {"a": 1, "b": 1, "c": 1}

    def test_a_primary_that_dies_within_a_transaction(self, mongo_set: MongoReplicaSet, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo_set, database) as store:
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
        assert history(mongo_set, database) == {"a": 1}


class TestOpen:
    def test_a_server_without_a_replica_set_is_refused(self, alone: str, database: str) -> None:
        error = asyncio.run(raised(MongoStore(alone, database).open(database)))
        assert isinstance(error, ConfigError)
        assert "rs.initiate()" in error.remedy

    # The driver, closed while it tries to connect, leaves the socket to the garbage collector.
    @pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
    def test_an_unavailable_server(self, database: str) -> None:
        uri = f"mongodb://user:very-secret@{HOST}:{free_port()}/?replicaSet=rs0"
        error = asyncio.run(raised(MongoStore(uri, database, timeout=0.5).open(database)))
        assert isinstance(error, StoreUnavailable)
        assert "very-secret" not in str(error)
        del error
        gc.collect()

    @pytest.mark.parametrize(
        "uri", ["mongodb://user:very-secret@@host", "mongodb://u:very-secret@host:port/", "mysql://u:very-secret@host"]
    )
    def test_an_invalid_address_is_not_shown(self, uri: str, database: str) -> None:
        error = asyncio.run(raised(MongoStore(uri, database).open(database)))
        assert isinstance(error, ConfigError)
        assert "very-secret" not in str(error)

    def test_a_wrong_password_and_a_missing_privilege_are_config_errors(self, database: str) -> None:
        with MongoServer(choice=ServerChoice.LOCAL, auth=True) as server:
            reader = server.create_user("reader", "very-secret", [{"role": "read", "db": database}])
            for uri in (reader, reader.replace("very-secret", "very-wrong")):
                error = asyncio.run(raised(MongoStore(uri, database).open(database)))
                assert isinstance(error, ConfigError)
                assert "readWrite" in error.remedy
                assert "very-" not in str(error)

    def test_an_index_that_exists_with_other_options(self, mongo: MongoServer, database: str) -> None:
        with mongo.client() as client:
            client[database].users.create_index([("email", 1)])
        error = asyncio.run(raised(MongoStore(mongo.uri, database, collections=UNIQUE).open(database)))
        assert isinstance(error, ConfigError)
        assert "users" in error.what

    def test_a_privilege_that_is_revoked_later_dead_letters_no_event(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database) as store:
                fail(mongo, database, 1, failCommands=["findAndModify"], errorCode=13)
                error = await raised(in_transaction(store, ["a"], 1))
                assert isinstance(error, ConfigError)
                assert not store.is_transient(error)

        asyncio.run(scenario())


def test_markers_record_what_was_processed_by_whom_and_when(mongo: MongoServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(mongo, database) as store:
            await in_transaction(store, ["a"], 1)

    asyncio.run(scenario())
    with mongo.client(tz_aware=True) as client:
        (marker,) = client[database].tailrace_markers.find()
        processed_at = marker.pop("processed_at")
        assert processed_at > marker.pop("event_time")
        assert marker == {
            "_id": {"consumer_group": database, "event_id": "a"},
            "entity_id": "o-1",
            "entity_version": 1,
            "outcome": "applied",
        }
        with pytest.raises(OperationFailure, match="E11000"):
            client[database].tailrace_markers.insert_one({"_id": marker["_id"]})


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[str]:
    """A MongoDB that is not a replica set."""
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
