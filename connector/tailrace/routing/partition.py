"""Computes the partition of a key with murmur2, as Kafka's Java clients and our producer do."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from sys import byteorder

PARTITIONERS = frozenset({"murmur2", "murmur2_random"})
"""librdkafka's names of the partitioners that use murmur2."""
_SEED, _MULTIPLIER, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF
_WIDTH = 8
"""Bytes per hash when many are computed in one integer: the product of two 32-bit numbers must fit."""


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Returns the hash as an unsigned 32-bit number."""
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


def hashes(keys: Iterable[bytes]) -> dict[bytes, int]:
    """Returns `murmur2` of many keys. Keys of one length are computed together, as digits of one large integer."""
    by_length: defaultdict[int, list[bytes]] = defaultdict(list)
    for key in keys:
        by_length[len(key)].append(key)
    found: dict[bytes, int] = {}
    for length, alike in by_length.items():
        found.update(zip(alike, _hashes(alike, length), strict=True))
    return found


def _hashes(keys: Sequence[bytes], length: int) -> Sequence[int]:
    count, width = len(keys), -(-length // 4)
    words = array("I", b"".join([key.ljust(4 * width, b"\0") for key in keys]))
    if byteorder == "big":
        words.byteswap()

    def side_by_side(numbers: Iterable[int]) -> int:
        return int.from_bytes(array("Q", numbers).tobytes(), byteorder)

    mask = side_by_side([_MASK] * count)
    value = side_by_side([(_SEED ^ length) & _MASK] * count)
    for at in range(length // 4):
        part = side_by_side(words[at::width]) * _MULTIPLIER & mask
        part = (part ^ part >> 24 & mask) * _MULTIPLIER & mask
        value = value * _MULTIPLIER & mask ^ part
    if length % 4:
        value = (value ^ side_by_side(words[width - 1 :: width])) * _MULTIPLIER & mask
    value = (value ^ value >> 13 & mask) * _MULTIPLIER & mask
    value ^= value >> 15 & mask
    return array("Q", value.to_bytes(_WIDTH * count, byteorder))
