"""Helpers for the tests of the RocksDB store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tailrace.projections.core.store import Partition
from tailrace.projections.rocksdb.database import RocksDatabase
from tailrace.projections.rocksdb.effects import RocksEffects
from tailrace.projections.rocksdb.store import RocksStore

CHAIN = Partition("chain", 0)
Contents = dict[str, dict[bytes, bytes]]
"""Keys and values by column family."""


@asynccontextmanager
async def opened(path: Path, name: str = "chain", **options: Any) -> AsyncIterator[RocksStore]:
    store = RocksStore(path, **{"families": ["a", "b"], **options})
    await store.open(name)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def effects_of(store: RocksStore, partition: Partition = CHAIN) -> AsyncIterator[RocksEffects]:
    """Gives the effects of one transaction, which is committed in the end."""
    async with store.transaction(partition) as transaction:
        await transaction.position()
        yield transaction.effects


def contents(path: Path, families: Iterable[str] = ("a", "b")) -> Contents:
    """Reads all keys and values of some families. The folder is closed, or open in this process."""
    database = RocksDatabase.join(path, families)
    try:
        return {family: dict(database.items(family, b"")) for family in families}
    finally:
        database.leave()
