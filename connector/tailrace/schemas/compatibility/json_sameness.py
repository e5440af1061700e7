"""Sameness: whether two nodes say the same, down to everything they refer to. What is the same is compatible."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tailrace.schemas.compatibility.document import Incomparable
from tailrace.schemas.compatibility.json_nodes import DYNAMIC, Node, Nodes, Numbers

Reference = tuple[Node, str]


class Sameness:
    """Decides for the nodes of both sides; `spend` counts the work."""

    def __init__(self, sides: tuple[Nodes, Nodes], numbers: Numbers, spend: Callable[[Node, int], None]) -> None:
        self._sides = sides
        self._numbers = numbers
        self._spend = spend
        self._references: dict[Hashable, list[Reference]] = {}

    def of_roots(self) -> bool:
        """As `of`, and where the target of a dynamic reference depends on the documents as a whole, they are equal."""
        reader, writer = self._sides
        return self._same(writer.root, reader.root, lambda: reader.others() == writer.others())

    def of(self, one: Node, other: Node) -> bool:
        return self._same(one, other, lambda: False)

    def _same(self, writing: Node, reading: Node, dynamic: Callable[[], bool]) -> bool:
        seen: set[Hashable] = set()
        todo = [(writing, reading)]
        for one, other in todo:
            if one.key[0] != other.key[0] or one.draft != other.draft:
                return False
            if (one.key, other.key) in seen or not self._numbers.refers(one.key[0]):
                continue
            seen.add((one.key, other.key))
            references, others = self._referring(one), self._referring(other)
            if any(keyword in holder.schema for holder, _ in references for keyword in DYNAMIC) and not dynamic():
                return False
            try:
                targets = map(self._target, references), map(self._target, others)
                todo.extend(zip(*targets, strict=True))
            except Incomparable:  # of no consequence unless the reference is needed, which the comparison will find
                return False
        return True

    def _target(self, reference: Reference) -> Node:
        node, uri = reference
        return self._sides[max(node.resource.side, 0)].target(node, uri)

    def _referring(self, node: Node) -> list[Reference]:
        """Every reference at or below a node, with the node that holds it, always in the same order."""
        if node.key not in self._references:
            found: list[Reference] = []
            todo = [node]
            for each in todo:
                if not isinstance(each.schema, dict):
                    continue
                self._spend(each, 0)
                for keyword in ("$ref", *DYNAMIC):
                    if isinstance(each.schema.get(keyword), str):
                        found.append((each, each.schema[keyword]))
                below = self._sides[max(each.resource.side, 0)].below(each)
                todo.extend(sorted(below, key=lambda inner: inner.place[len(each.place) :]))
            self._references[node.key] = found
        return self._references[node.key]
