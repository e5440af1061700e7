"""The store in memory passes the store contract."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.memory_store import MemoryDatabase, MemoryEffects, MemoryStore
from helpers.store_contract import StoreContract
from helpers.store_scenarios import P0, Stores, opened


class MemoryStores:
    def __init__(self) -> None:
        self.database = MemoryDatabase()

    def new(self) -> MemoryStore:
        return MemoryStore(self.database)

    def write(self, effects: MemoryEffects, key: str, value: str) -> None:
        effects.upsert("things", {"key": key}, {"value": value})

    async def written(self) -> dict[str, str]:
        return {row["key"]: row["value"] for row in self.database.rows.get("things", {}).values()}

    async def cut(self) -> None:
        self.database.cut()


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def stores(self) -> Stores:
        return MemoryStores()


def test_a_handler_reads_its_own_writes_and_others_do_not() -> None:
    stores = MemoryStores()

    async def scenario() -> None:
        async with opened(stores) as store, store.transaction(P0) as transaction:
            effects: Any = transaction.effects
            effects.upsert("orders", {"id": 1}, {"total": 5, "by": "x"})
            effects.upsert("orders", {"id": 1}, {"total": 6})
            assert await effects.fetch_one("orders", {"id": 1}) == {"id": 1, "total": 6, "by": "x"}
            assert stores.database.rows == {}
            effects.delete("orders", {"id": 1})
            effects.upsert("orders", {"id": 1}, {"total": 7})
        assert list(stores.database.rows["orders"].values()) == [{"id": 1, "total": 7}]

    asyncio.run(scenario())


def test_a_refused_write_raises_when_it_is_executed() -> None:
    stores = MemoryStores()

    def refuse(table: str, key: object, values: object) -> None:
        raise ValueError(f"{table} takes nothing")

    async def scenario() -> None:
        stores.database.refuse = refuse
        async with opened(stores) as store:
            with pytest.raises(ValueError, match="orders takes nothing"):  # noqa: PT012
                async with store.transaction(P0) as transaction:
                    transaction.effects.upsert("orders", {"id": 1}, {"total": 5})
                    await transaction.advance(1)
                    await transaction.flush()
            assert await store.positions() == {}

    asyncio.run(scenario())
