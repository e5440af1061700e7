"""The effects object of RocksDB handlers: all their writes go into the batch's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.errors import ConfigError
from tailrace.projections.core.store import effects_ended
from tailrace.projections.rocksdb.buffer import WriteBuffer
from tailrace.projections.rocksdb.database import Place
from tailrace.projections.rocksdb.undo_log import Block, UndoLog


class RocksReader:
    """Reads of keys in the store's families. Calls return at once: nothing is awaited."""

    def __init__(self, buffer: WriteBuffer, families: frozenset[str]) -> None:
        self._buffer = buffer
        self._families = families
        self._ended = False

    def get(self, family: str, key: bytes) -> bytes | None:
        """Returns a value, None if there is none. Writes of this transaction are seen."""
        self._require(family, key)
        return self._buffer.get(family, key)

    def items(self, family: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields keys with `prefix` and their values, in the order of the keys, from `start` on.

        Writes made before the iteration begins are seen.
        """
        self._require(family, prefix)
        return self._buffer.items(family, prefix, start)

    def end(self) -> None:
        """Refuses all calls from now on."""
        self._ended = True

    def _require(self, family: str, key: bytes) -> None:
        if self._ended:
            raise effects_ended()
        if family not in self._families:
            raise ConfigError(f"there is no column family {family}", remedy="Name it in `families` of the RocksStore.")
        if not isinstance(key, bytes):
            raise TypeError(f"the key for {family} is {type(key).__name__}: give bytes")


class RocksEffects(RocksReader):
    """Reads and writes of keys in the store's families."""

    def __init__(self, buffer: WriteBuffer, families: frozenset[str], undo: UndoLog | None) -> None:
        super().__init__(buffer, families)
        self._undo = undo
        self._replaced: dict[Place, bytes | None] | None = None
        """What the open block has replaced; None outside of blocks."""
        self._failed: Exception | None = None

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Sets a value."""
        if not isinstance(value, bytes):
            raise TypeError(f"the value for {family} is {type(value).__name__}: give bytes")
        self._keep_old_value(family, key)
        self._buffer.put(family, key, value)

    def delete(self, family: str, key: bytes) -> None:
        """Deletes a key, if it exists."""
        self._keep_old_value(family, key)
        self._buffer.delete(family, key)

    @property
    def tip(self) -> Block | None:
        """The newest block, None before the first."""
        return self._blocks.tip

    @contextmanager
    def block(self, slot: int, block_id: bytes) -> Iterator[None]:
        """Applies a block in its body: all writes there are undone together by `rollback_to`."""
        undo, block = self._blocks, Block(slot, block_id)
        with self._fails_the_transaction():
            if self._replaced is not None:
                raise RuntimeError(f"the block at slot {slot} begins within another one")
            undo.begin(block)
            self._replaced = {}
            yield
            undo.record(block, self._replaced)
            self._replaced = None

    def rollback_to(self, slot: int, block_id: bytes | None = None) -> int:
        """Restores the state after the last block with at most this slot; -1 is before the first block.

        With `block_id`, that block must be the one at the slot. Returns the number of blocks that were undone.
        """
        undo = self._blocks
        with self._fails_the_transaction():
            if self._replaced is not None:
                raise RuntimeError("a rollback within a block")
            return undo.roll_back(slot, block_id)

    def finish(self) -> None:
        """Raises if a handler ignored an error of a block or a rollback, or if a block is still open."""
        if self._failed is not None:
            raise self._failed
        if self._replaced is not None:
            raise RuntimeError("a handler has returned with an open block")

    @property
    def _blocks(self) -> UndoLog:
        if self._ended:
            raise effects_ended()
        if self._undo is None:
            raise ConfigError("the store has no undo log", remedy="Give the RocksStore `keep_blocks`.")
        return self._undo

    @contextmanager
    def _fails_the_transaction(self) -> Iterator[None]:
        """Remembers an error: a transaction with half of a block must not be committed."""
        try:
            yield
        except Exception as error:
            self._failed = error
            raise

    def _keep_old_value(self, family: str, key: bytes) -> None:
        self._require(family, key)
        if self._replaced is not None:
            if (family, key) not in self._replaced:
                self._replaced[family, key] = self._buffer.get(family, key)
        elif self._undo is not None:
            raise RuntimeError(f"a write to {family} outside of a block, which could not be undone")
