"""Compares an index with the generator's model, and byte by byte with an index of the final chain from its start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Message

from examples.chain_indexer.app import CAGE, TOPIC, roll_forward
from examples.chain_indexer.blocks import Block, Output, Point, RequestDatum, StateDatum
from examples.chain_indexer.generator import ChainModel
from examples.chain_indexer.indexer import (
    CHECKPOINT,
    CONFIG,
    FAMILIES,
    KEEP_BLOCKS,
    REQUESTS,
    TOKENS,
    TRIE_NODES,
    TRIE_VALUES,
    UNDO_FAMILY,
    UNSPENT,
    Indexer,
)
from examples.chain_indexer.trie import Trie, root_of
from tailrace.projections.core.store import Partition
from tailrace.projections.rocksdb.effects import RocksReader
from tailrace.projections.rocksdb.store import RocksStore

PARTITION = Partition(TOPIC, 0)
Index = dict[str, dict[bytes, bytes]]
"""Keys and values by column family."""


def open_store(path: Path, keep_blocks: int = KEEP_BLOCKS) -> RocksStore:
    return RocksStore(path, families=FAMILIES, undo_family=UNDO_FAMILY, keep_blocks=keep_blocks)


def read(reader: RocksReader) -> Index:
    return {family: dict(reader.items(family)) for family in FAMILIES}


async def read_index(path: Path, keep_blocks: int = KEEP_BLOCKS) -> Index:
    """Reads the index of a worker that has stopped."""
    store = open_store(path, keep_blocks)
    await store.open("chain-indexer")
    try:
        with store.reading() as reader:
            return read(reader)
    finally:
        await store.close()


def final_chain(records: Sequence[Message]) -> list[Block]:
    """Returns the blocks that are left after all events of the topic, in their order."""
    chain: list[Block] = []
    for record in records:
        if dict(record.headers() or [])["type"] == b"RollForward":
            chain.append(Block.model_validate_json(record.value() or b""))
        else:
            point = Point.model_validate_json(record.value() or b"")
            chain = [block for block in chain if block.slot <= point.slot]
    return chain


async def fold(path: Path, blocks: Sequence[Block]) -> Index:
    """Indexes a chain without forks in an empty folder."""
    store = open_store(path)
    await store.open("fold")
    try:
        for block in blocks:
            async with store.transaction(PARTITION) as transaction:
                roll_forward(Indexer(CAGE), block, transaction.effects)
        with store.reading() as reader:
            return read(reader)
    finally:
        await store.close()


def differences(index: Index, model: ChainModel) -> list[str]:
    """Returns what differs between an index and the model."""
    wrong = []
    unspent = {key.decode(): Output.model_validate_json(value) for key, value in index[UNSPENT].items()}
    tokens = {key.decode(): StateDatum.model_validate_json(value) for key, value in index[TOKENS].items()}
    requests = {key.decode(): RequestDatum.model_validate_json(value) for key, value in index[REQUESTS].items()}
    values = {
        token.encode() + key: value for token, known in model.tokens.items() for key, value in known.values.items()
    }
    if unspent != model.unspent:
        wrong.append("unspent outputs")
    if tokens != {token: model.state_datum(token) for token in model.tokens}:
        wrong.append("tokens")
    if requests != model.requests:
        wrong.append("requests")
    if index[TRIE_VALUES] != values:
        wrong.append("values of tries")
    if model.tip.slot >= 0 and model.tip.id.encode() not in index[CHECKPOINT].get(b"", b""):
        wrong.append("checkpoint")
    if model.unspent and index[CONFIG].get(b"utxo-root") != root_of(index[UNSPENT]):
        wrong.append("root of the unspent outputs")
    wrong += [f"root of {token}" for token, state in tokens.items() if stored_root(index, token).hex() != state.root]
    return wrong


def stored_root(index: Index, token: str) -> bytes:
    """Returns the root of a token's trie, rebuilt from its values, if the stored nodes are the same as rebuilt ones."""
    rebuilt = MemoryFamilies()
    trie = Trie(rebuilt, TRIE_NODES, TRIE_VALUES, token.encode())
    for key, value in index[TRIE_VALUES].items():
        if key.startswith(token.encode()):
            trie.insert(key[len(token) :], value)
    nodes = {key: value for key, value in index[TRIE_NODES].items() if key.startswith(token.encode())}
    return trie.root if nodes == rebuilt.families.get(TRIE_NODES, {}) else b"the stored nodes differ"


class MemoryFamilies:
    """Column families in memory."""

    def __init__(self) -> None:
        self.families: dict[str, dict[bytes, bytes]] = {}

    def get(self, family: str, key: bytes) -> bytes | None:
        return self.families.get(family, {}).get(key)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.families.setdefault(family, {})[key] = value

    def delete(self, family: str, key: bytes) -> None:
        self.families.get(family, {}).pop(key, None)
