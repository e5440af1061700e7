"""An index of published events by id, with the owner of each record; in a temporary file, so memory stays flat.

A record names the pipeline that published it. Records of earlier versions do not. They count as this pipeline's own
unless there is evidence against it; then they are doubtful, and prove neither that a row was published nor that it was
not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from math import inf
from typing import Any, NamedTuple

from tailrace.errors import SourceError
from tailrace.positions.base import Position
from tailrace.temporary_table import TemporaryTable
from tailrace.verify.findings import AGAIN, EDITED, ORDER, OTHERS, PUBLISHED, WAITING
from tailrace.verify.fingerprints import UNCOMPARED
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

    def decide(self, event: str, flags: int, origin: RecordOrigin) -> RecordOwner | None:
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


PENDING = 10_000
CACHE_KBYTES = 65_536


class PublishedRecord(NamedTuple):
    """A record or dead letter found under an id. `identity` combines key and type, if known. A dead letter has no
    topic.
    """

    frame: int
    digest: int
    owner: int = RecordOwner.OWN
    identity: int = UNKNOWN_IDENTITY
    topic: str = ""


class IdIndex:
    """Stores what Kafka holds under each id; a `FactSink` for `KafkaRecords`."""

    def __init__(self, owner_rules: OwnerRules | None = None) -> None:
        self._owner_rules = owner_rules or OwnerRules()
        self.first_ms: float = inf
        """The earliest commit time among the records that this pipeline published for the first time."""
        self._records = TemporaryTable(
            "name TEXT, frame INTEGER, digest INTEGER, owner INTEGER, identity INTEGER, topic TEXT, "
            "PRIMARY KEY (name, frame, digest, owner, identity, topic)",
            _no_room,
            cache_kbytes=CACHE_KBYTES,
        )
        self._pending: list[tuple[str, int, int, int, int, str]] = []

    def add(self, stream: int, name: object, fact: tuple[Any, ...]) -> None:
        if stream == ORDER:
            return
        # Edited payloads and waiting events are not compared.
        fields = stream != WAITING and not fact[3] & EDITED
        frame, digest = (fact[1], fact[2]) if fields else UNCOMPARED
        found = PublishedRecord(frame, digest)
        if stream == PUBLISHED:
            origin: RecordOrigin = fact[6]
            owner = self._owner_rules.decide(str(name), fact[3], origin)
            if owner is None:
                return
            if owner <= RecordOwner.UNSAID and not fact[3] & AGAIN and origin.timestamp and origin.timestamp.isdigit():
                self.first_ms = min(self.first_ms, int(origin.timestamp))
            if owner is not RecordOwner.OWN:
                found = PublishedRecord(frame, digest, owner, identity(origin.key, origin.type), origin.topic)
        self._pending.append((_storable(str(name)), *found))
        if len(self._pending) >= PENDING:
            self._write()

    def clear(self, stream: int) -> None:
        """Keeps everything: a dead letter resolved meanwhile, or an event that waits no longer, still counts."""

    def find(self, name: str) -> list[PublishedRecord]:
        """Returns one record per payload and owner published under the name."""
        self._write()
        wanted = "SELECT frame, digest, owner, identity, topic FROM rows WHERE name = ?"
        return [PublishedRecord(*each) for each in self._records.select(wanted, _storable(name))]

    def __len__(self) -> int:
        self._write()
        return int(self._records.select("SELECT count(DISTINCT name) FROM rows")[0][0])

    def close(self) -> None:
        self._records.close()

    def _write(self) -> None:
        if self._pending:
            self._records.add(self._pending)
            self._pending.clear()


def _storable(name: str) -> str:
    """Replaces characters that cannot be stored as UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the ids of published events cannot be stored in a temporary file: {error}",
        remedy="Make sure that the folder for temporary files (TMPDIR) has room: about 100 bytes per event.",
    )
