"""The RocksDB store: a projection in a folder of the worker's own machine.

Each transaction is one atomic write batch: the handlers' families, markers, versions and the next offset. A commit
returns when the batch is on disk. One process can open a folder, so the projection runs in one worker; its partitions
share the folder.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from tailrace.errors import ConfigError
from tailrace.projections.core.store import Partition
from tailrace.projections.rocksdb.buffer import WriteBuffer
from tailrace.projections.rocksdb.database import KIT, USE, RocksDatabase, TransactionConflict
from tailrace.projections.rocksdb.effects import RocksEffects, RocksReader
from tailrace.projections.rocksdb.records import (
    FORMAT,
    VERSION,
    FolderFormat,
    OffsetRecord,
    ProjectionKeys,
    decode_format,
    decode_offset,
    encode,
)
from tailrace.projections.rocksdb.transaction import RocksTransaction, horizon_of
from tailrace.projections.rocksdb.undo_log import UndoLog
from tailrace.rocksdb_folder import DEFAULT, reading_folder

UNDO = "tailrace-undo"


class RocksStore:
    """Keeps a projection in the RocksDB folder `path`, which is created if missing.

    `families` are the column families that handlers write to. With `keep_blocks`, all writes belong to blocks, and that
    many of them can be undone; `undo_family` names the column family of the undo log.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        families: Collection[str],
        keep_blocks: int | None = None,
        undo_family: str = UNDO,
    ) -> None:
        self._path = Path(path)
        self._families = frozenset(families)
        self._keep_blocks = keep_blocks
        self._undo_family = undo_family
        self._database: RocksDatabase | None = None
        self._name = ""
        self._keys = ProjectionKeys("")
        self._transactions: set[RocksTransaction] = set()
        self._acquiring: set[asyncio.Task[bool]] = set()
        taken = self._families & {KIT, DEFAULT, UNDO, undo_family}
        if taken or isinstance(families, str) or "" in self._families:
            raise ConfigError(
                f"these cannot be column families of a projection: {', '.join(sorted(taken)) or repr(families)}",
                remedy="Give a list of other names.",
            )
        if keep_blocks is not None and keep_blocks < 1:
            raise ConfigError(f"keep_blocks is {keep_blocks}", remedy="Give the number of blocks that can be undone.")

    async def open(self, name: str) -> None:
        families = [*self._families] if self._keep_blocks is None else [*self._families, self._undo_family]
        database = RocksDatabase.join(self._path, families)
        self._database, self._name, self._keys = database, name, ProjectionKeys(name)
        try:
            self._require_format(None if self._keep_blocks is None else self._undo_family)
        except BaseException:
            await self.close()
            raise

    def _require_format(self, undo_family: str | None) -> None:
        """Raises if the folder was created with another undo log, or without one. A new folder remembers it."""
        with self._buffer() as buffer:
            found = buffer.get(KIT, FORMAT)
            stored = None if found is None else decode_format(found)
            if stored is None:
                buffer.put(KIT, FORMAT, encode(FolderFormat(VERSION, undo_family)))
                buffer.commit()
            elif stored.version != VERSION:
                raise ConfigError(
                    f"{self._path} has the format {stored.version}, this version of Tailrace writes {VERSION}",
                    remedy="Install the version that has written it, or give the store another path.",
                )
            elif stored.undo_family != undo_family:
                raise ConfigError(
                    f"{self._path} has {_undo_log(stored.undo_family)}, and this store has {_undo_log(undo_family)}",
                    why="Without its undo log, what was written cannot be undone.",
                    remedy="Give the RocksStore the `keep_blocks` and `undo_family` of before, or another path.",
                )

    async def close(self) -> None:
        database, self._database = self._database, None
        for acquiring in self._acquiring:
            acquiring.cancel()
        for transaction in tuple(self._transactions):
            transaction.end()
        self._transactions.clear()
        if database is not None:
            database.leave()

    @asynccontextmanager
    async def transaction(self, partition: Partition) -> AsyncIterator[RocksTransaction]:
        transaction = self._transaction(partition)
        self._transactions.add(transaction)
        try:
            yield transaction
            if transaction not in self._transactions:
                raise _not_open()
            transaction.commit()
        except Exception as error:
            if transaction.is_stale and not isinstance(error, TransactionConflict):
                # The handler may have failed only because it has read half of another transaction.
                raise TransactionConflict("another transaction has changed what this one has read") from error
            raise
        finally:
            transaction.end()
            self._transactions.discard(transaction)

    def _transaction(self, partition: Partition) -> RocksTransaction:
        database = self._opened
        buffer = WriteBuffer(database)
        undo = None
        if self._keep_blocks is not None:
            undo = UndoLog(buffer, self._undo_family, self._keep_blocks, self._name, partition)
        effects = RocksEffects(buffer, self._families, undo)

        async def acquire() -> asyncio.Lock:
            return await self._acquire(database.lock((self._name, partition)))

        return RocksTransaction(buffer, self._keys, partition, effects, acquire)

    async def _acquire(self, lock: asyncio.Lock) -> asyncio.Lock:
        """Waits for a lock; `close` ends the wait."""
        acquiring = asyncio.create_task(lock.acquire())
        self._acquiring.add(acquiring)
        try:
            await asyncio.wait({acquiring})
        except BaseException:
            if not acquiring.cancel() and not acquiring.cancelled():
                lock.release()
            raise
        finally:
            self._acquiring.discard(acquiring)
        if acquiring.cancelled():
            raise _not_open()
        if self._database is None:
            lock.release()
            raise _not_open()
        return lock

    @contextmanager
    def reading(self) -> Iterator[RocksReader]:
        """Gives the committed state, for queries in the worker's own process. Do not await anything within it."""
        with self._buffer() as buffer:
            reader = RocksReader(buffer, self._families)
            try:
                yield reader
            finally:
                reader.end()

    async def positions(self) -> dict[Partition, int]:
        with self._buffer() as buffer:
            stored = self._offsets(buffer)
        return {partition: each.next for partition, each in stored.items() if each.next is not None}

    async def stored_positions(self, name: str) -> dict[Partition, int]:
        """Returns the next offsets of a projection as they are on disk. A worker may have the folder open."""
        keys = ProjectionKeys(name)
        with reading_folder(self._path.resolve(), USE) as own:
            found: list[tuple[Any, Any]] = [] if own is None else list(own.items(from_key=keys.offsets))
        stored = {keys.partition(key): decode_offset(value) for key, value in found if key.startswith(keys.offsets)}
        return {partition: each.next for partition, each in stored.items() if each.next is not None}

    async def furthest(self) -> dict[Partition, int]:
        with self._buffer() as buffer:
            return {partition: each.furthest for partition, each in self._offsets(buffer).items()}

    def _offsets(self, buffer: WriteBuffer) -> dict[Partition, OffsetRecord]:
        keys = self._keys
        return {keys.partition(key): decode_offset(value) for key, value in buffer.items(KIT, keys.offsets)}

    async def reset(self, offsets: Mapping[Partition, int | None], *, only_missing: bool = False) -> None:
        with self._buffer() as buffer:
            known = self._offsets(buffer)
            for partition, offset in offsets.items():
                if only_missing and partition in known and known[partition].next is not None:
                    continue
                furthest = known[partition].furthest if partition in known else 0
                stored = OffsetRecord(offset, max(furthest, offset or 0))
                buffer.put(KIT, self._keys.offset(partition), encode(stored))
            buffer.commit()

    async def horizon(self) -> int:
        with self._buffer() as buffer:
            return horizon_of(buffer, self._keys)

    async def prune(self, before_ms: int, limit: int) -> int:
        deleted = 0
        with self._buffer() as buffer:
            if before_ms > horizon_of(buffer, self._keys):
                buffer.put(KIT, self._keys.horizon, encode(before_ms))
            for time_key, _ in itertools.islice(buffer.items(KIT, self._keys.marker_times), limit):
                time_ms, marker_key = self._keys.pruned(time_key)
                if time_ms >= before_ms:
                    break
                buffer.delete(KIT, time_key)
                buffer.delete(KIT, marker_key)
                deleted += 1
            buffer.commit()
        return deleted

    @contextmanager
    def _buffer(self) -> Iterator[WriteBuffer]:
        buffer = WriteBuffer(self._opened)
        try:
            yield buffer
        finally:
            buffer.end()

    @property
    def undoes_blocks(self) -> bool:
        return self._keep_blocks is not None

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, TransactionConflict)

    def another(self) -> RocksStore:
        """Returns a store of the same folder, for another projection."""
        return RocksStore(
            self._path, families=self._families, keep_blocks=self._keep_blocks, undo_family=self._undo_family
        )

    @property
    def _opened(self) -> RocksDatabase:
        if self._database is None:
            raise _not_open()
        return self._database


def _undo_log(family: str | None) -> str:
    return "no undo log" if family is None else f"the undo log {family}"


def _not_open() -> RuntimeError:
    return RuntimeError("the store is not open")
