"""Decides which pipeline published a record: this one, another one, or unknown. Pure.

A record names the pipeline that published it. Records of earlier versions do not. They count as this pipeline's own
unless there is evidence against it; then they are doubtful, and prove neither that a row was published nor that it was
not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b

from tailrace.positions.base import Position
from tailrace.verify.findings import AGAIN, OTHERS
from tailrace.verify.kafka_records import RecordOrigin

UNKNOWN_IDENTITY = 0


class RecordOwner(IntEnum):
    """OWN by its header, or read from this pipeline's own topics. UNSAID has no header, and no evidence against it."""

    OWN = 0
    UNSAID = 1
    DOUBTFUL = 2
    OTHERS = 3


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """`elsewhere`: pipelines that read another outbox. `noted`, `of_others`: topics in the position histories of this
    and of other pipelines. `furthest`: this pipeline has published nothing behind it; None if that is not known.
    """

    elsewhere: Collection[bytes] = ()
    noted: Collection[str] = ()
    of_others: Collection[str] = ()
    furthest: Position | None = field(default=None)

    def judge(self, event: str, flags: int, origin: RecordOrigin) -> RecordOwner | None:
        """Returns None for a record that belongs to no row of this outbox."""
        if flags & OTHERS:
            return None if origin.pipeline in self.elsewhere else RecordOwner.OTHERS
        if origin.pipeline is not None:
            return RecordOwner.OWN
        if origin.topic in self.of_others and (event.isdecimal() or origin.topic not in self.noted):
            # Another pipeline writes there and counts its events from 1, or this one never wrote there.
            return RecordOwner.DOUBTFUL
        return RecordOwner.DOUBTFUL if self._is_ahead(origin, flags) else RecordOwner.UNSAID

    def _is_ahead(self, origin: RecordOrigin, flags: int) -> bool:
        """Returns whether the position is beyond the furthest of this pipeline. A replayed record may lack its
        position.
        """
        if self.furthest is None or origin.position is None or flags & AGAIN:
            return False
        try:
            return not self.furthest.covers(origin.position.decode())
        except ValueError:
            return True  # a position in another kind of log


def identity(key: bytes | None, type_name: str | bytes | None) -> int:
    """Returns a signed 64-bit hash of a record's key and type; never UNKNOWN_IDENTITY."""
    said = type_name.encode() if isinstance(type_name, str) else type_name or b""
    hashed = blake2b(b"\0" if key is None else b"\1" + key, digest_size=8, salt=blake2b(said, digest_size=16).digest())
    return int.from_bytes(hashed.digest(), "little", signed=True) or 1
