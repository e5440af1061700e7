"""An index of published events by id, in a temporary file, so that memory stays flat."""

from __future__ import annotations

import sqlite3
from math import inf
from typing import Any, NamedTuple

from tailrace.errors import SourceError
from tailrace.recovery.record_owner import UNKNOWN_IDENTITY, OwnerRules, RecordOwner, identity
from tailrace.verify.findings import AGAIN, EDITED, ORDER, PUBLISHED, WAITING
from tailrace.verify.fingerprints import UNCOMPARED
from tailrace.verify.kafka_records import RecordOrigin

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
        self._file = sqlite3.connect("", check_same_thread=False)  # a temporary file
        self._file.execute(f"PRAGMA cache_size = -{CACHE_KBYTES}")
        self._file.execute(
            "CREATE TABLE seen (name TEXT, frame INTEGER, digest INTEGER, owner INTEGER, identity INTEGER, topic TEXT, "
            "PRIMARY KEY (name, frame, digest, owner, identity, topic)) WITHOUT ROWID"
        )
        self._pending: list[tuple[str, int, int, int, int, str]] = []

    def add(self, stream: int, name: object, fact: tuple[Any, ...]) -> None:
        if stream == ORDER:
            return
        # Edited payloads and waiting events are not compared.
        told = stream != WAITING and not fact[3] & EDITED
        frame, digest = (fact[1], fact[2]) if told else UNCOMPARED
        found = PublishedRecord(frame, digest)
        if stream == PUBLISHED:
            origin: RecordOrigin = fact[6]
            owner = self._owner_rules.judge(str(name), fact[3], origin)
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
        wanted = "SELECT frame, digest, owner, identity, topic FROM seen WHERE name = ?"
        try:
            found = self._file.execute(wanted, (_storable(name),)).fetchall()
        except sqlite3.Error as error:
            raise _no_room(error) from None
        return [PublishedRecord(*each) for each in found]

    def __len__(self) -> int:
        self._write()
        return int(self._file.execute("SELECT count(DISTINCT name) FROM seen").fetchone()[0])

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        if not self._pending:
            return
        try:
            self._file.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?, ?, ?)", self._pending)
        except sqlite3.Error as error:
            raise _no_room(error) from None
        self._pending.clear()


def _storable(name: str) -> str:
    """Replaces characters that cannot be stored as UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the ids of published events cannot be stored in a temporary file: {error}",
        remedy="Make sure that the folder for temporary files (TMPDIR) has room: about 100 bytes per event.",
    )
