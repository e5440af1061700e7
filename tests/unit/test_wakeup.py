"""Tests of wakeup.py: a flag that can be polled, and its file descriptor."""

from __future__ import annotations

import os
import select

import pytest

from tailrace.wakeup import Wakeup


def is_set(wakeup: Wakeup) -> bool:
    poll = select.poll()
    poll.register(wakeup, select.POLLIN)
    return bool(poll.poll(0))


def test_it_stays_set_until_it_is_cleared() -> None:
    wakeup = Wakeup()
    assert not is_set(wakeup)
    wakeup.set()
    wakeup.set()
    assert is_set(wakeup)
    assert is_set(wakeup)
    wakeup.clear()
    assert not is_set(wakeup)
    wakeup.clear()


def test_close_closes_the_descriptor_once() -> None:
    wakeup = Wakeup()
    descriptor = wakeup.fileno()
    wakeup.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    other = os.dup2(2, descriptor)
    wakeup.close()
    os.fstat(other)
    os.close(other)


def test_the_descriptor_of_an_unreferenced_wakeup_is_closed() -> None:
    wakeup = Wakeup()
    descriptor = wakeup.fileno()
    del wakeup
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
