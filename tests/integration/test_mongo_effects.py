"""What handlers may do with the effects of the MongoDB store."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from pymongo.errors import DuplicateKeyError, PyMongoError

from helpers.mongo_store import FIRST, UNIQUE, apply, fail, history, opened, raised
from tailrace.errors import Rejected
from tailrace.projections.mongo.store import MongoStore
from tailrace.testkit.stack import MongoServer


@pytest.fixture
def database() -> str:
    """A new database, and the projection's name, which fail points select."""
    return f"test_{uuid.uuid4().hex[:12]}"


class TestEffects:
    def test_a_handler_reads_its_own_writes_and_the_last_write_stays(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database, collections=UNIQUE) as store, store.transaction(FIRST) as transaction:
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
            assert sorted(each["_id"] for each in client[database].users.find()) == [2, 3]

    def test_a_write_that_breaks_a_unique_index_is_rejected_without_its_values(
        self, mongo: MongoServer, database: str
    ) -> None:
        async def scenario() -> None:
            async with opened(mongo, database, collections=UNIQUE) as store:

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
        assert history(mongo, database) == {}

    def test_a_handler_that_ignores_an_error_is_rejected(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database, collections=UNIQUE) as store:

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
    def test_a_handler_that_does_not_wait_for_a_result_is_not_committed(
        self, mongo: MongoServer, database: str, how: str
    ) -> None:
        """Nobody knows whether it was done, and the transaction is still there on the server."""
        cut = {"closeConnection": True} if how == "the link is cut" else {"blockConnection": True, "blockTimeMS": 2000}

        async def careless(store: MongoStore) -> None:
            async with store.transaction(FIRST) as transaction:
                await transaction.position()
                fail(mongo, database, 1, failCommands=["update"], **cut)
                try:
                    async with asyncio.timeout(0.5):
                        await transaction.effects.collection("history").update_one({"_id": 1}, {"$inc": {"times": 1}})
                except (PyMongoError, TimeoutError):
                    pass
                await transaction.advance(1)

        async def scenario() -> None:
            async with opened(mongo, database, collections={"history": []}) as store:
                error = await raised(careless(store))
                assert store.is_transient(error) if how == "the link is cut" else isinstance(error, Rejected)
                assert await store.positions() == {}

        asyncio.run(scenario())

    def test_effects_cannot_be_used_after_the_transaction(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database) as store:
                async with store.transaction(FIRST) as transaction:
                    kept = transaction.effects
                with pytest.raises(RuntimeError, match="has ended"):
                    kept.upsert("users", {"_id": 1}, {})
                with pytest.raises(RuntimeError, match="has ended"):
                    await kept.collection("users").find_one({})

        asyncio.run(scenario())

    def test_an_empty_key_is_refused(self, mongo: MongoServer, database: str) -> None:
        async def scenario() -> None:
            async with opened(mongo, database) as store, store.transaction(FIRST) as transaction:
                with pytest.raises(ValueError, match="needs a key"):
                    transaction.effects.delete("users", {})
                with pytest.raises(ValueError, match="email is None"):
                    transaction.effects.upsert("users", {"email": None}, {"name": "A"})

        asyncio.run(scenario())
