"""Tokens with which clients log in, and the one place that fetches, shares and renews them.

A `TokenProvider` describes where tokens come from. It is a value: all clients of a process with equal providers share
one token. A token is renewed when little of its life is left, earlier than librdkafka asks for a new one (at four
fifths of its life). So a client never gets a token that is about to expire.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.errors import TokenUnavailable

RENEW_AT = 0.7
"""The part of its life after which a token is renewed."""
TRIES = 3
"""How often a token server that fails is asked, before the client's own retries."""
PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, when it expires (seconds since 1970), and what SASL/OAUTHBEARER sends with it."""

    value: str = field(repr=False)
    expires_at: float
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


class TokenProvider(Protocol):
    """Implemented by frozen dataclasses: providers are keys of the cache."""

    def fetch(self) -> AccessToken:
        """Asks for a new token. Raises TokenUnavailable if that may succeed later, or TokenRefused."""


class _Cached:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.token: AccessToken | None = None
        self.renew_at = 0.0


_cache: dict[TokenProvider, _Cached] = {}


def current(provider: TokenProvider, *, sleep: Callable[[float], None] = time.sleep) -> AccessToken:
    """Returns a token that stays valid for a while. While one thread fetches it, others wait for it."""
    cached = _cache.setdefault(provider, _Cached())
    with cached.lock:
        now = time.time()
        if cached.token is None or now >= cached.renew_at:
            cached.token = _fetch(provider, sleep)
            cached.renew_at = now + RENEW_AT * max(0.0, cached.token.expires_at - now)
        return cached.token


def _fetch(provider: TokenProvider, sleep: Callable[[float], None]) -> AccessToken:
    for attempt in range(1, TRIES):
        try:
            return provider.fetch()
        except TokenUnavailable:
            sleep(PAUSE_SECONDS * attempt)
    return provider.fetch()
