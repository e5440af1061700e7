"""The header `position` as numbers that sort as commits do. Pure.

`0/1A2B3C8:4` is the fourth row of the transaction whose commit record stands there; `0/1A2B3C8:t4` the fourth of those
that were in the table before. In MongoDB `1773403200.7:2` is the second change of that cluster time, and sixteen
hexadecimal digits in the place of the number stand for a document that was there before: those have no order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

Order = tuple[int, int]
_STREAM = 1 << 40
"""Stands before the number of what came by the stream: later than all that was there before."""
_HASH_DIGITS = 16


def postgres_order(position: str) -> Order | None:
    """None for what is no position in a Postgres log."""
    commit, _, number = position.partition(":")
    try:
        lsn = _lsn(commit)
        return (lsn, int(number[1:])) if number[:1] == "t" else (lsn, _STREAM + int(number))
    except ValueError:
        return None


def mongo_order(position: str) -> Order | None:
    """None for what is no position in a MongoDB log."""
    commit, _, number = position.partition(":")
    try:
        time = _cluster_time(commit)
        return (time, 0) if len(number) == _HASH_DIGITS else (time, _STREAM + int(number))
    except ValueError:
        return None


def order_of(database: str) -> Callable[[str], Order | None]:
    return mongo_order if database == "mongo" else postgres_order


class OrderCheck:
    """The positions of one partition, as they come: have they ever gone back? What is no position is passed over."""

    def __init__(self, order_of: Callable[[str], Order | None]) -> None:
        self.has_turned = False
        self.first: Order | None = None
        self._order_of = order_of
        self._highest: Order = (-1, -1)
        self._commit = b""
        self._major = -1

    def follow(self, position: bytes) -> None:
        commit, _, number = position.partition(b":")
        # Within a transaction only the number grows. Those that are no number are left to the parser.
        if commit == self._commit and number.isdigit() and len(number) < _HASH_DIGITS:
            order = (self._major, _STREAM + int(number))
        else:
            found = self._order_of(position.decode(errors="replace"))
            if found is None:
                return
            self._commit, self._major, order = commit, found[0], found
        if self.first is None:
            self.first = order
        if order < self._highest:
            self.has_turned = True
        else:
            self._highest = order


@lru_cache(maxsize=64)  # the events of a transaction have the same
def _lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


@lru_cache(maxsize=64)
def _cluster_time(text: str) -> int:
    seconds, increment = text.split(".")
    return int(seconds) << 32 | int(increment)
