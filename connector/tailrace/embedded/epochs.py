"""The epochs of an embedded outbox: each opening of the folder begins one, with a random name.

An older copy of the folder gives the sequence numbers after it again, for other entries. The epoch tells them apart:
those of the copy belong to an epoch that the original never had.
"""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.embedded.records import EPOCH, sequence_key, sequence_of


@dataclass(frozen=True, slots=True)
class Epochs:
    """`firsts` are the first sequence numbers of the epochs, in order; `names` are their names."""

    firsts: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def at(self, sequence: int) -> str:
        """Returns the epoch of a sequence number; empty if it is not known any more."""
        found = bisect.bisect_right(self.firsts, sequence)
        return self.names[found - 1] if found else ""

    def begun(self, following: int, lowest: int) -> Epochs:
        """Returns them with a new one, from the number `following` on. `lowest` is the first number that has an entry.

        Epochs without entries are forgotten.
        """
        kept = [each for each in zip(self.firsts, self.names, strict=True) if each[0] < following]
        kept.append((following, uuid.uuid4().hex))
        while len(kept) > 1 and kept[1][0] <= lowest:
            del kept[0]
        return Epochs(tuple(first for first, _ in kept), tuple(name for _, name in kept))

    def encoded(self) -> dict[bytes, bytes]:
        return {EPOCH + sequence_key(first): name.encode() for first, name in zip(self.firsts, self.names, strict=True)}

    @classmethod
    def decode(cls, stored: Iterable[tuple[bytes, bytes]]) -> Epochs:
        """Takes keys and values in the order of the keys."""
        found = [(sequence_of(key), value.decode()) for key, value in stored]
        return cls(tuple(first for first, _ in found), tuple(name for _, name in found))
