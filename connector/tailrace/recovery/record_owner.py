"""Whose records are those on Kafka: the pipeline's own, certainly another's, or not known? Pure.

A record says which pipeline published it. Those of earlier versions do not: they are the pipeline's own if nothing
speaks against it, and in doubt otherwise. What is in doubt stands neither for a row that was published nor for one that
was not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b

from tailrace.positions.base import Position
from tailrace.verify.compare import AGAIN, OTHERS
from tailrace.verify.kafka_records import RecordOrigin

UNKNOWN_IDENTITY = 0


class RecordOwner(IntEnum):
    """OWN by its header, or kept as this pipeline's; UNSAID without a header, and nothing speaks against it."""

    OWN = 0
    UNSAID = 1
    DOUBTFUL = 2
    OTHERS = 3


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """`elsewhere`: pipelines that read another outbox. `noted`, `of_others`: topics that the histories of this and of
    other pipelines name. `furthest`: nothing behind this position was ever published by this pipeline; None if that is
    not known.
    """

    elsewhere: Collection[bytes] = ()
    noted: Collection[str] = ()
    of_others: Collection[str] = ()
    furthest: Position | None = field(default=None)

    def judge(self, event: str, flags: int, origin: RecordOrigin) -> RecordOwner | None:
        """None for a record that stands for no row of this outbox."""
        if flags & OTHERS:
            return None if origin.pipeline in self.elsewhere else RecordOwner.OTHERS
        if origin.pipeline is not None:
            return RecordOwner.OWN
        if origin.topic in self.of_others and (event.isdecimal() or origin.topic not in self.noted):
            # Another pipeline writes there, too, and counts its events from 1, or this one has never been seen there.
            return RecordOwner.DOUBTFUL
        return RecordOwner.DOUBTFUL if self._is_ahead(origin, flags) else RecordOwner.UNSAID

    def _is_ahead(self, origin: RecordOrigin, flags: int) -> bool:
        """Whether it stands where this pipeline has never been. What was published again may have lost its place."""
        if self.furthest is None or origin.position is None or flags & AGAIN:
            return False
        try:
            return not self.furthest.covers(origin.position.decode())
        except ValueError:
            return True  # it is a place in another kind of log


def identity(key: bytes | None, type_name: str | bytes | None) -> int:
    """Of a record's key and type, as a number of 64 bits with a sign; never UNKNOWN_IDENTITY."""
    said = type_name.encode() if isinstance(type_name, str) else type_name or b""
    hashed = blake2b(b"\0" if key is None else b"\1" + key, digest_size=8, salt=blake2b(said, digest_size=16).digest())
    return int.from_bytes(hashed.digest(), "little", signed=True) or 1
