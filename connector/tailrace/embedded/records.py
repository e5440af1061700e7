"""The keys and values of an embedded outbox in RocksDB.

| family | key | value |
|---|---|---|
| `entries` | sequence number | time, key, raw bytes |
| `keys` | length of the key, key, sequence number | nothing |
| `tailrace_outbox` | `identity` | a random name, given at the creation |
| | `epoch`, sequence number | a random name of the opening that gives the numbers from this one on |
| | `state` | the last sequence number and the number of entries |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

OWN, ENTRIES, KEYS = "tailrace_outbox", "entries", "keys"
IDENTITY, STATE, EPOCH = b"identity", b"state", b"epoch"
_STATE, _ENTRY = struct.Struct(">QQ"), struct.Struct(">QI")
_LENGTH, _SEQUENCE = struct.Struct(">I"), struct.Struct(">Q")


class Entry(NamedTuple):
    """An entry of the outbox: what was captured under `key`. Sequence numbers give the order of the writes."""

    sequence: int
    key: bytes
    raw: bytes
    written_ms: int

    @property
    def text_key(self) -> str:
        """The key as text. Bytes that are not UTF-8 are replaced."""
        return self.key.decode(errors="replace")

    @property
    def size(self) -> int:
        return len(self.key) + len(self.raw)


class OutboxState(NamedTuple):
    """`last` is the sequence number that was given last, also if its entry is deleted."""

    last: int = 0
    entries: int = 0

    def encode(self) -> bytes:
        return _STATE.pack(*self)

    @classmethod
    def decode(cls, stored: bytes) -> OutboxState:
        return cls(*_STATE.unpack(stored))


def sequence_key(sequence: int) -> bytes:
    return _SEQUENCE.pack(sequence)


def encode_entry(key: bytes, raw: bytes, written_ms: int) -> bytes:
    return _ENTRY.pack(written_ms, len(key)) + key + raw


def decode_entry(stored_key: bytes, value: bytes) -> Entry:
    written_ms, length = _ENTRY.unpack_from(value)
    start = _ENTRY.size
    return Entry(
        _SEQUENCE.unpack(stored_key)[0], value[start : start + length], value[start + length :], written_ms
    )  # fmt: skip


def key_prefix(key: bytes) -> bytes:
    """Returns what the keys of all entries of `key` in the family `keys` begin with."""
    return _LENGTH.pack(len(key)) + key


def sequence_of(indexed: bytes) -> int:
    """Returns the sequence number of a key of the family `keys`."""
    return int(_SEQUENCE.unpack(indexed[-_SEQUENCE.size :])[0])
