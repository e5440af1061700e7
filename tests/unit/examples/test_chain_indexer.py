"""The chain indexer on random chains with forks: INV-1 to INV-5, and blocks that it must refuse."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.chain_indexer import detection
from examples.chain_indexer.app import CAGE, roll_backward, roll_forward
from examples.chain_indexer.blocks import Block, Output, Point, Transaction
from examples.chain_indexer.detection import CageEvent, detect
from examples.chain_indexer.generator import ChainGenerator, Event
from examples.chain_indexer.indexer import FAMILIES, UNDO_FAMILY, Indexer
from examples.chain_indexer.oracle import PARTITION, Index, differences, fold, open_store, read
from helpers.rocks import contents
from helpers.store_scenarios import Boom, in_loop
from tailrace.errors import Rejected, RollbackTooDeep
from tailrace.projections.rocksdb.store import RocksStore


class Indexed:
    """An open index that applies events as the app does."""

    def __init__(self, path: Path, keep_blocks: int = 100) -> None:
        self.path = path
        self.store: RocksStore = open_store(path, keep_blocks)
        self.detected: list[CageEvent] = []
        self.indexer = Indexer(CAGE, self.detected.append)

    async def __aenter__(self) -> Indexed:
        await self.store.open("chain-indexer")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    async def apply(self, event: Event, *, fail: bool = False) -> None:
        kind, data = event
        self.detected.clear()
        async with self.store.transaction(PARTITION) as transaction:
            if isinstance(data, Block):
                assert kind == "RollForward"
                roll_forward(self.indexer, data, transaction.effects)
            else:
                roll_backward(data, transaction.effects)
            await transaction.advance(((await transaction.position()) or 0) + 1)
            if fail:
                raise Boom

    def index(self) -> Index:
        with self.store.reading() as reader:
            return read(reader)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, 60))
def test_random_chains(seed: int, count: int) -> None:
    """After every event, the index is the generator's model; in the end, all bytes are those of a fold of the chain."""

    async def check(folder: Path) -> None:
        generator = ChainGenerator(CAGE, seed)
        async with Indexed(folder / "index") as indexed:
            for number, event in enumerate(generator.events(count)):
                if number % 7 == 0:
                    before = indexed.index()
                    with pytest.raises(Boom):
                        await indexed.apply(event, fail=True)
                    assert indexed.index() == before
                await indexed.apply(event)
                assert differences(indexed.index(), generator.model) == []
                if event[0] == "RollForward":
                    assert indexed.detected == generator.model.events
            offsets = await indexed.store.positions()
        assert offsets == {PARTITION: count}
        families = [*FAMILIES, UNDO_FAMILY]
        await fold(folder / "fold", generator.blocks)
        assert contents(folder / "index", families) == contents(folder / "fold", families)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


@in_loop
async def test_every_rollback_restores_the_state_of_its_slot(tmp_path: Path) -> None:
    """INV-2, for each block of a chain."""
    generator = ChainGenerator(CAGE, 5)
    async with Indexed(tmp_path) as indexed:
        states = [indexed.index()]
        for event in generator.events(25, forks=0):
            await indexed.apply(event)
            states.append(indexed.index())
        points = [model.tip for model in generator.models]
        blocks: list[Event] = [("RollForward", block) for block in generator.blocks]
        for depth in (1, 3, 8, 25):
            left = len(blocks) - depth
            await indexed.apply(("RollBackward", points[left]))
            assert indexed.index() == states[left]
            for event in blocks[left:]:
                await indexed.apply(event)
            assert indexed.index() == states[-1]


def test_the_generator_makes_everything() -> None:
    """Otherwise the tests above would show little."""
    events: Counter[str] = Counter()
    chained = 0
    generator = ChainGenerator(CAGE, 1)
    for kind, data in generator.events(400):
        events[kind] += 1
        if isinstance(data, Block):
            events.update(type(each).__name__ for each in generator.model.events)
            created = {transaction.id for transaction in data.transactions}
            chained += sum(tx_in.split("#")[0] in created for each in data.transactions for tx_in in each.inputs)
    assert min(events[each] for each in ("Boot", "Request", "Update", "Retract", "Burn", "RollBackward")) > 10
    assert chained > 20, "transactions that spend outputs of their own block"


RULES: list[tuple[str, Any]] = [
    ("_holds", lambda cage, output, token: True),
    ("state_datum", lambda output: None),
    ("request_datum", lambda output: None),
    ("_processed", lambda cage, transaction, spent, token: []),
]


@pytest.mark.parametrize(("rule", "broken"), RULES)
def test_a_broken_rule_of_detection_is_noticed(rule: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, rule, broken)
    assert any(found != made for found, made in detected_and_made(CAGE))


@pytest.mark.parametrize("field", ["policy", "address"])
def test_the_events_are_those_of_one_cage(field: str) -> None:
    other = CAGE._replace(**{field: {"policy": "other-policy", "address": "other-script"}[field]})
    assert any(found != made for found, made in detected_and_made(other))
    assert all(found == made for found, made in detected_and_made(CAGE))


def detected_and_made(cage: detection.Cage) -> Iterator[tuple[list[CageEvent], list[CageEvent]]]:
    """Yields the detected and the made events of each block of a chain."""
    generator = ChainGenerator(CAGE, 3)
    for _ in range(400):
        before = dict(generator.model.unspent)
        _, block = generator.next_block()
        assert isinstance(block, Block)
        for each in block.transactions:
            before |= {f"{each.id}#{index}": output for index, output in enumerate(each.outputs)}
        found = [event for each in block.transactions for event in detect(cage, each, before)]
        yield found, generator.model.events


@in_loop
async def test_blocks_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    generator = ChainGenerator(CAGE, 2)
    async with Indexed(tmp_path, keep_blocks=3) as indexed:
        for event in generator.events(12, forks=0):
            await indexed.apply(event)
        before = indexed.index()
        tip = generator.model.tip
        spends = Transaction(id="t", inputs=["nobody#0"])
        [token, *_] = generator.model.tokens
        state = generator.model.state_datum(token).model_copy(update={"root": "11" * 32})
        holder = generator.model.tokens[token].tx_in
        output = Output(address=CAGE.address, assets={CAGE.policy: {token: 1}}, datum=state.model_dump())
        wrong_root = Transaction(id="t", inputs=[holder], outputs=[output], redeemers={holder: "Modify"})
        for block, why in (
            (Block(slot=tip.slot + 1, id="x", parent="other", transactions=[]), "the parent of x is other"),
            (Block(slot=tip.slot + 1, id="x", parent=tip.id, transactions=[spends]), "is not unspent"),
            (Block(slot=tip.slot + 1, id="x", parent=tip.id, transactions=[wrong_root]), "on the chain, and"),
        ):
            with pytest.raises(Rejected, match=why):
                await indexed.apply(("RollForward", block))
        with pytest.raises(RollbackTooDeep):
            await indexed.apply(("RollBackward", generator.models[-5].tip))
        with pytest.raises(RollbackTooDeep):
            await indexed.apply(("RollBackward", Point(slot=-1, id="")))
        assert indexed.index() == before
    other = Indexed(tmp_path, keep_blocks=3)
    other.indexer = Indexer(CAGE._replace(policy="another"))
    async with other:
        with pytest.raises(Rejected, match="another cage"):
            await other.apply(generator.next_block())


@in_loop
async def test_the_comparison_finds_each_change_of_an_index(tmp_path: Path) -> None:
    """One value changed, one key lost, one key too many: in each family that the model describes."""
    generator = ChainGenerator(CAGE, 7)
    list(generator.events(60))
    index = await fold(tmp_path, generator.blocks)
    assert differences(index, generator.model) == []
    for family in FAMILIES:
        if family == "csmt":
            continue  # compared with a fold only
        key = max(index[family])
        changed = dict(index[family])
        del changed[key]
        assert differences({**index, family: changed}, generator.model), family
    wrong = {**index, "trie-kv": {**index["trie-kv"], max(index["tokens"]) + b"more": b"1"}}
    assert differences(wrong, generator.model)
    nodes = index["trie-nodes"]
    wrong = {**index, "trie-nodes": {**nodes, max(nodes): nodes[max(nodes)][:-1] + b"\0"}}
    assert differences(wrong, generator.model)
