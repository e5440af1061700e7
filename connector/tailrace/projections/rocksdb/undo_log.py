"""The undo log: for each block the values that it has replaced, so that it can be undone.

The log is a column family with one entry per block, by slot. The entry of a block is written with the block, in the
same batch. Rolling back writes the old values, newest block first, and deletes the entries.

All writes of a folder with an undo log belong to blocks of one partition: otherwise a rollback would overwrite what
others have written since.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tailrace.errors import BlockOutOfOrder, RollbackTooDeep
from tailrace.projections.core.store import Partition
from tailrace.projections.rocksdb.buffer import WriteBuffer
from tailrace.projections.rocksdb.database import KIT, Place
from tailrace.projections.rocksdb.records import encode, number

_CHAIN = b"c"
"""The key of the chain's state, one per folder."""


class Block(NamedTuple):
    """A block of the chain."""

    slot: int
    block_id: bytes


class ChainState(NamedTuple):
    """The newest block and the range of the undo log. `base` is the newest block that cannot be undone."""

    projection: str
    partition: Partition
    tip: Block | None
    height: int
    oldest: int | None
    """The slot of the oldest entry."""
    base: Block | None


class UndoEntry(NamedTuple):
    """A block and what it has replaced. `previous` is the block before it."""

    block: Block
    height: int
    previous: Block | None
    replaced: list[tuple[str, bytes, bytes | None]]


_decode_chain = msgspec.msgpack.Decoder(ChainState).decode
_decode_entry = msgspec.msgpack.Decoder(UndoEntry).decode


class UndoLog:
    """The undo log within one transaction. `keep` is the number of blocks that can be undone."""

    def __init__(self, buffer: WriteBuffer, family: str, keep: int, projection: str, partition: Partition) -> None:
        self._buffer = buffer
        self._family = family
        self._keep = keep
        self._projection = projection
        self._partition = partition

    @property
    def tip(self) -> Block | None:
        return self._state().tip

    def begin(self, block: Block) -> None:
        """Raises if the block does not follow the newest one."""
        if block.slot < 0:
            raise ValueError(f"the slot of a block is {block.slot}")
        tip = self._state().tip
        if tip is not None and block.slot <= tip.slot:
            raise BlockOutOfOrder(
                f"the block {_name(block)} does not follow the newest one, {_name(tip)}",
                why="A block must have a higher slot than the one before it.",
                remedy="Check that the topic has one partition, and a rollback before each fork. Nothing was changed.",
            )

    def record(self, block: Block, replaced: dict[Place, bytes | None]) -> None:
        """Adds the entry of a block, and deletes entries that are more than `keep` blocks old."""
        state = self._state()
        listed = [(family, key, value) for (family, key), value in replaced.items()]
        entry = UndoEntry(block, state.height + 1, state.tip, listed)
        self._buffer.put(self._family, number(block.slot), encode(entry))
        oldest = block.slot if state.oldest is None else state.oldest
        self._save(self._pruned(state._replace(tip=block, height=entry.height, oldest=oldest)))

    def _pruned(self, state: ChainState) -> ChainState:
        oldest, base = state.oldest, state.base
        for key, value in self._buffer.items(self._family, b"", number(oldest or 0)):
            entry = _decode_entry(value)
            oldest = entry.block.slot
            if entry.height > state.height - self._keep:
                break
            self._buffer.delete(self._family, key)
            base = entry.block
        return state._replace(oldest=oldest, base=base)

    def roll_back(self, slot: int, block_id: bytes | None) -> int:
        """Restores the state after the last block with at most this slot. Returns the number of undone blocks."""
        state = self._state()
        entries: list[UndoEntry] = []
        left = state.tip
        while left is not None and left.slot > slot:
            if left == state.base:
                raise RollbackTooDeep(
                    f"cannot roll back to slot {slot}: the undo log begins after {_name(left)}",
                    why=f"The store keeps the last {self._keep} blocks, and {_name(state.tip)} is the newest.",
                    remedy=(
                        "Nothing was changed. Delete the folder and restart: the projection reads its topic from its "
                        "beginning. To allow deeper rollbacks, raise `keep_blocks`."
                    ),
                )
            entries.append(_decode_entry(self._buffer.get(self._family, number(left.slot)) or b""))
            left = entries[-1].previous
        if block_id is not None and left != Block(slot, block_id):
            raise BlockOutOfOrder(
                f"cannot roll back to {_name(Block(slot, block_id))}: it is not on the stored chain",
                why=f"At this slot, the chain has {_name(left)}.",
                remedy="Check that all blocks of the topic were applied, in order. Nothing was changed.",
            )
        for entry in entries:
            for family, key, value in entry.replaced:
                if value is None:
                    self._buffer.delete(family, key)
                else:
                    self._buffer.put(family, key, value)
            self._buffer.delete(self._family, number(entry.block.slot))
        if entries:
            empty = left == state.base
            self._save(
                state._replace(
                    tip=left, height=state.height - len(entries), oldest=None if empty else state.oldest
                )
            )  # fmt: skip
        return len(entries)

    def _state(self) -> ChainState:
        found = self._buffer.get(KIT, _CHAIN)
        if found is None:
            return ChainState(self._projection, self._partition, None, 0, None, None)
        state = _decode_chain(found)
        if (state.projection, state.partition) != (self._projection, self._partition):
            raise BlockOutOfOrder(
                f"the folder has the blocks of {state.projection}, {state.partition}",
                why=f"Blocks of {self._projection}, {self._partition} would be undone with them.",
                remedy="Give each chain a topic with one partition, and a folder.",
            )
        return state

    def _save(self, state: ChainState) -> None:
        self._buffer.put(KIT, _CHAIN, encode(state))


def _name(block: Block | None) -> str:
    return "the origin" if block is None else f"{block.block_id.hex()[:16] or '-'} at slot {block.slot}"
