"""A Merkle Patricia trie in two column families: nodes by their path, and values by their key.

A key's path is the 64 hexadecimal digits of its hash. A node is stored under the path at which it begins, and skips the
digits that all keys below it share. It is a leaf (its content is the hash of the value), or a branch (its content is
the hash of its children's hashes). The stored nodes depend only on keys and values, not on the order of changes.

All keys of a trie begin with its prefix, so that many tries share the families.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple, Protocol

DIGITS = 16
LENGTH = 64
EMPTY = bytes(32)
"""The root of a trie without keys."""


class KeyValues(Protocol):
    """What the trie needs of `RocksEffects`."""

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def put(self, family: str, key: bytes, value: bytes) -> None: ...

    def delete(self, family: str, key: bytes) -> None: ...


class Node(NamedTuple):
    """A leaf has no children. `children` is a bitmap of the digits that branches lead to."""

    skip: bytes
    children: int
    content: bytes

    @property
    def hash(self) -> bytes:
        kind = b"branch" if self.children else b"leaf"
        return digest(kind, bytes([len(self.skip)]), self.skip, self.content)

    def encoded(self) -> bytes:
        return bytes([len(self.skip)]) + self.skip + self.children.to_bytes(2, "big") + self.content


class Step(NamedTuple):
    """A branch on the way to a key: what it skips, and the hashes of all children but the one on the way."""

    skip: bytes
    siblings: dict[int, bytes]


class Proof(NamedTuple):
    """Shows that a key has a value, or that it is absent. `end` is the node where the way ends, if there is one."""

    steps: list[Step]
    end: Node | None


class Trie:
    """See the module's docstring."""

    def __init__(self, effects: KeyValues, nodes: str, values: str, prefix: bytes = b"") -> None:
        self._effects = effects
        self._nodes = nodes
        self._values = values
        self._prefix = prefix

    @property
    def root(self) -> bytes:
        node = self._node(b"")
        return EMPTY if node is None else node.hash

    def lookup(self, key: bytes) -> bytes | None:
        return self._effects.get(self._values, self._prefix + key)

    def insert(self, key: bytes, value: bytes) -> None:
        """Sets a value; a value that the key had is replaced."""
        self._effects.put(self._values, self._prefix + key, value)
        self._insert(b"", path_of(key), digest(value))

    def delete(self, key: bytes) -> bool:
        """Deletes a key; returns whether it was there."""
        if self.lookup(key) is None:
            return False
        self._effects.delete(self._values, self._prefix + key)
        self._delete(b"", path_of(key))
        return True

    def proof(self, key: bytes) -> Proof:
        path, at, steps = path_of(key), b"", []
        while (node := self._node(at)) is not None and node.children:
            below = at + node.skip
            if not path.startswith(below):
                break
            siblings = self._children(below, node.children)
            siblings.pop(path[len(below)], None)
            steps.append(Step(node.skip, siblings))
            at = path[: len(below) + 1]
        return Proof(steps, node)

    def _insert(self, at: bytes, path: bytes, content: bytes) -> None:
        node, rest = self._node(at), path[len(at) :]
        if node is None:
            self._save(at, Node(rest, 0, content))
            return
        shared = common(node.skip, rest)
        if shared == len(rest):
            self._save(at, Node(rest, 0, content))
            return
        if shared < len(node.skip):
            # It moves down, below a new branch. Its own children stay where they are.
            self._save(at + node.skip[: shared + 1], node._replace(skip=node.skip[shared + 1 :]))
            node = Node(node.skip[:shared], 1 << node.skip[shared], b"")
        below = at + node.skip
        digit = path[len(below)]
        self._insert(below + bytes([digit]), path, content)
        self._save_branch(at, node.skip, node.children | 1 << digit)

    def _delete(self, at: bytes, path: bytes) -> None:
        node = self._node(at)
        if node is None or not node.children:
            self._effects.delete(self._nodes, self._prefix + at)
            return
        below = at + node.skip
        child = path[: len(below) + 1]
        self._delete(child, path)
        children = node.children
        if self._node(child) is None:
            children &= ~(1 << child[-1])
        if children & (children - 1):
            self._save_branch(at, node.skip, children)
            return
        # One child is left: it takes the place of its branch.
        digit = bytes([children.bit_length() - 1])
        last = self._node(below + digit)
        if last is None:
            raise LookupError(f"a node is missing at {(below + digit).hex()}")
        self._effects.delete(self._nodes, self._prefix + below + digit)
        self._save(at, last._replace(skip=node.skip + digit + last.skip))

    def _save_branch(self, at: bytes, skip: bytes, children: int) -> None:
        self._save(at, Node(skip, children, branch_content(self._children(at + skip, children))))

    def _children(self, below: bytes, children: int) -> dict[int, bytes]:
        found = {digit: self._node(below + bytes([digit])) for digit in range(DIGITS) if children >> digit & 1}
        return {digit: node.hash for digit, node in found.items() if node is not None}

    def _node(self, at: bytes) -> Node | None:
        found = self._effects.get(self._nodes, self._prefix + at)
        if found is None:
            return None
        end = 1 + found[0]
        return Node(found[1:end], int.from_bytes(found[end : end + 2], "big"), found[end + 2 :])

    def _save(self, at: bytes, node: Node) -> None:
        self._effects.put(self._nodes, self._prefix + at, node.encoded())


def verify(root: bytes, key: bytes, value: bytes | None, proof: Proof) -> bool:
    """Whether the proof shows that the trie with this root has this value for the key; None: that it has none."""
    path, at = path_of(key), 0
    digits = []
    for step in proof.steps:
        at += len(step.skip)
        if at >= LENGTH or path[at - len(step.skip) : at] != step.skip:
            return False
        if path[at] in step.siblings:
            return False  # the way goes on there
        digits.append(path[at])
        at += 1
    rest, end = path[at:], proof.end
    if end is not None and len(end.skip) > len(rest):
        return False
    if value is not None:
        if end != Node(rest, 0, digest(value)):
            return False
    elif end is not None and rest.startswith(end.skip) and (end.children or end.skip == rest):
        return False  # the way goes on, or ends at the key
    known = None if end is None else end.hash
    for step, digit in zip(reversed(proof.steps), reversed(digits), strict=True):
        hashes = {**step.siblings, **({} if known is None else {digit: known})}
        if not _is_branch(hashes):
            return False
        children = sum(1 << each for each in hashes)
        known = Node(step.skip, children, branch_content(hashes)).hash
    return (known or EMPTY) == root


def _is_branch(hashes: Mapping[int, bytes]) -> bool:
    """Whether a branch can have these children. A longer hash could hide a child behind another one."""
    return len(hashes) > 1 and all(each in range(DIGITS) and len(found) == len(EMPTY) for each, found in hashes.items())


def root_of(values: Mapping[bytes, bytes]) -> bytes:
    """Returns the root of a trie with these keys and values, computed without storing one."""

    def subtree(paths: Mapping[bytes, bytes], start: int) -> bytes:
        first = min(paths)
        skip = common(first[start:], max(paths)[start:])
        if len(paths) == 1:
            return Node(first[start:], 0, paths[first]).hash
        groups: dict[int, dict[bytes, bytes]] = {}
        for path, content in paths.items():
            groups.setdefault(path[start + skip], {})[path] = content
        hashes = {digit: subtree(group, start + skip + 1) for digit, group in groups.items()}
        return Node(first[start : start + skip], sum(1 << each for each in hashes), branch_content(hashes)).hash

    return subtree({path_of(key): digest(value) for key, value in values.items()}, 0) if values else EMPTY


def branch_content(hashes: Mapping[int, bytes]) -> bytes:
    return digest(*(bytes([digit]) + hashes[digit] for digit in sorted(hashes)))


def digest(*parts: bytes) -> bytes:
    hashed = blake2b(digest_size=32)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def path_of(key: bytes) -> bytes:
    """Returns the digits of the key's hash, one in each byte."""
    return bytes(int(digit, DIGITS) for digit in digest(key).hex())


def common(one: bytes, other: bytes) -> int:
    """Returns the length of the common prefix."""
    length = min(len(one), len(other))
    return next((index for index in range(length) if one[index] != other[index]), length)
