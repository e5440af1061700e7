"""The RocksDB store keeps the store contract: several stores of one process share a folder."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from helpers.store_contract import StoreContract
from helpers.store_scenarios import Stores
from tailrace.projections.rocksdb.database import RocksDatabase
from tailrace.projections.rocksdb.store import RocksStore

FAMILY = "rows"


class RocksStores:
    def __init__(self, path: Path) -> None:
        self._path = path

    def new(self) -> RocksStore:
        return RocksStore(self._path, families=[FAMILY])

    def write(self, effects: Any, key: str, value: str) -> None:
        effects.put(FAMILY, key.encode(), value.encode())

    async def written(self) -> dict[str, str]:
        database = RocksDatabase.join(self._path, [FAMILY])
        try:
            return {key.decode(): value.decode() for key, value in database.items(FAMILY, b"")}
        finally:
            database.leave()

    async def cut(self) -> None:
        raise AssertionError("there is no connection")


class TestRocksStore(StoreContract):
    # There is no connection that could break.
    test_a_broken_connection_is_transient_and_the_next_one_works = None  # type: ignore[assignment]

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return RocksStores(tmp_path / uuid.uuid4().hex)
