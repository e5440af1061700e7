"""Blocks and rollbacks: a rollback restores every byte, also after a restart, and refuses what it cannot restore."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rocks import Contents, contents, effects_of, opened
from helpers.store_scenarios import Boom, in_loop
from tailrace.errors import BlockOutOfOrder, ConfigError, RollbackTooDeep
from tailrace.projections.core.store import Partition
from tailrace.projections.rocksdb.effects import RocksEffects
from tailrace.projections.rocksdb.store import UNDO
from tailrace.projections.rocksdb.undo_log import Block

FAMILIES = ("a", "b")
WITH_UNDO = (*FAMILIES, UNDO)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(FAMILIES), st.sampled_from([b"", b"x", b"y", b"xy"]), st.none() | st.binary(max_size=2)),
    max_size=6,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("forward"), st.integers(1, 3), OPERATIONS),
        st.tuples(st.just("back"), st.integers(0, 6)),
        st.tuples(st.just("commit")),
        st.tuples(st.just("fail")),
    ),
    max_size=14,
)
Operation = tuple[str, bytes, bytes | None]


def write(effects: RocksEffects, operations: list[Operation]) -> None:
    for family, key, value in operations:
        if value is None:
            effects.delete(family, key)
        else:
            effects.put(family, key, value)


def apply(effects: RocksEffects, slot: int, operations: list[Operation], block_id: bytes = b"") -> None:
    with effects.block(slot, block_id or str(slot).encode()):
        write(effects, operations)


async def fold(path: Path, chain: list[tuple[int, list[Operation]]]) -> Contents:
    """Applies the blocks of a chain from its beginning to an empty folder; returns all bytes, the undo log included."""
    async with opened(path, keep_blocks=100) as store, effects_of(store) as effects:
        for slot, operations in chain:
            apply(effects, slot, operations)
    return contents(path, WITH_UNDO)


@settings(deadline=None, max_examples=60)
@given(OPERATIONS, OPERATIONS)
def test_inverse_operations_restore_the_state(before: list[Operation], block: list[Operation]) -> None:
    """INV-5: apply(inv(op), apply(op, s)) = s, for every list of operations and every state."""

    async def check(path: Path) -> None:
        expected = await fold(path, [(1, before)])
        for commits in (1, 2):
            async with opened(path, keep_blocks=100) as store:
                async with effects_of(store) as effects:
                    apply(effects, 2, block)
                    if commits == 1:
                        assert effects.rollback_to(1) == 1
                if commits == 2:
                    async with effects_of(store) as effects:
                        assert effects.rollback_to(1) == 1
            assert contents(path, WITH_UNDO) == expected

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder) / "db"))


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_the_state_is_the_fold_of_the_chain_that_is_left(steps: list[Any]) -> None:
    """INV-1, INV-2: after any blocks, rollbacks, failed and committed transactions, in any order."""

    async def check(folder: Path) -> None:
        committed: list[tuple[int, list[Operation]]] = []
        pending = iter([*steps, ("commit",)])
        async with opened(folder / "db", keep_blocks=100) as store:
            ended = False
            while not ended:
                chain = list(committed)
                try:
                    async with effects_of(store) as effects:
                        for step in pending:
                            if step[0] == "forward":
                                slot = (chain[-1][0] if chain else 0) + step[1]
                                apply(effects, slot, step[2])
                                chain.append((slot, step[2]))
                            elif step[0] == "back":
                                left = chain[: max(0, len(chain) - step[1])]
                                undone = effects.rollback_to(left[-1][0] if left else -1)
                                assert undone == len(chain) - len(left)
                                chain = left
                            elif step[0] == "fail":
                                raise Boom
                            else:
                                break
                        else:
                            ended = True
                    committed = chain
                except Boom:
                    pass
        assert contents(folder / "db", WITH_UNDO) == await fold(folder / "fold", committed)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.lists(OPERATIONS, min_size=1, max_size=10), st.integers(0, 10))
def test_exactly_the_kept_blocks_can_be_undone(keep: int, blocks: list[list[Operation]], depth: int) -> None:
    depth = min(depth, len(blocks))

    async def check(folder: Path) -> None:
        path = folder / "db"
        async with opened(path, keep_blocks=keep) as store:
            states = [contents(path)]
            for number, operations in enumerate(blocks):
                async with effects_of(store) as effects:
                    apply(effects, number * 10, operations)
                states.append(contents(path))
            assert len(contents(path, [UNDO])[UNDO]) == min(keep, len(blocks))
            before = contents(path, (*WITH_UNDO, "tailrace"))
            target = (len(blocks) - depth - 1) * 10
            try:
                async with effects_of(store) as effects:
                    effects.rollback_to(target + 9 if target >= 0 else -1)  # between two blocks: the state is the same
            except RollbackTooDeep:
                assert depth > keep
                assert contents(path, (*WITH_UNDO, "tailrace")) == before
            else:
                assert depth <= keep
                assert contents(path) == states[len(blocks) - depth]
                async with effects_of(store) as effects:
                    apply(effects, 1000, [("a", b"new", b"1")])
                    assert effects.rollback_to(999) == 1
                assert contents(path) == states[len(blocks) - depth]

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


@in_loop
async def test_a_rollback_that_is_too_deep_says_what_to_do(tmp_path: Path) -> None:
    async with opened(tmp_path, keep_blocks=2) as store:
        async with effects_of(store) as effects:
            for slot in (5, 6, 7, 8):
                apply(effects, slot, [("a", b"slot", str(slot).encode())])
        with pytest.raises(RollbackTooDeep) as caught:
            async with effects_of(store) as effects:
                effects.rollback_to(5)
        assert "cannot roll back to slot 5: the undo log begins after 36 at slot 6" in str(caught.value)
        assert "raise `keep_blocks`" in (caught.value.remedy or "")
        async with effects_of(store) as effects:
            assert effects.rollback_to(6, b"6") == 2
            assert effects.tip == Block(6, b"6")


@in_loop
async def test_points_and_blocks_that_do_not_fit_the_chain(tmp_path: Path) -> None:
    async with opened(tmp_path, keep_blocks=9) as store:
        async with effects_of(store) as effects:
            assert effects.tip is None
            assert effects.rollback_to(-1) == 0
            apply(effects, 5, [("a", b"k", b"5")], b"five")
            apply(effects, 8, [("a", b"k", b"8")], b"eight")
            assert effects.rollback_to(8, b"eight") == 0
        before = contents(tmp_path, (*WITH_UNDO, "tailrace"))
        for slot, block_id in ((5, b"other"), (6, b"five"), (9, b"eight")):
            with pytest.raises(BlockOutOfOrder, match="not on the stored chain"):
                async with effects_of(store) as effects:
                    effects.rollback_to(slot, block_id)
        for slot in (8, 5, 0):
            with pytest.raises(BlockOutOfOrder, match="does not follow"):
                async with effects_of(store) as effects:
                    apply(effects, slot, [("a", b"k", b"late")])
        assert contents(tmp_path, (*WITH_UNDO, "tailrace")) == before


@in_loop
async def test_a_second_partition_or_projection_cannot_add_blocks(tmp_path: Path) -> None:
    async with opened(tmp_path, keep_blocks=9) as store:
        async with effects_of(store) as effects:
            apply(effects, 1, [])
        with pytest.raises(BlockOutOfOrder, match=r"has the blocks of chain, chain\[0\]"):
            async with effects_of(store, Partition("chain", 1)) as effects:
                apply(effects, 2, [])
    async with opened(tmp_path, "other", keep_blocks=9) as store:
        with pytest.raises(BlockOutOfOrder):
            async with effects_of(store) as effects:
                apply(effects, 2, [])


@in_loop
async def test_a_folder_keeps_its_kind(tmp_path: Path) -> None:
    """Writes without an undo log could not be undone; a second undo log would not know the first."""
    for kind, others in (
        ({}, {"keep_blocks": 2}),
        ({"keep_blocks": 2}, {}),
        ({"keep_blocks": 2}, {"undo_family": "u"}),
    ):
        path = tmp_path / str(kind) / str(others)
        async with opened(path, **kind):
            pass
        wanted: dict[str, Any] = {**kind, **others} if "undo_family" in others else others
        with pytest.raises(ConfigError, match="undo log"):
            await opened(path, **wanted).__aenter__()
        async with opened(path, **{**kind, "keep_blocks": 5} if kind else {}):
            pass


@pytest.mark.parametrize("wrong", ["error in a block", "refused rollback", "open block", "outside", "nested"])
@in_loop
async def test_a_handler_that_ignores_an_error_does_not_commit_half_a_block(tmp_path: Path, wrong: str) -> None:
    async def handler(effects: RocksEffects) -> None:
        if wrong == "error in a block":
            try:
                with effects.block(2, b"2"):
                    effects.put("a", b"k", b"half")
                    raise Boom
            except Boom:
                pass
        elif wrong == "refused rollback":
            with pytest.raises(BlockOutOfOrder):
                effects.rollback_to(1, b"unknown")
        elif wrong == "open block":
            effects.block(2, b"2").__enter__()
            effects.put("a", b"k", b"half")
        elif wrong == "nested":
            with effects.block(2, b"2"), pytest.raises(RuntimeError), effects.block(3, b"3"):
                pass
        else:
            effects.put("a", b"k", b"half")

    async with opened(tmp_path, keep_blocks=9) as store:
        async with effects_of(store) as effects:
            apply(effects, 1, [("a", b"k", b"whole")])
        before = contents(tmp_path, (*WITH_UNDO, "tailrace"))
        with pytest.raises((Boom, BlockOutOfOrder, RuntimeError)):
            async with effects_of(store) as effects:
                await handler(effects)
        assert contents(tmp_path, (*WITH_UNDO, "tailrace")) == before
