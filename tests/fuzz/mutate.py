"""Mutations of bytes, chosen by a seed: the usual ones of fuzzers, without coverage feedback."""

from __future__ import annotations

import random

INTERESTING = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00")
TOKENS = (
    b"null", b"true", b"{}", b"[]", b'""', b"-1", b"1e999", b"9" * 40, b"NaN", b'{"a":' * 30, b"[" * 200, b"\\ud800",
    b"\xc3\x28", b"\xf0\x9f\x98\x80", b"0/0", b"FFFFFFFF/FFFFFFFF", b": ", b"\n- ", b"&a [*a]", b"!!python/object:os",
    b"${env:HOME}", b"${file:/etc/hostname}", b'"', b"'", b",", b"2026-13-45", b"\x00" * 8,
)  # fmt: skip
MOST_BYTES = 1 << 14


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Returns one of the seeds with some random changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randint(0, len(data))
        size = chance.choice((1, 1, 2, 4, 8, 32))
        kind = chance.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at : at + size] = chance.randbytes(size)
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = chance.choice(TOKENS)
        elif kind == 4:
            token = chance.choice(INTERESTING)
            data[at : at + len(token)] = token
        elif kind == 5:
            data[at:at] = data[at : at + size * 4]
        elif kind == 6:
            other = chance.choice(seeds)
            cut = chance.randint(0, len(other))
            data[at:] = other[cut:]
        else:
            data[at : at + size] = chance.choice(TOKENS)
    return bytes(data[:MOST_BYTES])
