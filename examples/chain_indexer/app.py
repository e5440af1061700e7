"""The indexer as a projection: `tailrace project examples.chain_indexer.app:app`.

The topic has one partition, with the events RollForward (a block) and RollBackward (a point) of a chain's node.
"""

from __future__ import annotations

import os

from examples.chain_indexer.blocks import Block, Point
from examples.chain_indexer.detection import Cage
from examples.chain_indexer.indexer import FAMILIES, KEEP_BLOCKS, UNDO_FAMILY, Indexer
from tailrace.errors import Reason, Rejected
from tailrace.projections import Event, Projection, RocksEffects, RocksStore, projection_app

CAGE = Cage(policy="cage-policy", address="cage-address")
TOPIC = "chain.blocks"

app = projection_app("chain-indexer", broker=os.environ.get("KAFKA", "kafka://localhost:9092"))
store = RocksStore(
    os.environ.get("CHAIN_INDEX", "chain-index"),
    families=FAMILIES,
    undo_family=UNDO_FAMILY,
    keep_blocks=int(os.environ.get("KEEP_BLOCKS", KEEP_BLOCKS)),
)
# A batch for each block. A block that cannot be applied stops the worker: all that follow depend on it.
chain = Projection(app, TOPIC, store=store, events=1, within=0, max_attempts=1, on_failure="halt")
indexer = Indexer(CAGE)


@chain.on("RollForward", model=Block)
async def forward(event: Event, effects: RocksEffects) -> None:
    roll_forward(indexer, event.data, effects)


@chain.on("RollBackward", model=Point)
async def backward(event: Event, effects: RocksEffects) -> None:
    roll_backward(event.data, effects)


def roll_forward(indexer: Indexer, block: Block, effects: RocksEffects) -> None:
    parent = effects.tip.block_id.decode() if effects.tip is not None else ""
    if block.parent != parent:
        raise Rejected(
            Reason.PERMANENT_FAILURE, f"the parent of {block.id} is {block.parent}, the newest block is {parent}"
        )
    with effects.block(block.slot, block.id.encode()):
        indexer.apply(block, effects)


def roll_backward(point: Point, effects: RocksEffects) -> None:
    effects.rollback_to(point.slot, point.id.encode() if point.slot >= 0 else None)
