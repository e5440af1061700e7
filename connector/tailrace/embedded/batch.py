"""One batch of changes of an embedded outbox."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.embedded.records import (
    ENTRIES,
    KEYS,
    OWN,
    STATE,
    OutboxState,
    encode_entry,
    key_prefix,
    sequence_key,
)

if TYPE_CHECKING:
    from rocksdict import WriteBatch


class StoredKeys(Protocol):
    """What is on disk."""

    def sequences(self, key: bytes) -> list[int]: ...

    def has(self, key: bytes, sequence: int) -> bool: ...


class OutboxBatch:
    """What one batch changes. Requests see what earlier requests of the same batch have changed."""

    def __init__(self, database: StoredKeys, state: OutboxState, written: WriteBatch, handles: dict[str, Any]) -> None:
        self._database = database
        self._written = written
        self._handles = handles
        self._added: dict[bytes, list[int]] = {}
        self._removed: set[int] = set()
        self.state = state

    def add(self, key: bytes, raw: bytes) -> int:
        """Adds an entry; returns its sequence number."""
        sequence = self.state.last + 1
        self.state = OutboxState(sequence, self.state.entries + 1)
        self._put(ENTRIES, sequence_key(sequence), encode_entry(key, raw, time.time_ns() // 1_000_000))
        self._put(KEYS, key_prefix(key) + sequence_key(sequence), b"")
        self._added.setdefault(key, []).append(sequence)
        return sequence

    def remove(self, key: bytes, sequence: int) -> bool:
        """Removes an entry; returns False if it does not exist."""
        added = self._added.get(key, ())
        if sequence in self._removed or not (sequence in added or self._database.has(key, sequence)):
            return False
        self.state = self.state._replace(entries=self.state.entries - 1)
        self._written.delete(sequence_key(sequence), self._handles[ENTRIES])
        self._written.delete(key_prefix(key) + sequence_key(sequence), self._handles[KEYS])
        self._removed.add(sequence)
        return True

    def sequences(self, key: bytes) -> list[int]:
        """Returns the sequence numbers of the key's entries, oldest first."""
        found = [*self._database.sequences(key), *self._added.get(key, ())]
        return [sequence for sequence in found if sequence not in self._removed]

    def end(self) -> WriteBatch:
        self._put(OWN, STATE, self.state.encode())
        return self._written

    def _put(self, family: str, key: bytes, value: bytes) -> None:
        self._written.put(key, value, self._handles[family])
