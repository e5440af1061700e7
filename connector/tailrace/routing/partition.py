"""The partition that a key lands on: murmur2, as Kafka's Java clients and our own producer compute it."""

from __future__ import annotations

PARTITIONERS = frozenset({"murmur2", "murmur2_random"})
"""What librdkafka calls those that put a key there."""
_SEED, _MULTIPLIER, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Where a record with this key goes; one without a key may go anywhere."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    value = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        part = (part ^ part >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ part
    if data[whole:]:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15
