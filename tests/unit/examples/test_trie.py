"""The tries of the chain indexer: any order of changes gives the same bytes, and proofs prove what is stored."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.chain_indexer import trie as module
from examples.chain_indexer.oracle import MemoryFamilies
from examples.chain_indexer.trie import EMPTY, LENGTH, Node, Proof, Step, Trie, path_of, root_of, verify

KEYS = st.binary(max_size=2)
VALUES = st.binary(max_size=3)
CHANGES = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=30)
FEW_KEYS = st.sampled_from([bytes([number]) for number in range(8)])


def changed(
    changes: list[tuple[bytes, bytes | None]], prefix: bytes = b""
) -> tuple[Trie, MemoryFamilies, dict[bytes, bytes]]:
    families, expected = MemoryFamilies(), dict[bytes, bytes]()
    trie = Trie(families, "nodes", "values", prefix)
    for key, value in changes:
        if value is None:
            assert trie.delete(key) == (expected.pop(key, None) is not None)
        else:
            trie.insert(key, value)
            expected[key] = value
    return trie, families, expected


def built(values: Mapping[bytes, bytes]) -> MemoryFamilies:
    return changed(list(values.items()))[1]


@settings(deadline=None)
@given(CHANGES)
def test_any_order_of_changes_stores_the_same_bytes(changes: list[tuple[bytes, bytes | None]]) -> None:
    trie, families, expected = changed(changes)
    assert trie.root == root_of(expected)
    assert families.families.get("nodes", {}) == built(dict(sorted(expected.items()))).families.get("nodes", {})
    for key, _ in changes:
        assert trie.lookup(key) == expected.get(key)


def test_long_common_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes rarely share more than a few digits. Here paths differ only in their last four."""
    monkeypatch.setattr(
        module, "path_of", lambda key: bytes(60) + bytes([key[0] >> 6, key[0] >> 4 & 3, key[0] >> 2 & 3, key[0] & 3])
    )

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.none() | VALUES), max_size=40))
    def check(changes: list[tuple[bytes, bytes | None]]) -> None:
        trie, families, expected = changed(changes)
        assert trie.root == root_of(expected)
        assert families.families.get("nodes", {}) == built(expected).families.get("nodes", {})
        for key in [bytes([number]) for number in range(0, 256, 7)]:
            assert verify(trie.root, key, expected.get(key), trie.proof(key))

    check()


@settings(deadline=None)
@given(CHANGES, KEYS, VALUES)
def test_proofs(changes: list[tuple[bytes, bytes | None]], key: bytes, other: bytes) -> None:
    trie, _, expected = changed(changes)
    proof = trie.proof(key)
    assert verify(trie.root, key, expected.get(key), proof)
    wrong: bytes | None = None if key in expected else other
    assert not verify(trie.root, key, wrong, proof)
    if expected.get(key) != other:
        assert not verify(trie.root, key, other, proof)
    changed_root = root_of({**expected, b"one more key": b""})
    assert not verify(changed_root, key, expected.get(key), proof)


@settings(deadline=None)
@given(CHANGES.filter(lambda changes: any(value is not None for _, value in changes)))
def test_a_forged_proof_proves_nothing(changes: list[tuple[bytes, bytes | None]]) -> None:
    trie, _, expected = changed(changes)
    for key, value in expected.items():
        proof = trie.proof(key)
        assert proof.end is not None
        for forged in (
            Proof(proof.steps, None),
            Proof(proof.steps[:-1], proof.end),
            Proof(proof.steps[:-1], None),
            Proof(proof.steps, Node(proof.end.skip, 1, proof.end.content)),
            Proof([], None),
        ):
            assert not verify(trie.root, key, None, forged)
            assert forged == proof or not verify(trie.root, key, value + b"x", forged)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([b"one", b"two"]), FEW_KEYS, st.none() | VALUES), max_size=20))
def test_tries_with_prefixes_are_separate(changes: list[tuple[bytes, bytes, bytes | None]]) -> None:
    families = MemoryFamilies()
    tries = {prefix: Trie(families, "nodes", "values", prefix) for prefix in (b"one", b"two")}
    expected: dict[bytes, dict[bytes, bytes]] = {b"one": {}, b"two": {}}
    for prefix, key, value in changes:
        if value is None:
            tries[prefix].delete(key)
            expected[prefix].pop(key, None)
        else:
            tries[prefix].insert(key, value)
            expected[prefix][key] = value
    for prefix, trie in tries.items():
        assert trie.root == root_of(expected[prefix])


def test_an_empty_trie() -> None:
    trie, families, _ = changed([(b"k", b"v"), (b"k", None)])
    assert trie.root == EMPTY
    assert not any(families.families.values())
    assert verify(EMPTY, b"k", None, trie.proof(b"k"))
    assert not verify(EMPTY, b"k", b"v", trie.proof(b"k"))


@settings(deadline=None)
@given(st.sets(KEYS, min_size=2, max_size=20), st.data())
def test_forged_branches_do_not_prove_that_a_key_is_absent(keys: set[bytes], data: st.DataObject) -> None:
    """The root of a forged branch can be right: its hash is that of one string of digits and hashes."""
    trie, _, _ = changed([(key, b"v") for key in keys])
    key = data.draw(st.sampled_from(sorted(keys)))
    steps = trie.proof(key).steps
    depth = data.draw(st.integers(0, len(steps) - 1))
    step, at = steps[depth], sum(len(each.skip) + 1 for each in steps[:depth])
    digit = path_of(key)[at + len(step.skip)]
    below = trie._node(path_of(key)[: at + len(step.skip) + 1])
    assert below is not None
    children = {**step.siblings, digit: below.hash}
    before = max((each for each in children if each < digit), default=None)
    forged = [children]
    if before is not None:
        merged = children[before] + bytes([digit]) + children[digit]
        forged.append({**step.siblings, before: merged})
    for siblings in forged:
        assert not verify(trie.root, key, None, Proof([*steps[:depth], Step(step.skip, siblings)], None))


@given(st.sampled_from([Step(b"", {16: EMPTY}), Step(b"", {-1: EMPTY}), Step(b"", {300: EMPTY}), Step(b"", {})]))
def test_what_is_no_branch_is_refused(step: Step) -> None:
    for end in (None, Node(bytes(LENGTH), 0, EMPTY), Node(bytes(300), 1, EMPTY)):
        for value in (None, b""):
            assert not verify(EMPTY, b"k", value, Proof([step], end))
            assert not verify(EMPTY, b"k", value, Proof([], end)) or (end, value) == (None, None)
