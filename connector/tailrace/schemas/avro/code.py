"""Building blocks of generated functions: lines of Python that concatenate bytes, and Avro's variable-length
integers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_ONE = [bytes((only,)) for only in range(128)]
_LAST = (*_ONE, *(bytes((low, high)) for high in range(1, 128) for low in range(128, 256)))
_MORE = tuple(bytes((low, high)) for high in range(128, 256) for low in range(128, 256))
"""Fourteen bits of a number, as its last two bytes and as two bytes that others follow."""
SMALL = _LAST[::2]
"""The numbers from 0 that take one or two bytes: most lengths and many amounts."""


def varint(number: int) -> bytes:
    """Encodes a 64-bit integer as Avro does: zigzag, seven bits per byte, the lowest first."""
    number = number << 1 if number >= 0 else ~(number << 1)
    if number < 1 << 14:
        return _LAST[number]
    if number < 1 << 28:
        return _MORE[number & 0x3FFF] + _LAST[number >> 14]
    if number < 1 << 42:
        return _MORE[number & 0x3FFF] + _MORE[number >> 14 & 0x3FFF] + _LAST[number >> 28]
    return _MORE[number & 0x3FFF] + _MORE[number >> 14 & 0x3FFF] + _MORE[number >> 28 & 0x3FFF] + _rest(number >> 42)


def _rest(number: int) -> bytes:
    return _LAST[number] if number < 1 << 14 else _MORE[number & 0x3FFF] + _LAST[number >> 14]


class Body:
    """The lines of one function. `pieces` are expressions that yield bytes; one statement writes them together."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.pieces: list[str] = []
        self.depth = 1
        self._variables = 0

    def add(self, line: str) -> None:
        self.lines.append(" " * self.depth + line)

    def variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def flush(self) -> None:
        if self.pieces:
            self.add(f"out += ({', '.join(self.pieces)},)")
            self.pieces.clear()

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.flush()
        self.add(header)
        self.depth += 1
        yield
        self.flush()
        self.depth -= 1
