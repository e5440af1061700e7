"""Token buckets by key: how often a client may do something. The number of keys is bounded."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_KEYS = 10_000


class Rates:
    """Allows `burst` at once, and `per_second` in the long run, for each key."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """What is left, and when it was."""

    def take(self, key: Hashable) -> float:
        """Takes one; returns 0, or the seconds until one is left."""
        left, now = self._now(key)
        if left < 1:
            return (1 - left) / self._per_second
        self._left[key] = (left - 1, now)
        self._left.move_to_end(key)
        if len(self._left) > MAX_KEYS:
            self._left.popitem(last=False)  # the one that has taken none for the longest time
        return 0.0

    def wait(self, key: Hashable) -> float:
        """Returns the seconds until one is left, without taking it."""
        left, _ = self._now(key)
        return 0.0 if left >= 1 else (1 - left) / self._per_second

    def _now(self, key: Hashable) -> tuple[float, float]:
        now = self._clock()
        left, then = self._left.get(key, (self._burst, now))
        return min(self._burst, left + (now - then) * self._per_second), now


def network_of(address: str) -> str:
    """Returns the address as a key: of IPv6 the first 64 bits, because a client has all addresses below them."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
