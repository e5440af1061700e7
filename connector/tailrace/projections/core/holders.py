"""Which code may use a transaction: the code that opened it, and the tasks that this code starts.

A transaction has a holder, an object without meaning. The running code carries the holders of its transactions in a
context variable, which the tasks that it starts inherit. An agent runs in another task than the one that opened its
transaction, so it adopts the holders while it is within `once()`.
"""

from __future__ import annotations

from contextvars import ContextVar

Holders = frozenset[object]

_HOLDERS: ContextVar[Holders] = ContextVar("holders", default=frozenset())


def current() -> Holders:
    """Returns the holders of the running code."""
    return _HOLDERS.get()


def adopt(holders: Holders) -> None:
    """Lets the running code use the transactions of these holders."""
    _HOLDERS.set(_HOLDERS.get() | holders)


def drop(holders: Holders) -> None:
    """Ends what `adopt` has allowed, for the running code and the tasks that it starts from now on."""
    _HOLDERS.set(_HOLDERS.get() - holders)
