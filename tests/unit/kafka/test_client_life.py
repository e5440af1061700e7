"""Clients end with the last reference to them, in the thread that drops it.

The garbage collector may run in a callback of the client's own thread, for example while it asks for a token: a client
that is destroyed there aborts the process.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_an_observer_is_no_cycle() -> None:
    observer = ClusterObserver(KafkaOptions("127.0.0.1:1", "orders"))
    gone = weakref.ref(observer)
    del observer
    assert gone() is None
